"""ReBRAC (Tarasov et al. 2023, arXiv:2305.09836): TD3 drawn to the data in the actor and in the target."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from rl_training.algorithms import losses
from rl_training.algorithms.learner import Batch, MetricTensors
from rl_training.algorithms.recipe import Recipe
from rl_training.algorithms.td3 import PulledTD3, TD3Config
from rl_training.algorithms.td3_bc import weighted_actor_loss
from rl_training.config import setting
from rl_training.config.data import OfflineFields
from rl_training.core.schema import MAX_BATCH
from rl_training.models.models import MLPReBRACModel, ReBRACNetworkConfig


class ReBRACConfig(TD3Config):
    """Keywords of ReBRAC beside TD3's."""

    learning_rate: float = setting(1e-3, "Adam step size of every network", gt=0)
    actor_bc_coef: float = setting(
        0.01, "weight of |pi(s) - a|^2, summed over action dimensions, in the actor's loss", ge=0
    )
    critic_bc_coef: float = setting(
        0.01, "weight of |a' - next logged action|^2, taken off the next state's value in the target", ge=0
    )
    normalize_q: bool = setting(True, "divide the values in the actor's loss by their mean absolute size")
    exploration_noise: float = setting(
        0.03, "standard deviation of the noise on random actions; 0: they are the deterministic ones", ge=0
    )


class ReBRAC(PulledTD3):
    """TD3 with a pull in both losses; the actor climbs the lowest critic."""

    config_class = ReBRACConfig
    config: ReBRACConfig
    needs = frozenset({"next_actions"})
    delayed_metrics = ("actor_loss", "bc_loss", "q_weight")
    targets_move_first = True  # as the authors

    def online_needs(self) -> frozenset[str]:
        return frozenset()

    def next_value(self, batch: Batch, next_actions: Tensor) -> Tensor:
        """Offline less the penalty; online nothing is taken off (as the authors)."""
        if self.online:
            return super().next_value(batch, next_actions)
        penalty = squared_distance(next_actions, batch["next_actions"])
        return penalised_value(super().next_value(batch, next_actions), penalty, self.config.critic_bc_coef)

    def actor_value(self, obs: Tensor, actions: Tensor) -> Tensor:
        return losses.reduce_critics(self.critic(obs, actions), "min")

    def policy_loss(self, q: Tensor, actions: Tensor, batch: Batch) -> tuple[Tensor, MetricTensors]:
        penalty = squared_distance(actions, batch["actions"]).mean(-1)
        weight = losses.value_weight(q, 1.0) if self.config.normalize_q else torch.ones_like(penalty)
        loss = weighted_actor_loss(q, self.config.actor_bc_coef * self.pull * penalty, weight)
        return loss, {"bc_loss": penalty.detach(), "q_weight": weight}


def squared_distance(actions: Tensor, logged: Tensor) -> Tensor:
    """|a - a_data|^2, summed over action dimensions: `[*S, B, A]` twice -> `[*S, B]`."""
    losses.check_same_shape(actions=actions, logged=logged)
    return (actions - logged).square().sum(-1)


def penalised_value(next_q: Tensor, penalty: Tensor, critic_bc_coef: float | Tensor) -> Tensor:
    """min Q(s', a') - beta_2 |a' - a'_data|^2: `[*S, B]` twice -> `[*S, B]`."""
    losses.check_same_shape(next_q=next_q, penalty=penalty)
    return next_q - critic_bc_coef * penalty


def rebrac_loss(inputs: Mapping[str, Tensor | float]) -> dict[str, Tensor]:
    """From `q1_values q2_values target_q_values actor_q1_values actor_q2_values policy_actions actions`.

    `actor_q1_values`, `actor_q2_values` are taken at the policy's actions. Optional: `actor_bc_coef` (0.01)
    and `normalize_q` (true).
    """
    named = losses.named_tensors(inputs)
    q = torch.minimum(named["actor_q1_values"], named["actor_q2_values"])
    penalty = squared_distance(named["policy_actions"], named["actions"]).mean(-1)
    weight = losses.value_weight(q, 1.0) if inputs.get("normalize_q", True) else torch.ones_like(penalty)
    pull = inputs.get("actor_bc_coef", 0.01) * penalty
    return losses.twin_losses(named) | {
        "actor_loss": weighted_actor_loss(q, pull, weight),
        "bc_loss": penalty,
        "q_weight": weight,
    }


class ReBRACRunConfig(ReBRACConfig, ReBRACNetworkConfig, OfflineFields):
    """Every setting of a ReBRAC run."""

    batch_size: int = setting(1024, "transitions per gradient update", ge=1, most=MAX_BATCH)


RECIPE = Recipe("rebrac", ReBRAC, MLPReBRACModel, ReBRACRunConfig, title="ReBRAC", papers=("2305.09836",))
