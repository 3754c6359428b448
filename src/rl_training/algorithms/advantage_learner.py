"""What IQL, AWAC and CRR share as learners: regressed critics with a target, and an actor that imitates the
logged actions, each weighted by its advantage."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, cast

import torch
from torch import Tensor

from rl_training.algorithms import advantage_weights, losses
from rl_training.algorithms.learner import Batch, Learner, LearnerConfig, Losses, Noise, NoiseShapes
from rl_training.experiment.config import setting
from rl_training.models.critics import QEnsemble
from rl_training.models.gaussian_policies import UnboundedGaussian
from rl_training.models.policies import SquashedGaussian

Policy = SquashedGaussian | UnboundedGaussian


class AdvantageConfig(LearnerConfig):
    """Keywords of the family."""

    tau: float = setting(0.005, "share of the critic that the target takes over per update", gt=0, le=1)


class AdvantageWeighted(Learner):
    """Critic regression and weighted imitation; where values and weights come from is left open."""

    config_class: ClassVar[type[LearnerConfig]] = AdvantageConfig

    def setup(self) -> None:
        self.actor = cast(Policy, self.model.actor)
        self.critic = cast(QEnsemble, self.model.critic)
        self.target_critic = cast(QEnsemble, self.make_target("critic", self.critic))
        self.own("critic", list(self.critic.parameters()), self.config.rate_of("critic"))
        self.own("actor", list(self.actor.parameters()), self.config.rate_of("actor"))

    @abstractmethod
    def weights(self, advantages: Tensor) -> Tensor:
        """How much each row counts, `[*S, B]`."""

    def critic_loss(self, batch: Batch, target: Tensor) -> tuple[Tensor, Tensor]:
        """Loss `[*S]` and the critics' values `[*S, E, B]` of the logged actions."""
        q = self.critic(batch["obs"], batch["actions"])
        return losses.critic_mse(q, target), q.detach()

    def actor_loss(self, batch: Batch, noise: Noise, advantages: Tensor) -> tuple[Tensor, Losses]:
        weights = self.weights(advantages)
        logprobs = self.data_logprobs(batch, noise)
        loss = advantage_weights.weighted_regression(logprobs, weights)
        metrics = advantage_weights.regression_metrics(logprobs, weights, advantages)
        return loss, metrics | {"actor_loss": loss.detach()}

    def data_logprobs(self, batch: Batch, noise: Noise) -> Tensor:
        """log pi of the logged actions, `[*S, B]`."""
        return self.actor.log_prob(batch["obs"], batch["actions"])


class SampledAdvantage(AdvantageWeighted):
    """A(s, a) = Q(s, a) - a baseline from the policy's own actions, minimum over critics (AWAC, CRR)."""

    critic_moves_first: bool
    """Whether the advantage sees this update's critic or the one before it."""

    def setup(self) -> None:
        super().setup()
        self.next_actor = self.actor

    def noise_shapes(self, batch_size: int) -> NoiseShapes:
        action = self.model.action_dim
        samples = (batch_size, self.config.n_action_samples, action)
        return {"next": ("normal", (batch_size, action)), "current": ("normal", samples)}

    def step(self, batch: Batch, noise: Noise, stage: str) -> Losses:
        with torch.no_grad():
            target = self.value_target(batch, noise)
        critic_loss, q = self.critic_loss(batch, target)
        gradients = self.gradients("critic", critic_loss)
        with torch.no_grad():
            if self.critic_moves_first:
                self.optimizers["critic"].apply(gradients)
                q = self.critic(batch["obs"], batch["actions"])
            sampled = self.sampled_values(batch["obs"], noise)
            advantages = losses.reduce_critics(q, "min") - self.baseline(sampled)
        actor_loss, metrics = self.actor_loss(batch, noise, advantages)
        self.descend("actor", actor_loss)
        if not self.critic_moves_first:
            self.optimizers["critic"].apply(gradients)
        self.move_targets()
        return metrics | {"critic_loss": critic_loss.detach(), "target_q_mean": target.mean(-1)}

    def value_target(self, batch: Batch, noise: Noise) -> Tensor:
        """r + gamma (1 - d) min Q(s', a') with target critics, one drawn a' and no entropy term."""
        next_actions = draw(self.next_actor, batch["next_obs"], noise["next"])
        next_q = losses.reduce_critics(self.target_critic(batch["next_obs"], next_actions), "min")
        return losses.td_target(batch["rewards"], batch["dones"], next_q, self.discount(batch))

    def sampled_values(self, obs: Tensor, noise: Noise) -> Tensor:
        """Values of the policy's own actions in the batch's states, `[*S, B, N]`."""
        return lowest_values(self.critic, obs, draw_many(self.actor, obs, noise["current"]))

    def baseline(self, values: Tensor) -> Tensor:
        """V(s) from `[*S, B, N]` values of sampled actions."""
        return values.mean(-1)

    def move_targets(self) -> None:
        self.follow("critic", self.critic, self.config.tau)


def draw(actor: Policy, obs: Tensor, noise: Tensor) -> Tensor:
    """One action per state from noise `[*S, B, A]`; what an unsquashed policy draws is clipped."""
    actions: Tensor = actor(obs, noise)[0]
    return actions.clamp(-1.0, 1.0)


def draw_many(actor: Policy, obs: Tensor, noise: Tensor) -> Tensor:
    """N actions per state from noise `[*S, B, N, A]`; the network runs once per state."""
    return draw(actor, obs, noise.movedim(-2, 0)).movedim(0, -2)


def lowest_values(critic: QEnsemble, obs: Tensor, actions: Tensor) -> Tensor:
    """The minimum over critics for N actions per state: `[*S, B, N, A]` -> `[*S, B, N]`."""
    return critic.many(obs, actions).amin(-3)
