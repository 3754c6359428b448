"""The conservative term of CQL: how far Q over all actions stands above Q of the data's actions.

Axes are read from the right: -1 the sampled actions of a state, -2 the batch, -3 the critics.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from rl_training.models.critics import QEnsemble

LagrangeForm = Literal["gap", "weighted"]
MaxOrder = Literal["max_min", "min_max"]

MAX_MULTIPLIER = 1e6

BLOCK_ROWS = 2048
"""State-action pairs that the critics see at once on a CPU."""


def values_in_blocks(critic: QEnsemble, obs: Tensor, actions: Tensor) -> Tensor:
    """Values of N actions per state, `[*S, B, O]`, `[*S, B, N, A]` -> `[*S, E, B, N]` (`QEnsemble.many`).

    On a CPU a few states at a time: hidden layers that stay in its cache make the update a fifth faster.
    """
    count = math.ceil(actions.shape[-3] * actions.shape[-2] / BLOCK_ROWS) if obs.device.type == "cpu" else 1
    blocks = zip(obs.chunk(count, -2), actions.chunk(count, -3), strict=True)
    return torch.cat([critic.many(*block) for block in blocks], -2)


def uniform_log_density(action_dim: int) -> float:
    """log density of the uniform distribution on [-1, 1]^A."""
    return -action_dim * math.log(2.0)


def soft_maximum(q: Tensor, log_density: Tensor | None, temperature: float = 1.0) -> Tensor:
    """T log sum_j exp(Q_j / T - log mu_j): `[…, B, N]` -> `[…, B]`.

    With mu_j the density that action j was drawn from, this estimates T log(N integral of exp(Q / T))
    whatever the policy is (Kumar et al. 2020, appendix F). Dividing log mu by T too, as published code does,
    is right for T = 1 only. log N is not subtracted, as everywhere: gaps and thresholds carry it.
    """
    logits = q / temperature
    if log_density is not None:
        logits = logits - log_density
    return temperature * torch.logsumexp(logits, -1)


def conservative_gap(
    q_sampled: Tensor,
    q_data: Tensor,
    log_density: Tensor | None,
    *,
    temperature: float = 1.0,
    clip_min: float | None = None,
    clip_max: float | None = None,
) -> Tensor:
    """Mean over the batch of soft maximum minus Q(s, a_data): `[…, B, N]`, `[…, B]` -> `[…]`.

    `log_density` broadcasts against `q_sampled`. Without it (None) the soft maximum is a plain one over the
    samples and the data's own action. The clip acts on each state, before the mean.
    """
    if q_sampled.shape[:-1] != q_data.shape:
        raise ValueError(f"expected q_data {tuple(q_sampled.shape[:-1])}, got {tuple(q_data.shape)}")
    if log_density is None:
        q_sampled = torch.cat([q_sampled, q_data.unsqueeze(-1)], -1)
    gap = soft_maximum(q_sampled, log_density, temperature) - q_data
    if clip_min is not None or clip_max is not None:
        gap = gap.clamp(clip_min, clip_max)
    return gap.mean(-1)


def cql_penalty(
    q_random: Tensor,
    q_policy: Tensor,
    q_next_policy: Tensor,
    q_data: Tensor,
    *,
    logprobs_policy: Tensor,
    logprobs_next_policy: Tensor,
    action_dim: int,
    cql_alpha: float = 5.0,
    importance_weights: bool = True,
    returns_to_go: Tensor | None = None,
    temperature: float = 1.0,
    clip_min: float | None = None,
    clip_max: float | None = None,
) -> Tensor:
    """cql_alpha times the gap, from the values of the three sources: `[…, B, n]` each -> `[…]`.

    All values are of the current state s: actions drawn uniformly, from pi(.|s) and from pi(.|s'). With
    `returns_to_go` `[B]` it is Cal-QL's term: the values of the policy's actions are floored there.
    """
    if returns_to_go is not None:
        q_policy, q_next_policy = floored(q_policy, returns_to_go), floored(q_next_policy, returns_to_go)
    density = None
    if importance_weights:
        density = log_densities(q_random.shape[-1], action_dim, [logprobs_next_policy, logprobs_policy])
    gap = conservative_gap(
        torch.cat([q_random, q_next_policy, q_policy], -1),
        q_data,
        density,
        temperature=temperature,
        clip_min=clip_min,
        clip_max=clip_max,
    )
    return cql_alpha * gap


def floored(q: Tensor, returns_to_go: Tensor) -> Tensor:
    """max(Q, R): a value below what the data reached is not pushed further down (Nakamoto et al. 2023).

    `[…, B, n]`, `[…, B]` (broadcast over critics) -> `[…, B, n]`; no gradient where the floor holds.
    """
    return torch.maximum(q, returns_to_go.unsqueeze(-1))


def log_densities(num_uniform: int, action_dim: int, policy_logprobs: Sequence[Tensor]) -> Tensor:
    """log density of every sampled action, the uniform ones first: `[…, B, N]`."""
    first = policy_logprobs[0]
    uniform = first.new_full((*first.shape[:-1], num_uniform), uniform_log_density(action_dim))
    return torch.cat([uniform, *policy_logprobs], -1)


def multiplier(log_multiplier: Tensor) -> Tensor:
    """The Lagrange multiplier alpha' = exp(log alpha'), at most 1e6."""
    return log_multiplier.exp().clamp(max=MAX_MULTIPLIER)


def lagrange_penalty(
    gap: Tensor, alpha_prime: Tensor, weight: float, target_gap: float, form: LagrangeForm = "gap"
) -> Tensor:
    """alpha' w (gap - tau), or alpha' (w gap - tau) in the authors' first code ("weighted"): `[…]`."""
    excess = weight * (gap - target_gap) if form == "gap" else weight * gap - target_gap
    return alpha_prime * excess


def best_of_draws(q: Tensor, order: MaxOrder = "max_min") -> Tensor:
    """Value of the best of n actions: `[*S, E, B, n]` -> `[*S, B]`.

    `max_min` picks the action whose smallest critic is largest; `min_max` lets each critic pick its own
    action and takes the smallest of their values, which is never less.
    """
    return q.amin(-3).amax(-1) if order == "max_min" else q.amax(-1).amin(-2)
