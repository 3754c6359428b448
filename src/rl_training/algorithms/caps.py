"""CAPS (Chemingui et al. 2024, arXiv:2412.18946): a limit that is chosen when the policy runs.

IQL twice on one batch, for the reward and for the negative cost; one actor trunk with a head for each. What
switches between the heads is `models/switching.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import torch
from pydantic import model_validator
from torch import Tensor

from rl_training.algorithms import losses
from rl_training.algorithms.advantage import exp_weights, regression_metrics, weighted_regression
from rl_training.algorithms.iql import IQL, IQLConfig, Values, iql_loss
from rl_training.algorithms.learner import Batch, MetricTensors, Noise
from rl_training.algorithms.recipe import Recipe
from rl_training.config import setting
from rl_training.config.data import OfflineFields
from rl_training.config.limits import Limit
from rl_training.core.errors import ConfigError
from rl_training.models.actors import StochasticActor
from rl_training.models.critics import QEnsemble, StateValue
from rl_training.models.models import IQLNetworkConfig
from rl_training.models.switching import Budget, MLPCAPSModel, SwitchingActor
from rl_training.policies.inputs import LARGEST, Inputs, RuntimeInput

MOST = 100.0
"""The largest limit that can be chosen afterwards, as a multiple of the one that was set."""


class CAPSConfig(IQLConfig):
    """Keywords of CAPS."""

    tau: float = setting(
        0.05,
        "share of the critics taken over by their targets after each update; costs that are not learned to "
        "their end seem to keep a limit, so that targets follow fast",
        gt=0,
        le=1,
    )
    limit: float | str = setting(
        0.0,
        "the most that the cost may be where nobody chooses another limit while it runs: 0.01 on average per "
        "step, or 3 per episode; a run takes it from limits",
    )
    episode_steps: int = setting(
        300,
        "steps of an episode, over which the limit is spent; a longer one gets it anew every so many",
        ge=1,
    )
    cost_beta: float | None = setting(
        None, "inverse temperature of the head that saves cost; none: beta", gt=0
    )

    @model_validator(mode="after")
    def _limit_is_one(self) -> Self:
        if self.stated_limit.bound < 0.0:
            raise ValueError(f"limit must be >= 0, got {self.limit}")
        return self

    @property
    def stated_limit(self) -> Limit:
        return Limit.parse("the cost", self.limit)


class CAPS(IQL):
    """Rewards and costs are learned apart, and nothing of the limit: that is for whoever runs it."""

    config_class = CAPSConfig
    config: CAPSConfig
    model: MLPCAPSModel
    needs = frozenset({"costs"})
    takes_actions = ("numbers",)

    def setup(self) -> None:
        self.switching = self.part("actor", SwitchingActor)
        super().setup()
        critic, value = self.part("cost_critic", QEnsemble), self.part("cost_value", StateValue)
        for name, network in (("cost_critic", critic), ("cost_value", value)):
            self.add_optimizer(name, network.parameters(), "critic")
        target = self.add_target("cost_critic", critic)
        self.cost_values = Values("cost_critic", "cost_value", critic, target, value, "target_cost_q")
        self.switching.budget = Budget(
            gamma=self.config.gamma, steps=self.config.episode_steps, per=self.config.stated_limit.per
        )

    def learned_actor(self) -> StochasticActor:
        return self.switching.heads

    def inputs(self) -> Inputs:
        bound = self.config.stated_limit.bound
        return (
            RuntimeInput("limit", 0.0, max(1.0, MOST * bound), bound),
            RuntimeInput("spent", -LARGEST, LARGEST, 0.0, counted=True),
            RuntimeInput("steps", 0.0, LARGEST, 0.0, counted=True),
        )

    def step(self, batch: Batch, noise: Noise, stage: str) -> MetricTensors:
        if (costs := batch["costs"]).shape[-1] != 1:
            raise ConfigError(
                f"caps learns from one cost, the data has {costs.shape[-1]}; declare the one that is "
                "limited, or what they add up to: --cost 'all: a + b'"
            )
        of_reward, metrics = self.learn_values(self.values, batch, batch["rewards"])
        of_cost, more = self.learn_values(self.cost_values, batch, -costs.squeeze(-1))
        logprobs = self.switching.log_probs(batch["obs"], batch["actions"], noise.get("dropout"))
        betas = (self.config.beta, self.config.cost_beta or self.config.beta)
        weights = [
            exp_weights(advantages, beta, self.config.max_advantage_weight)
            for advantages, beta in zip((of_reward, of_cost), betas, strict=True)
        ]
        loss = heads_loss(logprobs, torch.stack(weights))
        self.minimize("actor", loss)
        of_head = regression_metrics(logprobs[0], weights[0], of_reward)
        cost_head = regression_metrics(logprobs[1], weights[1], of_cost)
        told = {"actor_loss": loss.detach(), **{f"cost_{name}": each for name, each in cost_head.items()}}
        return metrics | more | of_head | told


def heads_loss(logprobs: Tensor, weights: Tensor) -> Tensor:
    """Mean over heads of -mean w_h log π_h(a|s): `[2, *S, B]`, `[2, *S, B]` -> `[*S]`."""
    return weighted_regression(logprobs, weights).mean(0)


def caps_loss(inputs: Mapping[str, Tensor | float]) -> dict[str, Tensor]:
    """From the inputs of `iql_loss`, and the same of the negative cost with `cost_` before their names.

    What it gives is named alike; the actor's loss is the mean over the two heads.
    """
    of_cost = {name: inputs[f"cost_{name}"] for name in inputs if f"cost_{name}" in inputs}
    both = (iql_loss(inputs), iql_loss(of_cost))
    found = both[0] | {f"cost_{name}": each for name, each in both[1].items()}
    names = ("behavior_logprobs", "advantage_weights")
    named = [torch.stack([losses.named_tensors(each)[name] for each in (inputs, of_cost)]) for name in names]
    del found["cost_actor_loss"]
    return found | {"actor_loss": heads_loss(*named)}


class CAPSRunConfig(CAPSConfig, IQLNetworkConfig, OfflineFields):
    """Every setting of a CAPS run."""

    @model_validator(mode="before")
    @classmethod
    def _limit_is_that_of_limits(cls, values: object) -> object:
        """Said once, for learning and for judging."""
        limits = values.get("limits") if isinstance(values, dict) else None
        if not isinstance(values, dict) or not isinstance(limits, Mapping) or len(limits) != 1:
            return values
        return {"limit": next(iter(limits.values())), **values}

    @model_validator(mode="after")
    def _one_limit_is_kept(self) -> Self:
        if len(self.limits) > 1:
            raise ValueError(
                f"limits must be of one cost for caps, got {', '.join(self.limits)}; add the costs up in one "
                "formula"
            )
        for stated in self.stated_limits:
            own = self.stated_limit
            if (own.bound, own.per) != (stated.bound, stated.per):
                raise ValueError(
                    f"limit must be that of limits ({stated}), got {own}; leave it out, another one can be "
                    "chosen while the policy runs"
                )
        return self

    def mistaken_lengths(self, total: int | None, online: int | None) -> list[str]:
        """Nothing of it explores within a limit."""
        if not online:
            return []
        return [
            f"online_timesteps must be 0 for caps, which learns from logs alone, got {online}; add new rows "
            "to the data and train again"
        ]


RECIPE = Recipe("caps", CAPS, MLPCAPSModel, CAPSRunConfig, title="CAPS", papers=("2412.18946",))
