"""Soft Actor-Critic (Haarnoja et al. 2018, arXiv:1801.01290 and 1812.05905)."""

from __future__ import annotations

from collections.abc import Mapping
from math import log, prod
from typing import ClassVar, Literal

import torch
from torch import Tensor

from rl_training.algorithms import losses
from rl_training.algorithms.learner import Batch, Learner, LearnerConfig, MetricTensors, Noise, NoiseShapes
from rl_training.algorithms.recipe import Recipe
from rl_training.config import setting
from rl_training.config.data import OnlineDataFields
from rl_training.config.run import OnlineFields
from rl_training.core.spaces import ActionKind
from rl_training.models.actors import StochasticActor
from rl_training.models.choices import LevelCritics, joint_log_probabilities
from rl_training.models.critics import QEnsemble
from rl_training.models.models import MLPSACModel, SACNetworkConfig

USUAL_ENTROPY = 0.5
"""Share of the largest entropy, that of uniform levels, at which alpha aims of itself."""


class SACConfig(LearnerConfig):
    """Keywords of SAC, extended by the algorithms that build on it."""

    tau: float = setting(0.005, "share of the critic that the target takes over per update", gt=0, le=1)
    alpha: float | Literal["auto"] = setting(
        "auto",
        "entropy temperature: a number is fixed, auto is learned from target_entropy (start 1.0)",
        ge=0,
    )
    target_entropy: float | None = setting(
        None, "entropy that alpha aims at; none: minus the action size, of choices half of the largest one"
    )
    temperature_loss: Literal["log", "exp"] = setting(
        "log", "alpha's loss: log (common code) or exp (the paper's equation); same direction, other scale"
    )
    actor_reduce: losses.Reduction = setting("min", "the actor climbs the minimum or mean of the critics")
    policy_delay: int = setting(1, "actor, temperature: one update in this many critic updates", ge=1)


