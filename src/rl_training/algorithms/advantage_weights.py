"""Advantage-weighted regression: the losses that IQL, AWAC and CRR have in common.

All three imitate the logged actions, each row counted by its advantage A(s, a) = Q(s, a) - V(s). They differ
in where V comes from and in the weight. Axes are read from the right: -1 batch; what is left of it (seeds) is
kept. Weights are constants for the gradient.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from rl_training.algorithms.losses import check_same_shape, critic_mse


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
    check_same_shape(logprobs=logprobs, weights=weights)
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
    named = {name: torch.as_tensor(value) for name, value in inputs.items()}
    q = torch.stack([named["q1_values"], named["q2_values"]], dim=-2)
    return named, {
        "critic_loss": critic_mse(q, named["target_q_values"]),
        "actor_loss": weighted_regression(named["behavior_logprobs"], named["advantage_weights"]),
        "target_q_mean": named["target_q_values"].mean(-1),
        "advantage_weight_mean": named["advantage_weights"].mean(-1),
    }
