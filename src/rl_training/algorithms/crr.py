"""Critic Regularized Regression (Wang et al. 2020, arXiv:2006.15134)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, cast

import torch
from torch import Tensor

from rl_training.algorithms import advantage_weights
from rl_training.algorithms.advantage_learner import (
    AdvantageConfig,
    Policy,
    SampledAdvantage,
    draw,
    draw_many,
    lowest_values,
)
from rl_training.algorithms.learner import Batch, LearnerConfig
from rl_training.algorithms.results import UpdateResult
from rl_training.config import setting
from rl_training.models.critics import QEnsemble


class CRRConfig(AdvantageConfig):
    """Keywords of CRR."""

    advantage_type: Literal["mean", "max"] = setting(
        "mean", "baseline: mean or maximum of Q over n_action_samples actions of the policy"
    )
    weight_type: Literal["binary", "exp"] = setting(
        "exp", "a row weighs 1 if its advantage is positive (else 0), or exp(advantage / beta)"
    )
    beta: float = setting(1.0, "temperature of the exp weights and of the critic-weighted policy", gt=0)
    n_action_samples: int = setting(4, "actions drawn per state for the baseline", ge=1)
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

    config_class: ClassVar[type[LearnerConfig]] = CRRConfig
    critic_moves_first = False

    def setup(self) -> None:
        super().setup()
        self.target_actor = cast(Policy, self.make_target("actor", self.actor))
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
        self.follow("critic", self.critic, tau)
        self.follow("actor", self.actor, tau)

    def baseline(self, values: Tensor) -> Tensor:
        return values.amax(-1) if self.config.advantage_type == "max" else values.mean(-1)

    def weights(self, advantages: Tensor) -> Tensor:
        if self.config.weight_type == "binary":
            return advantage_weights.binary_weights(advantages)
        return advantage_weights.exp_weights(advantages, 1.0 / self.config.beta, self.config.max_weight)

    @property
    def act_noise_size(self) -> int:
        size = self.model.action_dim
        return self.config.n_action_samples * size + 1 if self.config.critic_weighted else size

    def act(self, obs: Tensor, noise: Tensor | None = None) -> Tensor:
        actor = self.target_actor if self.config.act_with_target else self.actor
        if noise is None:
            return actor.mode(obs)
        policy = actor.distribution(obs)
        if not self.config.critic_weighted:
            return draw(actor, policy, noise)
        shape = (self.config.n_action_samples, self.model.action_dim)
        candidates = draw_many(actor, policy, noise[..., :-1].reshape(*obs.shape[:-1], *shape))
        critic = self.target_critic if self.config.act_with_target else self.critic
        return resample(candidates, self.resampling_weights(critic, obs, candidates), noise[..., -1])

    def resampling_weights(self, critic: QEnsemble, obs: Tensor, candidates: Tensor) -> Tensor:
        """The critic-weighted policy's probability of each candidate: softmax(Q / beta), `[*S, B, N]`."""
        return torch.softmax(lowest_values(critic, obs, candidates) / self.config.beta, dim=-1)


def resample(candidates: Tensor, probabilities: Tensor, normal: Tensor) -> Tensor:
    """One of the N candidates `[*S, B, N, A]` per row, by N(0, 1) numbers `[*S, B]` through their CDF."""
    uniform = torch.special.ndtr(normal).unsqueeze(-1)
    chosen = (probabilities.cumsum(-1) < uniform).sum(-1).clamp(max=probabilities.shape[-1] - 1)
    index = chosen[..., None, None].expand(*chosen.shape, 1, candidates.shape[-1])
    return candidates.gather(-2, index).squeeze(-2)


def crr_loss(inputs: Mapping[str, Tensor | float]) -> dict[str, Tensor]:
    """From `q1_values q2_values target_q_values behavior_logprobs advantages advantage_weights`."""
    named, shared = advantage_weights.named_losses(inputs)
    logprobs, weights = named["behavior_logprobs"], named["advantage_weights"]
    return shared | advantage_weights.regression_metrics(logprobs, weights, named["advantages"])
