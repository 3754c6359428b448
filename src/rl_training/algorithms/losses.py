"""Pure losses. Axes are read from the right: -1 batch, -2 ensemble; what is left of them (seeds) is kept.

`update` of every learner and the public `<algo>_loss` helpers call these functions; no formula exists twice.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

Reduction = Literal["min", "mean"]
SMALLEST_SCALE = 1e-7
"""Guards a division where every value is exactly zero; no trained critic comes near it."""


def td_target(rewards: Tensor, dones: Tensor, next_values: Tensor, discount: float | Tensor) -> Tensor:
    """r + gamma (1 - d) V(s'); d is termination alone, so a time-out still bootstraps. `[*S, B]`."""
    check_same_shape(rewards=rewards, dones=dones, next_values=next_values)
    return rewards + discount * (1.0 - dones) * next_values


def critic_mse(q: Tensor, target: Tensor) -> Tensor:
    """Sum over critics of the mean squared error: `[*S, E, B]`, `[*S, B]` -> `[*S]`."""
    check_same_shape(q=q[..., 0, :], target=target)
    return (q - target.unsqueeze(-2)).square().mean(-1).sum(-1)


def reduce_critics(q: Tensor, how: Reduction) -> Tensor:
    """Pessimistic (min) or average value over the ensemble: `[*S, E, B]` -> `[*S, B]`."""
    return q.amin(-2) if how == "min" else q.mean(-2)


def soft_value(q: Tensor, logprobs: Tensor, alpha: Tensor | float) -> Tensor:
    """V(s) = Q(s, a) - alpha log pi(a|s), a ~ pi (Haarnoja et al. 2018b, eq. 3). `[*S, B]`."""
    check_same_shape(q=q, logprobs=logprobs)
    return q - alpha * logprobs


def soft_actor_loss(q: Tensor, logprobs: Tensor, alpha: Tensor | float) -> Tensor:
    """E[alpha log pi(a|s) - Q(s, a)] (Haarnoja et al. 2018b, eq. 7): `[*S, B]` -> `[*S]`."""
    return -soft_value(q, logprobs, alpha).mean(-1)


def temperature_loss(
    log_alpha: Tensor, logprobs: Tensor, target_entropy: float, form: Literal["log", "exp"] = "log"
) -> Tensor:
    """-log(alpha) E[log pi + H] ("log", the common code) or -alpha E[log pi + H] ("exp", the paper's eq. 18).

    Both move alpha the same way: down while the policy's entropy is above the target.
    """
    excess = (logprobs.detach() + target_entropy).mean(-1)
    return -(log_alpha if form == "log" else log_alpha.exp()) * excess


def value_weight(q: Tensor, alpha: float | Tensor) -> Tensor:
    """lambda = alpha / mean |Q(s, pi(s))|, a constant for the gradient: `[*S, B]` -> `[*S]`."""
    return alpha / q.detach().abs().mean(-1).clamp_min(SMALLEST_SCALE)


def check_same_shape(**tensors: Tensor) -> None:
    """A silent (B, 1) against (B,) broadcast to (B, B) is the commonest silent bug of this field."""
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if len(set(shapes.values())) > 1:
        raise ValueError(f"expected equal shapes, got {shapes}")
