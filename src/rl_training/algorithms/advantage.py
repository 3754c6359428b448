"""Advantage-weighted regression: the losses and the learner that IQL, AWAC and CRR have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from rl_training.algorithms import losses
from rl_training.algorithms.learner import Batch, Learner, LearnerConfig, MetricTensors, Noise, NoiseShapes
from rl_training.config import setting
from rl_training.core.schema import MAX_SAMPLES
from rl_training.core.spaces import ActionKind
from rl_training.models.actors import StochasticActor, draw, draw_many, lowest_values


def expectile_loss(errors: Tensor, expectile: float | Tensor) -> Tensor:
    """mean |tau - 1[u < 0]| u^2, u = target - prediction (Kostrikov et al. 2021, eq. 5): `[*S, B]` -> `[*S]`.

    Above 0.5 the prediction settles above the mean of its targets; at 0.5 this is half the squared error.
    """
    below = (errors < 0).to(errors.dtype)
    return ((expectile - below).abs() * errors.square()).mean(-1)


def exp_weights(advantages: Tensor, inverse_temperature: float, max_weight: float) -> Tensor:
    """min(exp(A * inverse_temperature), max_weight). An overflow to infinity ends at the limit too."""
    return (advantages.detach() * inverse_temperature).exp().clamp(max=max_weight)


def softmax_weights(advantages: Tensor, inverse_temperature: float) -> Tensor:
    """B softmax over the batch: weights of mean one, blind to a constant added to all advantages."""
    share = torch.softmax(advantages.detach() * inverse_temperature, dim=-1)
    return share * advantages.shape[-1]


def binary_weights(advantages: Tensor) -> Tensor:
    """1 where the advantage is positive, else 0 (an advantage of zero counts as no gain)."""
    return (advantages.detach() > 0).to(advantages.dtype)


def weighted_regression(logprobs: Tensor, weights: Tensor) -> Tensor:
    """-mean w log pi(a|s) over logged actions: `[*S, B]` -> `[*S]`."""
    losses.check_same_shape(logprobs=logprobs, weights=weights)
    return -(weights.detach() * logprobs).mean(-1)


def regression_metrics(logprobs: Tensor, weights: Tensor, advantages: Tensor) -> dict[str, Tensor]:
    """What all three report about the actor's regression."""
    return {
        "advantage_mean": advantages.detach().mean(-1),
        "advantage_weight_mean": weights.detach().mean(-1),
        "behavior_logprob_mean": logprobs.detach().mean(-1),
    }


