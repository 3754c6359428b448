"""Behaviour cloning: supervised imitation of the logged actions (Pomerleau 1989)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Self

from pydantic import model_validator
from torch import Tensor

from rl_training.algorithms import losses
from rl_training.algorithms.learner import Batch, Learner, LearnerConfig, MetricTensors, Noise, NoiseShapes
from rl_training.algorithms.recipe import Recipe
from rl_training.config.data import OfflineFields
from rl_training.models.actors import DeterministicTanh, StochasticActor
from rl_training.models.models import BCNetworkConfig, MLPBCModel


class BC(Learner):
    """A deterministic actor learns by squared error, any other by the likelihood of the logged actions."""

    uses_rewards: ClassVar[bool] = False
    takes_actions = ("numbers", "choices", "many choices", "mixtures")

    def setup(self) -> None:
        self.actor = self.model.actor
        self.add_optimizer("actor", self.actor.parameters(), "actor")

    def noise_shapes(self, batch_size: int) -> NoiseShapes:
        return {}

    def step(self, batch: Batch, noise: Noise, stage: str) -> MetricTensors:
        loss = self.actor_loss(batch)
        self.minimize("actor", loss)
        return {"actor_loss": loss.detach()}

    def actor_loss(self, batch: Batch) -> Tensor:
        if isinstance(self.actor, DeterministicTanh):
            return imitation_error(self.actor.mode(batch["obs"]), batch["actions"])
        return negative_log_likelihood(
            self.part("actor", StochasticActor).log_prob(batch["obs"], batch["actions"])
        )


def imitation_error(policy_actions: Tensor, actions: Tensor) -> Tensor:
    """Squared error, mean over batch and action dimensions: `[*S, B, A]` twice -> `[*S]`."""
    losses.check_same_shape(policy_actions=policy_actions, actions=actions)
    return (policy_actions - actions).square().mean((-1, -2))


def negative_log_likelihood(logprobs: Tensor) -> Tensor:
    """-E[log pi(a|s)] of logged actions: `[*S, B]` -> `[*S]`."""
    return -logprobs.mean(-1)


def bc_loss(inputs: Mapping[str, Tensor | float]) -> dict[str, Tensor]:
    """From `policy_actions actions`, `(B, A)` each, or `behavior_logprobs` `(B,)` of a stochastic policy."""
    named = losses.named_tensors(inputs)
    if "behavior_logprobs" in named:
        return {"actor_loss": negative_log_likelihood(named["behavior_logprobs"])}
    return {"actor_loss": imitation_error(named["policy_actions"], named["actions"])}


class BCRunConfig(BCNetworkConfig, LearnerConfig, OfflineFields):
    """Every setting of a BC run."""

    @model_validator(mode="after")
    def _there_are_no_critics(self) -> Self:
        for name in type(self).model_fields:
            if name.startswith("critic_") and getattr(self, name) is not None:
                raise ValueError(f"{name} must be null (bc has no critics), got {getattr(self, name)!r}")
        return self


RECIPE = Recipe("bc", BC, MLPBCModel, BCRunConfig, title="Behaviour cloning", papers=())
