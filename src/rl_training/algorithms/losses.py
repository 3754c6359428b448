"""Pure losses, of values and of quantiles. Axes are read from the right: -1 batch, -2 ensemble; the rest
(seeds) is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from rl_training.core.errors import ConfigError

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


def expected_soft_value(q: Tensor, logprobs: Tensor, alpha: Tensor | float) -> Tensor:
    """V(s) = sum_k pi_k (Q_k - alpha log pi_k) (Christodoulou 2019, eq. 10): `[K, *S, B]` -> `[*S, B]`."""
    return (logprobs.exp() * soft_value(q, logprobs, alpha)).sum(0)


def soft_actor_loss(q: Tensor, logprobs: Tensor, alpha: Tensor | float) -> Tensor:
    """E[alpha log pi(a|s) - Q(s, a)] (Haarnoja et al. 2018b, eq. 7): `[*S, B]` -> `[*S]`."""
    return -soft_value(q, logprobs, alpha).mean(-1)


def temperature_loss(
    log_alpha: Tensor,
    logprobs: Tensor,
    target_entropy: float | Tensor,
    form: Literal["log", "exp"] = "log",
) -> Tensor:
    """-log(alpha) E[log pi + H] ("log", the common code) or -alpha E[log pi + H] ("exp", the paper's eq. 18).

    Both move alpha the same way: down while the policy's entropy is above the target.
    """
    excess = (logprobs.detach() + target_entropy).mean(-1)
    return -(log_alpha if form == "log" else log_alpha.exp()) * excess


def value_weight(q: Tensor, alpha: float | Tensor) -> Tensor:
    """lambda = alpha / mean |Q(s, pi(s))|, a constant for the gradient: `[*S, B]` -> `[*S]`."""
    return alpha / q.detach().abs().mean(-1).clamp_min(SMALLEST_SCALE)


def named_tensors(inputs: Mapping[str, Tensor | float]) -> dict[str, Tensor]:
    """What an `<algo>_loss` helper is given, as tensors."""
    return {name: torch.as_tensor(value) for name, value in inputs.items()}


def twin_losses(named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What helpers say of two critics, from `q1_values q2_values target_q_values`."""
    q = torch.stack([named["q1_values"], named["q2_values"]], dim=-2)
    target = named["target_q_values"]
    return {"critic_loss": critic_mse(q, target), "target_q_mean": target.mean(-1)}


def soft_policy_losses(named: Mapping[str, Tensor], q: Tensor) -> dict[str, Tensor]:
    """What helpers say of SAC's policy, from the values of its actions and `sampled_logprobs alpha`."""
    logprobs, alpha = named["sampled_logprobs"], named["alpha"]
    return {
        "actor_loss": soft_actor_loss(q, logprobs, alpha),
        "entropy_term": (alpha * logprobs).mean(-1),
    }


def check_same_shape(**tensors: Tensor) -> None:
    """A silent (B, 1) against (B,) broadcast to (B, B) is the commonest silent bug of this field."""
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if len(set(shapes.values())) > 1:
        raise ValueError(f"expected equal shapes, got {shapes}")


# Parts of an ensemble of critics. Its axis is the third from the right in every parameter.


def check_subset(subset_size: int, num_critics: int) -> None:
    if subset_size > num_critics:
        raise ConfigError(f"subset_size must be <= num_critics ({num_critics}), got {subset_size}")


def random_subset(uniform: Tensor, size: int) -> Tensor:
    """Distinct members, all subsets equally likely: `[*S, N]` random numbers -> `[*S, size]` indices."""
    return uniform.topk(size).indices


def chosen_members(parameter: Tensor, members: Tensor) -> Tensor:
    """`[*S, N, …, …]`, `[*S, M]` -> `[*S, M, …, …]`: each seed's own choice."""
    flat = parameter.flatten(0, -3)
    seeds = members.shape[:-1]
    first = torch.arange(seeds.numel(), device=members.device) * parameter.shape[-3]
    rows = (members + first.reshape(*seeds, 1)).flatten()
    return flat.index_select(0, rows).reshape(*members.shape, *parameter.shape[-2:])


def values_of(critic: nn.Module, pick: Callable[[Tensor], Tensor], obs: Tensor, actions: Tensor) -> Tensor:
    """Values `[*S, M, B]` of the members that `pick` takes out of each parameter; the others cost nothing."""
    parameters = {name: pick(parameter.detach()) for name, parameter in critic.named_parameters()}
    values: Tensor = functional_call(critic, parameters, (obs, actions))
    return values


# Distributional targets and losses on quantiles `[*S, E, B, K]` of an ensemble (TQC).


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
    values = soft_value(leading, logprobs.expand_as(leading), alpha)
    targets = td_target(rewards.expand_as(leading), dones.expand_as(leading), values, discount)
    return targets.movedim(0, -1).contiguous()  # read once per quantile


def quantile_huber(quantiles: Tensor, atoms: Tensor, kappa: float) -> Tensor:
    """Every quantile against every target atom: `[*S, E, B, K]`, `[*S, B, M]` -> `[*S]`.

    |tau_k - 1[delta < 0]| Huber_kappa(delta) / kappa, delta = atom - quantile, as a plain mean over critics,
    batch, quantiles and atoms (both well-known implementations; a sum over quantiles would be K times that).
    Dividing by kappa keeps the slope of large errors at 1; the papers' kappa is 1. Atoms are constants.

    There are M pairs per quantile: value and slope are reduced over them at once, instead of keeping every
    pair for a backward pass, which takes three times as long.
    """
    check_same_shape(quantiles=quantiles[..., 0, :, 0], atoms=atoms[..., 0])
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