def named_losses(inputs: Mapping[str, Tensor | float]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """For the `<algo>_loss` helpers: their inputs as tensors, and the losses that they share.

    From `q1_values q2_values target_q_values behavior_logprobs advantage_weights`.
    """
    named = losses.named_tensors(inputs)
    return named, losses.twin_losses(named) | {
        "actor_loss": weighted_regression(named["behavior_logprobs"], named["advantage_weights"]),
        "advantage_weight_mean": named["advantage_weights"].mean(-1),
    }


Distribution = tuple[Tensor, Tensor]
"""Mean and log std of a policy in the states of a batch."""


class AdvantageConfig(LearnerConfig):
    """Keywords of the family."""

    tau: float = setting(0.005, "share of the critic that the target takes over per update", gt=0, le=1)


class AdvantageWeighted(Learner):
    """Critic regression and weighted imitation; where values and weights come from is left open."""

    config_class = AdvantageConfig
    config: AdvantageConfig
    takes_actions: ClassVar[tuple[ActionKind, ...]] = ("numbers", "choices", "many choices", "mixtures")

    def setup(self) -> None:
        self.actor = self.learned_actor()
        self.critic, self.target_critic = self.add_critic()
        self.add_optimizer("actor", self.actor.parameters(), "actor")

    def learned_actor(self) -> StochasticActor:
        """What imitates the logged actions."""
        return self.part("actor", StochasticActor)

    @abstractmethod
    def weights(self, advantages: Tensor) -> Tensor:
        """How much each row counts, `[*S, B]`."""

    def critic_loss(self, batch: Batch, target: Tensor) -> tuple[Tensor, Tensor]:
        """Loss `[*S]` and the critics' values `[*S, E, B]` of the logged actions."""
        q = self.critic(batch["obs"], batch["actions"])
        return losses.critic_mse(q, target), q.detach()

    def actor_loss(self, logprobs: Tensor, advantages: Tensor) -> tuple[Tensor, MetricTensors]:
        """From log pi of the logged actions and their advantages, both `[*S, B]`."""
        weights = self.weights(advantages)
        loss = weighted_regression(logprobs, weights)
        metrics = regression_metrics(logprobs, weights, advantages)
        return loss, metrics | {"actor_loss": loss.detach()}


class SampledAdvantageConfig(AdvantageConfig):
    """Keywords of AWAC and CRR."""

    n_action_samples: int = setting(1, "actions drawn per state for the baseline", ge=1, most=MAX_SAMPLES)


class SampledAdvantage(AdvantageWeighted):
    """A(s, a) = Q(s, a) - a baseline from the policy's own actions, minimum over critics (AWAC, CRR)."""

    config_class = SampledAdvantageConfig
    config: SampledAdvantageConfig
    critic_moves_first: bool
    """Whether the advantage sees this update's critic or the one before it."""

    def setup(self) -> None:
        super().setup()
        self.next_actor = self.actor

    def noise_shapes(self, batch_size: int) -> NoiseShapes:
        action = self.model.action_dim
        samples = (batch_size, self.config.n_action_samples, action)
        return {"next": ("normal", (batch_size, action)), "current": ("normal", samples)}

    def step(self, batch: Batch, noise: Noise, stage: str) -> MetricTensors:
        with torch.no_grad():
            target = self.value_target(batch, noise)
        critic_loss, q = self.critic_loss(batch, target)
        gradients = self.gradients("critic", critic_loss)
        policy = self.actor.distribution(batch["obs"])  # once, to draw from and to imitate with
        with torch.no_grad():
            if self.critic_moves_first:
                self.optimizers["critic"].apply(gradients)
            advantages = self.advantages(batch, policy, noise, None if self.critic_moves_first else q)
        actor_loss, metrics = self.actor_loss(self.actor.density(batch["actions"], *policy), advantages)
        self.minimize("actor", actor_loss)
        if not self.critic_moves_first:
            self.optimizers["critic"].apply(gradients)
        self.move_targets()
        return metrics | {"critic_loss": critic_loss.detach(), "target_q_mean": target.mean(-1)}

    def value_target(self, batch: Batch, noise: Noise) -> Tensor:
        """r + gamma (1 - d) min Q(s', a') with target critics, one drawn a' and no entropy term."""
        next_actions = draw(self.next_actor, self.next_actor.distribution(batch["next_obs"]), noise["next"])
        next_q = losses.reduce_critics(self.target_critic(batch["next_obs"], next_actions), "min")
        return losses.td_target(batch["rewards"], batch["dones"], next_q, self.discount(batch))

    def advantages(self, batch: Batch, policy: Distribution, noise: Noise, q: Tensor | None) -> Tensor:
        """Of the logged actions; `q` `[*S, E, B]` are their values, unless the critics have moved since."""
        obs, drawn = batch["obs"], self.own_actions(policy, noise)
        if q is not None:
            return losses.reduce_critics(q, "min") - self.baseline(lowest_values(self.critic, obs, drawn))
        values = lowest_values(self.critic, obs, torch.cat([batch["actions"].unsqueeze(-2), drawn], dim=-2))
        return values[..., 0] - self.baseline(values[..., 1:])

    def own_actions(self, policy: Distribution, noise: Noise) -> Tensor:
        """Actions of the policy in the batch's states, `[*S, B, N, A]`."""
        return draw_many(self.actor, policy, noise["current"])

    def baseline(self, values: Tensor) -> Tensor:
        """V(s) from `[*S, B, N]` values of sampled actions."""
        return values.mean(-1)

    def move_targets(self) -> None:
        self.update_target("critic", self.critic, self.config.tau)
