"""Deep Q-learning for choices, double by default (Mnih et al. 2015; van Hasselt et al. 2016, 1509.06461)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

import torch
import torch.nn.functional as F
from pydantic import model_validator
from torch import Tensor

from rl_training.algorithms import losses
from rl_training.algorithms.learner import (
    Batch,
    Learner,
    LearnerConfig,
    MetricTensors,
    Noise,
    NoiseShapes,
    UpdateResult,
)
from rl_training.algorithms.recipe import Recipe
from rl_training.config import ConfigModel, setting
from rl_training.config.data import OnlineDataFields
from rl_training.config.run import OnlineFields
from rl_training.models.choices import EpsilonGreedy, joint_shares
from rl_training.models.models import DQNNetworkConfig, MLPDQNModel
from rl_training.policies.policy import Policy

TDLoss = Literal["huber", "square"]


class DQNConfig(LearnerConfig):
    """Keywords of DQN, shared by discrete CQL."""

    double: bool = setting(
        True,
        "the next action is the critics' own, valued by their targets (double DQN), or the targets' best",
    )
    td_loss: TDLoss = setting(
        "huber", "loss of an error: huber (half its square up to 1, then linear) or square"
    )
    target_update: Literal["hard", "soft"] = setting(
        "soft", "targets: a share tau at each update, or a copy every target_update_interval updates"
    )
    tau: float = setting(0.005, "share of the critics that targets take over per update (soft)", gt=0, le=1)
    target_update_interval: int = setting(1000, "updates between two copies (hard)", ge=1)
    epsilon_start: float = setting(1.0, "share of random actions at the first update", ge=0, le=1)
    epsilon_end: float = setting(0.05, "share of random actions from epsilon_updates on", ge=0, le=1)
    epsilon_updates: int = setting(10_000, "updates over which that share falls, in a line", ge=1)


class DQN(Learner):
    """Q(s, .) of every action from one network; acts greedily, or at random with probability epsilon."""

    config_class = DQNConfig
    config: DQNConfig
    takes_actions = ("choices",)
    model_sizes = ("num_critics",)

    def setup(self) -> None:
        self.actor = self.part("actor", EpsilonGreedy)
        self.critic = self.actor.critic
        self.add_optimizer("critic", self.critic.parameters(), "critic")
        self.target_critic = self.add_target("critic", self.critic)

    @property
    def epsilon(self) -> float:
        """The share of random actions by now; it follows from the updates done alone."""
        done = min(1.0, self.updates / self.config.epsilon_updates)
        return self.config.epsilon_start + done * (self.config.epsilon_end - self.config.epsilon_start)

    @property
    def policy(self) -> Policy:
        """With the epsilon of now."""
        found: Policy = super().policy
        self.actor.epsilon = self.epsilon
        return found

    def noise_shapes(self, batch_size: int) -> NoiseShapes:
        return {}

    def update(self, batch: Batch, *, global_step: int) -> UpdateResult:
        result = super().update(batch, global_step=global_step)
        if self.config.target_update == "hard" and self.updates % self.config.target_update_interval == 0:
            self.update_target("critic", self.critic, 1.0)
        return result

    def step(self, batch: Batch, noise: Noise, stage: str) -> MetricTensors:
        with torch.no_grad():
            target = self.value_target(batch)
        values = self.critic.values(batch["obs"])
        q = chosen_values(values, joint_shares(batch["actions"], self.critic.levels))
        loss = td_loss(q, target, self.config.td_loss)
        metrics = {"critic_loss": loss.detach(), "target_q_mean": target.mean(-1)}
        penalised, more = self.penalised(loss, values, q)
        self.minimize("critic", penalised)
        if self.config.target_update == "soft":
            self.update_target("critic", self.critic, self.config.tau)
        return metrics | more

    def value_target(self, batch: Batch) -> Tensor:
        """r + gamma (1 - d) Q'(s', argmax Q(s', .)), the smallest of several target critics."""
        next_values = self.target_critic.values(batch["next_obs"])
        chooses = self.critic.values(batch["next_obs"]) if self.config.double else next_values
        best = double_values(chooses, next_values)
        return losses.td_target(batch["rewards"], batch["dones"], best, self.discount(batch))

    def penalised(self, loss: Tensor, values: Tensor, q: Tensor) -> tuple[Tensor, MetricTensors]:
        """What is minimised, and what else is told of it."""
        return loss, {}


def chosen_values(values: Tensor, shares: Tensor) -> Tensor:
    """Q of logged actions: `[*S, E, B, K]`, `[*S, B, K]` of 0 and 1 -> `[*S, E, B]`."""
    return (values * shares.unsqueeze(-3)).sum(-1)


def double_values(chooses: Tensor, values: Tensor) -> Tensor:
    """Values `[*S, B]` of the actions that are best on average for `chooses`, both `[*S, E, B, K]`."""
    best = chooses.mean(-3).argmax(-1, keepdim=True)
    return values.amin(-3).gather(-1, best).squeeze(-1)


def td_loss(q: Tensor, target: Tensor, form: TDLoss) -> Tensor:
    """Sum over critics of the mean error: `[*S, E, B]`, `[*S, B]` -> `[*S]`."""
    if form == "square":
        return losses.critic_mse(q, target)
    losses.check_same_shape(q=q[..., 0, :], target=target)
    return F.huber_loss(q, target.unsqueeze(-2).expand_as(q), reduction="none").mean(-1).sum(-1)


def dqn_loss(inputs: Mapping[str, Any]) -> dict[str, Tensor]:
    """From `q_values` `(B, K)`, `actions` (places) `(B,)` and `target_q_values` `(B,)`; `td_loss` (huber)."""
    values, places = inputs["q_values"], inputs["actions"]
    q = values.gather(-1, places.unsqueeze(-1)).squeeze(-1)
    target = inputs["target_q_values"]
    loss = td_loss(q.unsqueeze(-2), target, inputs.get("td_loss", "huber"))
    return {"critic_loss": loss, "target_q_mean": target.mean(-1)}


class OneNetworkFields(ConfigModel):
    """Settings of an actor of its own are mistakes where values are all there is."""

    @model_validator(mode="after")
    def _there_is_no_actor(self) -> Self:
        for name in type(self).model_fields:
            if name.startswith("actor_") and getattr(self, name) is not None:
                raise ValueError(
                    f"{name} must be null (there is one network, of values), got {getattr(self, name)!r}"
                )
        return self


class DQNRunConfig(DQNConfig, DQNNetworkConfig, OneNetworkFields, OnlineFields, OnlineDataFields):
    """Every setting of a DQN run."""


RECIPE = Recipe(
    "dqn", DQN, MLPDQNModel, DQNRunConfig, title="Double deep Q-learning", papers=("1312.5602", "1509.06461")
)
