"""Implicit Q-Learning (Kostrikov et al. 2021, arXiv:2110.06169)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from rl_training.algorithms import advantage, losses
from rl_training.algorithms.advantage import AdvantageConfig, AdvantageWeighted
from rl_training.algorithms.learner import Batch, MetricTensors, Noise, NoiseShapes
from rl_training.algorithms.recipe import Recipe
from rl_training.config import setting
from rl_training.config.data import OfflineFields
from rl_training.models.critics import StateValue
from rl_training.models.models import IQLNetworkConfig, MLPIQLModel


class IQLConfig(AdvantageConfig):
    """Keywords of IQL."""

    expectile: float = setting(
        0.7, "how far V leans to the best logged actions (0.5: their mean)", gt=0, lt=1
    )
    beta: float = setting(3.0, "inverse temperature: a row weighs exp(beta * advantage)", gt=0)
    max_advantage_weight: float = setting(100.0, "largest weight of a row", gt=0)


class IQL(AdvantageWeighted):
    """V is an upper expectile of Q over the logged actions, so no other action is ever evaluated."""

    config_class = IQLConfig
    config: IQLConfig

    def setup(self) -> None:
        super().setup()
        self.value = self.part("value", StateValue)
        self.add_optimizer("value", self.value.parameters(), "critic")
        self.dropout_size = self.actor.dropout_size

    def noise_shapes(self, batch_size: int) -> NoiseShapes:
        return {"dropout": ("uniform", (batch_size, self.dropout_size))} if self.dropout_size else {}

    def step(self, batch: Batch, noise: Noise, stage: str) -> MetricTensors:
        """V, actor, Q, target, as the official code: actor and Q see the new V, all see the old target Q."""
        with torch.no_grad():
            q = losses.reduce_critics(self.target_critic(batch["obs"], batch["actions"]), "min")
        value_loss = self.value_loss(batch, q)
        self.minimize("value", value_loss)
        with torch.no_grad():
            both = self.value(torch.cat([batch["obs"], batch["next_obs"]], dim=-2))
            value, next_value = both.chunk(2, dim=-1)
            target = losses.td_target(batch["rewards"], batch["dones"], next_value, self.discount(batch))
        actor_loss, metrics = self.actor_loss(self.data_logprobs(batch, noise), q - value)
        self.minimize("actor", actor_loss)
        critic_loss, _ = self.critic_loss(batch, target)
        self.minimize("critic", critic_loss)
        self.update_target("critic", self.critic, self.config.tau)
        return metrics | {
            "critic_loss": critic_loss.detach(),
            "value_loss": value_loss.detach(),
            "target_q_mean": target.mean(-1),
        }

    def value_loss(self, batch: Batch, q: Tensor) -> Tensor:
        """V(s) towards the upper expectile of the logged actions' values `[*S, B]`."""
        return advantage.expectile_loss(q - self.value(batch["obs"]), self.config.expectile)

    def weights(self, advantages: Tensor) -> Tensor:
        return advantage.exp_weights(advantages, self.config.beta, self.config.max_advantage_weight)

    def data_logprobs(self, batch: Batch, noise: Noise) -> Tensor:
        """log pi of the logged actions, `[*S, B]`."""
        return self.actor.log_prob(batch["obs"], batch["actions"], noise.get("dropout"))


def iql_loss(inputs: Mapping[str, Tensor | float]) -> dict[str, Tensor]:
    """From `q1_values q2_values target_q_values value_predictions target_state_values behavior_logprobs
    advantage_weights`, and `expectile` (0.7 if left out).

    `target_state_values` is what V is fitted to: the smallest target Q of the logged action.
    """
    named, shared = advantage.named_losses(inputs)
    errors = named["target_state_values"] - named["value_predictions"]
    expectile = named.get("expectile", torch.tensor(0.7, dtype=errors.dtype))
    return shared | {"value_loss": advantage.expectile_loss(errors, expectile)}


class IQLRunConfig(IQLConfig, IQLNetworkConfig, OfflineFields):
    """Every setting of an IQL run."""


RECIPE = Recipe("iql", IQL, MLPIQLModel, IQLRunConfig, title="Implicit Q-learning", papers=("2110.06169",))
