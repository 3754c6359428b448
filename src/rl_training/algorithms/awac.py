"""Advantage-Weighted Actor-Critic (Nair et al. 2020, arXiv:2006.09359)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from torch import Tensor

from rl_training.algorithms import advantage
from rl_training.algorithms.advantage import Distribution, SampledAdvantage, SampledAdvantageConfig
from rl_training.algorithms.learner import Noise, NoiseShapes
from rl_training.algorithms.recipe import Recipe
from rl_training.config import setting
from rl_training.config.data import OfflineFields
from rl_training.models.models import AWACNetworkConfig, MLPAWACModel


class AWACConfig(SampledAdvantageConfig):
    """Keywords of AWAC; the defaults are CORL's form."""

    temperature: float = setting(1.0 / 3.0, "lambda: a row weighs exp(advantage / temperature)", gt=0)
    weighting: Literal["exp", "softmax"] = setting(
        "exp", "exp: each row by itself (CORL); softmax: rows of a batch against each other (rlkit)"
    )
    max_advantage_weight: float = setting(100.0, "largest weight of a row with weighting exp", gt=0)
    max_advantage: float | None = setting(
        None, "advantages are cut here before they are weighted (rlkit's clip_score); none: no limit"
    )
    baseline: Literal["sample", "mean_action"] = setting(
        "sample", "V(s): mean Q of n_action_samples drawn actions, or Q of the policy's mean action"
    )
    update_order: Literal["critic_first", "together"] = setting(
        "critic_first", "the actor sees the new critic (CORL), or both losses see the old networks (rlkit)"
    )
    actor_weight_decay: float = setting(0.0, "L2 penalty in the actor's Adam (rlkit: 1e-4)", ge=0)


class AWAC(SampledAdvantage):
    """Off-policy actor-critic whose actor only ever imitates logged actions, the better ones more."""

    config_class = AWACConfig
    config: AWACConfig

    def setup(self) -> None:
        super().setup()
        self.critic_moves_first = self.config.update_order == "critic_first"
        self.optimizers["actor"].weight_decay = self.config.actor_weight_decay

    def noise_shapes(self, batch_size: int) -> NoiseShapes:
        shapes = dict(super().noise_shapes(batch_size))
        if self.config.baseline == "mean_action":
            del shapes["current"]
        return shapes

    def own_actions(self, policy: Distribution, noise: Noise) -> Tensor:
        if self.config.baseline == "sample":
            return super().own_actions(policy, noise)
        return self.actor.mode_of(policy[0]).unsqueeze(-2)

    def weights(self, advantages: Tensor) -> Tensor:
        if self.config.max_advantage is not None:
            advantages = advantages.clamp(max=self.config.max_advantage)
        inverse = 1.0 / self.config.temperature
        if self.config.weighting == "softmax":
            return advantage.softmax_weights(advantages, inverse)
        return advantage.exp_weights(advantages, inverse, self.config.max_advantage_weight)


def awac_loss(inputs: Mapping[str, Tensor | float]) -> dict[str, Tensor]:
    """From `q1_values q2_values target_q_values behavior_logprobs advantage_weights`."""
    return advantage.named_losses(inputs)[1]


class AWACRunConfig(AWACConfig, AWACNetworkConfig, OfflineFields):
    """Every setting of an AWAC run."""


RECIPE = Recipe("awac", AWAC, MLPAWACModel, AWACRunConfig, title="AWAC", papers=("2006.09359",))
