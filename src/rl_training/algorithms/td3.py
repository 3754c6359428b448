"""TD3 (Fujimoto et al. 2018, arXiv:1802.09477): twin critics, a smoothed target, a delayed actor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from rl_training.algorithms import losses
from rl_training.algorithms.learner import Batch, Learner, LearnerConfig, MetricTensors, Noise, NoiseShapes
from rl_training.algorithms.losses import values_of
from rl_training.algorithms.recipe import Recipe
from rl_training.config import setting
from rl_training.config.data import OnlineDataFields
from rl_training.config.run import OnlineFields
from rl_training.models.actors import Actor, DeterministicTanh, NoisyActor
from rl_training.models.models import MLPTD3Model
from rl_training.models.networks import NetworkConfig


class TD3Config(LearnerConfig):
    """Keywords of TD3, extended by the algorithms that build on it."""

    tau: float = setting(
        0.005, "share of critic and actor that their targets take over per actor update", gt=0, le=1
    )
    policy_noise: float = setting(0.2, "standard deviation of the noise on the target's next action", ge=0)
    noise_clip: float = setting(0.5, "largest size of that noise", ge=0)
    policy_delay: int = setting(2, "actor and targets: one update in this many critic updates", ge=1)
    exploration_noise: float = setting(
        0.1, "standard deviation of the noise on random actions; 0: they are the deterministic ones", ge=0
    )


class TD3(Learner):
    """Twin critics, a target actor with clipped noise, and an actor that climbs the first critic."""

    config_class = TD3Config
    config: TD3Config
    delayed_metrics: ClassVar[tuple[str, ...]] = ("actor_loss",)
    targets_move_first: ClassVar[bool] = False
    """Whether the target actor takes its share of the actor before the actor's step, or after it."""

    def setup(self) -> None:
        self.actor = self.part("actor", DeterministicTanh)
        self.target_actor = self.add_target("actor", self.actor)
        self.critic, self.target_critic = self.add_critic()
        self.add_optimizer("actor", self.actor.parameters(), "actor")

    def acting(self) -> Actor:
        """The actor itself draws nothing: where random actions are wanted, noise is added."""
        sigma = self.config.exploration_noise
        return NoisyActor(self.actor, sigma) if sigma else self.actor

    def noise_shapes(self, batch_size: int) -> NoiseShapes:
        return {"next": ("normal", (batch_size, self.model.action_dim))}

    def stage(self) -> str:
        return "full" if (self.updates + 1) % self.config.policy_delay == 0 else "critic"

    def step(self, batch: Batch, noise: Noise, stage: str) -> MetricTensors:
        with torch.no_grad():
            target = self.value_target(batch, noise)
        critic_loss = losses.critic_mse(self.critic(batch["obs"], batch["actions"]), target)
        self.minimize("critic", critic_loss)
        metrics = {"critic_loss": critic_loss.detach(), "target_q_mean": target.mean(-1)}
        if stage == "full":
            actor_loss, actor_metrics = self.actor_loss(batch)
            if self.targets_move_first:
                self.move_targets()
            self.minimize("actor", actor_loss)
            if not self.targets_move_first:
                self.move_targets()
            metrics |= actor_metrics
        return metrics

    def move_targets(self) -> None:
        self.update_target("critic", self.critic, self.config.tau)
        self.update_target("actor", self.actor, self.config.tau)

    def value_target(self, batch: Batch, noise: Noise) -> Tensor:
        """r + gamma (1 - d) min Q(s', a'), a' the target actor's action with clipped noise."""
        next_actions = smoothed_actions(
            self.target_actor.mode(batch["next_obs"]),
            noise["next"],
            self.config.policy_noise,
            self.config.noise_clip,
        )
        next_value = self.next_value(batch, next_actions)
        return losses.td_target(batch["rewards"], batch["dones"], next_value, self.discount(batch))

    def next_value(self, batch: Batch, next_actions: Tensor) -> Tensor:
        """What the target takes the next state to be worth, `[*S, B]`."""
        return losses.reduce_critics(self.target_critic(batch["next_obs"], next_actions), "min")

    def actor_loss(self, batch: Batch) -> tuple[Tensor, MetricTensors]:
        actions = self.actor.mode(batch["obs"])
        loss, parts = self.policy_loss(self.actor_value(batch["obs"], actions), actions, batch)
        return loss, {"actor_loss": loss.detach(), **parts}

    def actor_value(self, obs: Tensor, actions: Tensor) -> Tensor:
        """The value that the actor climbs, `[*S, B]`: the first critic's alone."""
        return values_of(self.critic, lambda p: p.narrow(-3, 0, 1), obs, actions).squeeze(-2)

    def policy_loss(self, q: Tensor, actions: Tensor, batch: Batch) -> tuple[Tensor, MetricTensors]:
        """Loss `[*S]` of actions with the values `q`, and metrics of its parts."""
        return value_loss(q), {}


class PulledTD3(TD3):
    """TD3 that is drawn to logged actions, by a pull that fades in a line over an online phase."""

    def setup(self) -> None:
        super().setup()
        self.pull = torch.ones((), device=self.device)

    def go_online(self, progress: float) -> None:
        super().go_online(progress)
        self.pull.fill_(1.0 - progress)


def smoothed_actions(actions: Tensor, noise: Tensor, policy_noise: float, noise_clip: float) -> Tensor:
    """clip(a + clip(sigma * noise, -c, c), -1, 1): similar actions should have similar values (TD3)."""
    return (actions + (policy_noise * noise).clamp(-noise_clip, noise_clip)).clamp(-1.0, 1.0)


def value_loss(q: Tensor) -> Tensor:
    """-E[Q(s, pi(s))]: `[*S, B]` -> `[*S]`."""
    return -q.mean(-1)


def td3_loss(inputs: Mapping[str, Tensor | float]) -> dict[str, Tensor]:
    """From `q1_values q2_values target_q_values actor_q_values`.

    `actor_q_values` are the first critic's at the policy's actions.
    """
    named = losses.named_tensors(inputs)
    return losses.twin_losses(named) | {"actor_loss": value_loss(named["actor_q_values"])}


class TD3RunConfig(TD3Config, NetworkConfig, OnlineFields, OnlineDataFields):
    """Every setting of a TD3 run."""


RECIPE = Recipe("td3", TD3, MLPTD3Model, TD3RunConfig, title="Twin delayed DDPG", papers=("1802.09477",))
