"""Critic Regularized Regression (Wang et al. 2020, arXiv:2006.15134)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from torch import Tensor

from rl_training.algorithms import advantage
from rl_training.algorithms.advantage import SampledAdvantage, SampledAdvantageConfig
from rl_training.algorithms.learner import Batch, UpdateResult
from rl_training.algorithms.recipe import Recipe
from rl_training.config import setting
from rl_training.config.data import OfflineFields
from rl_training.core.schema import MAX_SAMPLES
from rl_training.models.actors import Actor, CriticWeighted
from rl_training.models.models import MLPSACModel, SACNetworkConfig


class CRRConfig(SampledAdvantageConfig):
    """Keywords of CRR."""

    advantage_type: Literal["mean", "max"] = setting(
        "mean", "baseline: mean or maximum of Q over n_action_samples actions of the policy"
    )
    weight_type: Literal["binary", "exp"] = setting(
        "exp", "a row weighs 1 if its advantage is positive (else 0), or exp(advantage / beta)"
    )
    beta: float = setting(1.0, "temperature of the exp weights and of the critic-weighted policy", gt=0)
    n_action_samples: int = setting(4, "actions drawn per state for the baseline", ge=1, most=MAX_SAMPLES)
    max_weight: float = setting(20.0, "largest weight of a row with weight_type exp", gt=0)
    target_update: Literal["hard", "soft"] = setting(
        "hard", "targets: a copy every target_update_interval updates, or a share tau at each"
    )
    target_update_interval: int = setting(100, "updates between two copies (hard)", ge=1)
    act_with_target: bool = setting(True, "act with the target actor and critics, as acme")
    critic_weighted: bool = setting(
        False, "stochastic actions: draw n_action_samples, keep one with probability softmax(Q / beta)"
    )


class CRR(SampledAdvantage):
    """Imitation filtered by the critic; targets use slow copies of the actor and of the critics."""

    config_class = CRRConfig
    config: CRRConfig
    critic_moves_first = False

    def setup(self) -> None:
        super().setup()
        self.target_actor = self.add_target("actor", self.actor)
        self.next_actor = self.target_actor  # AWAC and SAC have no copy of their actor

    def update(self, batch: Batch, *, global_step: int) -> UpdateResult:
        result = super().update(batch, global_step=global_step)
        if self.config.target_update == "hard" and self.updates % self.config.target_update_interval == 0:
            # Outside of the step: a copy now and then is not worth a second compiled graph.
            self.pull_targets(1.0)
        return result

    def move_targets(self) -> None:
        if self.config.target_update == "soft":
            self.pull_targets(self.config.tau)

    def pull_targets(self, tau: float) -> None:
        self.update_target("critic", self.critic, tau)
        self.update_target("actor", self.actor, tau)

    def baseline(self, values: Tensor) -> Tensor:
        return values.amax(-1) if self.config.advantage_type == "max" else values.mean(-1)

    def weights(self, advantages: Tensor) -> Tensor:
        if self.config.weight_type == "binary":
            return advantage.binary_weights(advantages)
        return advantage.exp_weights(advantages, 1.0 / self.config.beta, self.config.max_weight)

    def acting(self) -> Actor:
        """The target networks' policy as acme, or the live one; with the critic's choice where asked for."""
        target = self.config.act_with_target
        actor = self.target_actor if target else self.actor
        if not self.config.critic_weighted:
            return actor
        critic = self.target_critic if target else self.critic
        return CriticWeighted(actor, critic, self.config.n_action_samples, self.config.beta)


def crr_loss(inputs: Mapping[str, Tensor | float]) -> dict[str, Tensor]:
    """From `q1_values q2_values target_q_values behavior_logprobs advantages advantage_weights`."""
    named, shared = advantage.named_losses(inputs)
    logprobs, weights = named["behavior_logprobs"], named["advantage_weights"]
    return shared | advantage.regression_metrics(logprobs, weights, named["advantages"])


class CRRRunConfig(CRRConfig, SACNetworkConfig, OfflineFields):
    """Every setting of a CRR run."""


RECIPE = Recipe(
    "crr", CRR, MLPSACModel, CRRRunConfig, title="Critic regularized regression", papers=("2006.15134",)
)
