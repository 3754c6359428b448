"""Distributional targets and losses on quantiles `[*S, E, B, K]` of an ensemble (TQC)."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_training.algorithms import losses


def quantile_levels(count: int, like: Tensor) -> Tensor:
    """tau_k = (k - 1/2) / K, the middles of K equal slices of probability, as `like` in type and place."""
    return (torch.arange(count, dtype=like.dtype, device=like.device) + 0.5) / count


def smallest_atoms(quantiles: Tensor, drop_per_net: int) -> Tensor:
    """Pool all critics' atoms and leave out the `drop_per_net * E` largest: `[*S, E, B, K]` -> `[*S, B, M]`.

    The cut is on the pooled atoms, not on each critic's own. The order of the rest does not matter to what
    follows, so they are selected, not sorted.
    """
    critics, count = quantiles.shape[-3], quantiles.shape[-1]
    pooled = quantiles.movedim(-3, -2).flatten(-2)
    if drop_per_net == 0:
        return pooled
    return pooled.topk(critics * (count - drop_per_net), largest=False, sorted=False).values


def soft_target_atoms(
    atoms: Tensor,
    rewards: Tensor,
    dones: Tensor,
    logprobs: Tensor,
    alpha: Tensor | float,
    discount: float | Tensor,
) -> Tensor:
    """r + gamma (1 - d) (z - alpha log pi) for every atom z of the next state, `[*S, B, M]`."""
    leading = atoms.movedim(-1, 0)  # [M, *S, B]: what is per row broadcasts
    values = losses.soft_value(leading, logprobs.expand_as(leading), alpha)
    targets = losses.td_target(rewards.expand_as(leading), dones.expand_as(leading), values, discount)
    return targets.movedim(0, -1).contiguous()  # read once per quantile


def quantile_huber(quantiles: Tensor, atoms: Tensor, kappa: float) -> Tensor:
    """Every quantile against every target atom: `[*S, E, B, K]`, `[*S, B, M]` -> `[*S]`.

    |tau_k - 1[delta < 0]| Huber_kappa(delta) / kappa, delta = atom - quantile, as a plain mean over critics,
    batch, quantiles and atoms (both well-known implementations; a sum over quantiles would be K times that).
    Dividing by kappa keeps the slope of large errors at 1; the papers' kappa is 1. Atoms are constants.

    There are M pairs per quantile: value and slope are reduced over them at once, instead of keeping every
    pair for a backward pass, which takes three times as long.
    """
    losses.check_same_shape(quantiles=quantiles[..., 0, :, 0], atoms=atoms[..., 0])
    with torch.no_grad():
        delta = atoms.unsqueeze(-2).unsqueeze(-4) - quantiles.unsqueeze(-1)
        inner = delta.clamp(-kappa, kappa)  # the slope of Huber's function
        level = quantile_levels(quantiles.shape[-1], quantiles).unsqueeze(-1)
        # |tau - 1[delta < 0]| inner, which has the sign of delta, without a comparison
        pull = (level * inner).addcmul_(1.0 - 2.0 * level, inner.clamp(max=0.0))
        value = delta.sub_(inner, alpha=0.5).mul_(pull).mean((-1, -2, -3, -4))
        slope = -pull.mean(-1)
    # Adds zero to the value and the slope to its gradient.
    carrier = ((quantiles - quantiles.detach()) * slope).mean((-1, -2, -3))
    return (value + carrier) / kappa