class SAC(Learner):
    """Off-policy maximum-entropy actor-critic with clipped double Q and a learned temperature.

    Where actions are choices, expectations over them are sums and nothing is drawn (arXiv:1910.07207).
    """

    config_class = SACConfig
    config: SACConfig
    takes_actions: ClassVar[tuple[ActionKind, ...]] = ("numbers", "choices")
    critic_moves_first: ClassVar[bool] = True
    """Whether the actor's gradient sees this update's critic (SAC's order) or the one before it."""

    def setup(self) -> None:
        self.actor = self.model.actor
        self.critic, self.target_critic = self.add_critic()
        self.add_optimizer("actor", self.actor.parameters(), "actor")
        self.levels = self.model.spaces.levels if self.model.spaces.kind == "choices" else ()
        entropy = self.config.target_entropy
        usual = USUAL_ENTROPY * log(prod(self.levels)) if self.levels else -float(self.model.action_dim)
        self.target_entropy = usual if entropy is None else entropy
        self.learns_alpha = self.config.alpha == "auto"
        if self.learns_alpha:
            self.log_alpha = torch.zeros((), device=self.device, requires_grad=True)
            self.scalars["log_alpha"] = self.log_alpha
            self.add_optimizer("alpha", [self.log_alpha], "actor")
        else:
            self.fixed_alpha = torch.full((1,), float(self.config.alpha), device=self.device)

    def noise_shapes(self, batch_size: int) -> NoiseShapes:
        shape = (batch_size, self.model.action_dim)
        return {} if self.levels else {"next": ("normal", shape), "current": ("normal", shape)}

    def stage(self) -> str:
        # The last update of each round of `policy_delay` moves the actor.
        return "full" if (self.updates + 1) % self.config.policy_delay == 0 else "critic"

    def step(self, batch: Batch, noise: Noise, stage: str) -> MetricTensors:
        alpha = self.alpha()
        critic_loss, metrics = self.critic_loss(batch, noise)
        critic_gradients = self.gradients("critic", critic_loss)
        if self.critic_moves_first:
            self.optimizers["critic"].apply(critic_gradients)
        if stage != "critic":
            actor_loss, logprobs = self.actor_loss(batch, noise, stage)
            self.minimize("actor", actor_loss)
            if self.learns_alpha:
                self.minimize("alpha", self.alpha_loss(logprobs, batch["obs"]))
            entropy_term = (alpha * logprobs.detach()).mean(-1)
            metrics |= {"actor_loss": actor_loss.detach(), "entropy_term": entropy_term}
        if not self.critic_moves_first:
            self.optimizers["critic"].apply(critic_gradients)
        self.update_target("critic", self.critic, self.config.tau)
        used_alpha = alpha.squeeze(-1).expand_as(critic_loss)
        return metrics | {"critic_loss": critic_loss.detach(), "alpha": used_alpha}

    def alpha(self) -> Tensor:
        """The temperature as a constant that broadcasts over the batch, `[*S, 1]`."""
        return self.log_alpha.detach().exp().unsqueeze(-1) if self.learns_alpha else self.fixed_alpha

    def critic_loss(self, batch: Batch, noise: Noise) -> tuple[Tensor, MetricTensors]:
        """Regression of every critic on the soft Bellman target (eq. 5)."""
        with torch.no_grad():
            target = self.value_target(batch, noise)
        q = self.critic(batch["obs"], batch["actions"])
        return losses.critic_mse(q, target), {"target_q_mean": target.mean(-1)}

    def value_target(self, batch: Batch, noise: Noise) -> Tensor:
        """r + gamma (1 - d) V(s'), the next action drawn from the online actor, or all of them weighed."""
        if self.levels:
            q, logprobs = self.each_level(self.target_critic, batch["next_obs"], "min")
            next_value = losses.expected_soft_value(q, logprobs, self.alpha())
        else:
            next_actions, logprobs = self.actor(batch["next_obs"], noise["next"])
            next_q = losses.reduce_critics(self.target_critic(batch["next_obs"], next_actions), "min")
            next_value = losses.soft_value(next_q, logprobs, self.alpha())
        return losses.td_target(batch["rewards"], batch["dones"], next_value, self.discount(batch))

    def actor_loss(self, batch: Batch, noise: Noise, stage: str) -> tuple[Tensor, Tensor]:
        """Loss `[*S]` and the log-probabilities `[*S, B]` of the actions it was taken at, or their mean."""
        if self.levels:
            q, logprobs = self.each_level(self.critic, batch["obs"], self.config.actor_reduce)
            value = losses.expected_soft_value(q.detach(), logprobs, self.alpha())
            return -value.mean(-1), (logprobs.exp() * logprobs).sum(0)
        actions, logprobs = self.actor(batch["obs"], noise["current"])
        value = self.actor_value(batch["obs"], actions)
        return losses.soft_actor_loss(value, logprobs, self.alpha()), logprobs

    def each_level(self, critic: QEnsemble, obs: Tensor, how: losses.Reduction) -> tuple[Tensor, Tensor]:
        """Values and log-probabilities of every combination of levels, both `[K, *S, B]`."""
        assert isinstance(critic, LevelCritics) and isinstance(self.actor, StochasticActor)
        logprobs = joint_log_probabilities(self.actor.distribution(obs)[0], self.levels)
        return losses.reduce_critics(critic.values(obs).movedim(-1, 0), how), logprobs.movedim(-1, 0)

    def actor_value(self, obs: Tensor, actions: Tensor) -> Tensor:
        return losses.reduce_critics(self.critic(obs, actions), self.config.actor_reduce)

    def alpha_loss(self, logprobs: Tensor, obs: Tensor) -> Tensor:
        target: float | Tensor = self.target_entropy
        if self.levels and self.model.spaces.masked and self.config.target_entropy is None:
            assert isinstance(self.critic, LevelCritics)  # of as many levels as may be taken in a state
            target = USUAL_ENTROPY * self.critic.allowed(obs).sum(-1).to(logprobs.dtype).log()
        return losses.temperature_loss(self.log_alpha, logprobs, target, self.config.temperature_loss)


def sac_loss(inputs: Mapping[str, Tensor | float]) -> dict[str, Tensor]:
    """From `q1_values q2_values target_q_values sampled_logprobs sampled_q1 sampled_q2 alpha`."""
    named = losses.named_tensors(inputs)
    lowest = torch.minimum(named["sampled_q1"], named["sampled_q2"])
    return losses.twin_losses(named) | losses.soft_policy_losses(named, lowest)


class SACRunConfig(SACConfig, SACNetworkConfig, OnlineFields, OnlineDataFields):
    """Every setting of a SAC run."""


RECIPE = Recipe(
    "sac", SAC, MLPSACModel, SACRunConfig, title="Soft actor-critic", papers=("1801.01290", "1812.05905")
)
