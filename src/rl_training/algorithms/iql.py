"""Implicit Q-Learning (Kostrikov et al. 2021, arXiv:2110.06169)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from rl_training.algorithms import advantage, losses
from rl_training.algorithms.advantage import AdvantageConfig, AdvantageWeighted
from rl_training.algorithms.learner import Batch, MetricTensors, Noise, NoiseShapes
from rl_training.algorithms.recipe import Recipe
from rl_training.config import setting
from rl_training.config.data import OfflineFields
from rl_training.models.critics import QEnsemble, StateValue
from rl_training.models.models import IQLNetworkConfig, MLPIQLModel


class IQLConfig(AdvantageConfig):
    """Keywords of IQL."""

    expectile: float = setting(
        0.7, "how far V leans to the best logged actions (0.5: their mean)", gt=0, lt=1
    )
    beta: float = setting(3.0, "inverse temperature: a row weighs exp(beta * advantage)", gt=0)
    max_advantage_weight: float = setting(100.0, "largest weight of a row", gt=0)


class Values(NamedTuple):
    """What judges logged actions by one signal: critics, their targets, and V; named as optimisers are."""

    critic_name: str
    value_name: str
    critic: QEnsemble
    target_critic: QEnsemble
    value: StateValue
    target_metric: str = "target_q"


class IQL(AdvantageWeighted):
    """V is an upper expectile of Q over the logged actions, so no other action is ever evaluated."""

    config_class = IQLConfig
    config: IQLConfig

    def setup(self) -> None:
        super().setup()
        self.value = self.part("value", StateValue)
        self.add_optimizer("value", self.value.parameters(), "critic")
        self.values = Values("critic", "value", self.critic, self.target_critic, self.value)
        self.dropout_size = self.actor.dropout_size

    def noise_shapes(self, batch_size: int) -> NoiseShapes:
        return {"dropout": ("uniform", (batch_size, self.dropout_size))} if self.dropout_size else {}

    def step(self, batch: Batch, noise: Noise, stage: str) -> MetricTensors:
        """V, Q, target, actor: Q and actor see the new V, all see the old target Q (the official code)."""
        advantages, metrics = self.learn_values(self.values, batch, batch["rewards"])
        actor_loss, of_actor = self.actor_loss(self.data_logprobs(batch, noise), advantages)
        self.minimize("actor", actor_loss)
        return of_actor | metrics

    def learn_values(self, of: Values, batch: Batch, rewards: Tensor) -> tuple[Tensor, MetricTensors]:
        """One update of V, Q and target Q on `rewards`; the advantages of the logged actions, `[*S, B]`."""
        with torch.no_grad():
            q = losses.reduce_critics(of.target_critic(batch["obs"], batch["actions"]), "min")
        value_loss = self.value_loss(batch, q, of.value)
        self.minimize(of.value_name, value_loss)
        with torch.no_grad():
            both = of.value(torch.cat([batch["obs"], batch["next_obs"]], dim=-2))
            value, next_value = both.chunk(2, dim=-1)
            target = losses.td_target(rewards, batch["dones"], next_value, self.discount(batch))
        critic_loss = losses.critic_mse(of.critic(batch["obs"], batch["actions"]), target)
        self.minimize(of.critic_name, critic_loss)
        self.update_target(of.critic_name, of.critic, self.config.tau)
        return q - value, {
            f"{of.critic_name}_loss": critic_loss.detach(),
            f"{of.value_name}_loss": value_loss.detach(),
            f"{of.target_metric}_mean": target.mean(-1),
        }

    def value_loss(self, batch: Batch, q: Tensor, value: StateValue) -> Tensor:
        """V(s) towards the upper expectile of the logged actions' values `[*S, B]`."""
        return advantage.expectile_loss(q - value(batch["obs"]), self.config.expectile)

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
