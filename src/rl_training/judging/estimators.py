"""Values of a policy from the log of another one, by weighting what was logged.

Everything here is plain arithmetic in double precision on lists of one array per episode; nothing knows
policies, networks or files. `log_ratios` are log pi(a|s) - log mu(a|s) of the logged actions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

import numpy as np
import numpy.typing as npt

from rl_training.core.errors import DataError

Float64Array = npt.NDArray[np.float64]
PerEpisode = Sequence[npt.ArrayLike]

LARGEST_LOG_WEIGHT = 700.0
"""exp of more is infinite in double precision."""


# A functional definition, because `is` cannot be written as an attribute.
ImportanceEstimates = TypedDict(
    "ImportanceEstimates",
    {"is": float, "wis": float, "pdis": float, "wpdis": float, "effective_sample_size": float},
)


def importance_estimates(rewards: PerEpisode, log_ratios: PerEpisode, *, gamma: float) -> ImportanceEstimates:
    """Importance sampling in its four forms, and how many episodes the final weights are worth.

    `is` and `wis` weigh whole episodes, `pdis` and `wpdis` each reward by the actions up to it; the w-forms
    divide by the mean weight. An episode that has ended keeps its last weight in those means.
    """
    once = np.ones((1, len(rewards)))
    found = resampled_importance(rewards, log_ratios, counts=once, gamma=gamma)
    return {
        "is": float(found["is"][0]),
        "wis": float(found["wis"][0]),
        "pdis": float(found["pdis"][0]),
        "wpdis": float(found["wpdis"][0]),
        "effective_sample_size": float(effective_sample_sizes(log_ratios)[-1]),
    }


def resampled_importance(
    rewards: PerEpisode, log_ratios: PerEpisode, *, counts: Float64Array, gamma: float
) -> dict[str, Float64Array]:
    """The four forms on resamples of the episodes: `counts` `[resamples, episodes]` says how often each is
    in. A resample without any weight gives NaN."""
    _same_lengths(rewards, log_ratios=log_ratios)
    earned, weights = _table(rewards, "rewards"), cumulative_weights(log_ratios)
    relative = _relative_weights(log_ratios)
    discounts = gamma ** np.arange(earned.shape[1])
    returns, number = earned @ discounts, counts.sum(axis=1)
    with np.errstate(over="ignore", invalid="ignore"):  # beyond all bounds is infinite; no weight is NaN
        totals = counts @ relative
        return {
            "is": counts @ (weights[:, -1] * returns) / number,
            "wis": counts @ (relative[:, -1] * returns) / totals[:, -1],
            "pdis": counts @ ((weights * earned) @ discounts) / number,
            "wpdis": (counts @ (relative * earned) / totals) @ discounts,
        }


def weighted_doubly_robust(
    rewards: PerEpisode,
    log_ratios: PerEpisode,
    q_values: PerEpisode,
    state_values: PerEpisode,
    *,
    gamma: float,
    final_values: npt.ArrayLike | None = None,
) -> float:
    """mean V(s0) + sum_t gamma^t sum_i w_it (r_it + gamma V(s_i,t+1) - Q(s_it, a_it)), w self-normalised.

    `q_values` are those of the logged actions, `state_values` those of the policy's own. `final_values` is
    V after each episode's last step: zero where it terminated (the default for all), else the value of the
    state at which it was cut off.
    """
    found = resampled_doubly_robust(
        rewards,
        log_ratios,
        q_values,
        state_values,
        counts=np.ones((1, len(rewards))),
        gamma=gamma,
        final_values=final_values,
    )
    return float(found[0])


def resampled_doubly_robust(
    rewards: PerEpisode,
    log_ratios: PerEpisode,
    q_values: PerEpisode,
    state_values: PerEpisode,
    *,
    counts: Float64Array,
    gamma: float,
    final_values: npt.ArrayLike | None = None,
) -> Float64Array:
    """The same on resamples of the episodes, as in `resampled_importance`."""
    _same_lengths(rewards, log_ratios=log_ratios, q_values=q_values, state_values=state_values)
    earned, relative = _table(rewards, "rewards"), _relative_weights(log_ratios)
    q, values = _table(q_values, "q_values"), _table(state_values, "state_values")
    count, longest = earned.shape
    last = np.array([np.size(each) for each in rewards]) - 1
    following = np.concatenate([values[:, 1:], np.zeros((count, 1))], axis=1)
    following[np.arange(count), last] = 0.0 if final_values is None else np.asarray(final_values, np.float64)
    running = np.arange(longest) <= last[:, None]
    surprise = np.where(running, earned + gamma * following - q, 0.0)
    with np.errstate(invalid="ignore"):
        corrections = (counts @ (relative * surprise)) / (counts @ relative)
    first = counts @ values[:, 0] / counts.sum(axis=1)
    found: Float64Array = first + corrections @ gamma ** np.arange(longest)
    return found


def cumulative_weights(log_ratios: PerEpisode) -> Float64Array:
    """exp of the running sums, `[episodes, longest]`; frozen after an episode's end."""
    return np.exp(np.minimum(_running_sums(log_ratios), LARGEST_LOG_WEIGHT))


def effective_sample_sizes(log_ratios: PerEpisode) -> Float64Array:
    """(sum w)^2 / sum w^2 at every step: as many equally weighted episodes would say as much."""
    weights = _relative_weights(log_ratios)
    sizes: Float64Array = weights.sum(axis=0) ** 2 / (weights**2).sum(axis=0)
    return sizes


def clipped_log_ratios(
    log_pi: PerEpisode, log_mu: PerEpisode, low: float, high: float
) -> tuple[list[Float64Array], float]:
    """log pi - log mu per step, kept inside [low, high], and the share that had to be."""
    plain = [
        np.asarray(p, np.float64) - np.asarray(m, np.float64) for p, m in zip(log_pi, log_mu, strict=True)
    ]
    outside = sum(int(((each < low) | (each > high)).sum()) for each in plain)
    return [np.clip(each, low, high) for each in plain], outside / max(1, sum(each.size for each in plain))


def _relative_weights(log_ratios: PerEpisode) -> Float64Array:
    """The cumulative weights over the largest of each step: what is divided by their sum never overflows."""
    sums = _running_sums(log_ratios)
    relative: Float64Array = np.exp(sums - sums.max(axis=0))
    return relative


def _running_sums(log_ratios: PerEpisode) -> Float64Array:
    return np.cumsum(_table(log_ratios, "log_ratios"), axis=1)


def _table(values: PerEpisode, name: str) -> Float64Array:
    """Episodes of different lengths as rows, filled up with zeros."""
    rows = [np.asarray(each, dtype=np.float64).reshape(-1) for each in values]
    if not rows or any(not row.size for row in rows):
        raise DataError(f"{name} must hold at least one episode, each of at least one step")
    table = np.zeros((len(rows), max(row.size for row in rows)))
    for row, target in zip(rows, table, strict=True):
        if not np.isfinite(row).all():
            raise DataError(f"{name} must be finite numbers")
        target[: row.size] = row
    return table


def _same_lengths(rewards: PerEpisode, **others: PerEpisode) -> None:
    expected = [np.size(each) for each in rewards]
    for name, values in others.items():
        found = [np.size(each) for each in values]
        if found != expected:
            raise DataError(f"{name} must have one number per reward, got {found[:3]} for {expected[:3]} …")
