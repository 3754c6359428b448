"""Where episodes end in rows stored one after another, and what they earn: returns-to-go, n-step returns."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rl_training.core.types import Array

BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]

SAME_STATE_TOLERANCE = 1e-6
"""Observations further apart than this (Euclidean) are different states (as in IQL and RLPD)."""

_CHUNK_ROWS = 1 << 16


@dataclass(frozen=True)
class LastRewards:
    """Rewards earned after the last usable row of an episode.

    A log without next observations cannot use the last row of a timed-out episode: its successor was never
    recorded. The row is dropped, but its reward still belongs to the episode's return.
    """

    rows: IntArray
    """the last usable row of each episode whose last reward was dropped, ascending"""
    rewards: Array
    costs: Array | None = None
    """the same of costs, `[episodes, costs]`"""

    def within(self, kept_rows: IntArray) -> LastRewards:
        """Those that remain when only `kept_rows` (ascending, whole episodes) are kept."""
        here = np.isin(self.rows, kept_rows)
        rows = np.searchsorted(kept_rows, self.rows[here]).astype(np.int64)
        return LastRewards(rows, self.rewards[here], None if self.costs is None else self.costs[here])


def episode_ends(dones: Array, truncations: Array | None = None) -> BoolArray:
    """True at the last row of every episode; the last stored row always ends one."""
    ends: BoolArray = np.asarray(dones) != 0
    if truncations is not None:
        ends = ends | (np.asarray(truncations) != 0)
    if len(ends):
        ends[-1] = True
    return ends


def episode_starts(ends: BoolArray) -> IntArray:
    """Index of the first row of every episode."""
    last_rows = np.flatnonzero(ends)
    starts: IntArray = np.concatenate([np.zeros(min(1, len(last_rows)), dtype=np.int64), last_rows[:-1] + 1])
    return starts


def episode_lengths(ends: BoolArray) -> IntArray:
    """Rows of every episode."""
    return np.diff(np.flatnonzero(ends), prepend=-1)


def episode_returns(
    rewards: Array, ends: BoolArray, last_rewards: LastRewards | None = None
) -> npt.NDArray[np.float64]:
    """Undiscounted return of every episode, summed in double precision, a few episodes at a time."""
    starts = episode_starts(ends)
    returns = np.empty(len(starts))
    groups = np.unique(np.searchsorted(starts, np.arange(0, len(rewards), _CHUNK_ROWS)))
    for first, stop in pairwise([*groups[groups < len(starts)].tolist(), len(starts)]):
        rows = slice(starts[first], starts[stop] if stop < len(starts) else None)
        totals = np.add.reduceat(rewards[rows].astype(np.float64), starts[first:stop] - starts[first])
        returns[first:stop] = totals
    if last_rewards is not None:
        returns[np.searchsorted(np.flatnonzero(ends), last_rewards.rows)] += last_rewards.rewards
    return returns


def broken_successions(obs: Array, next_obs: Array) -> IntArray:
    """Rows whose recorded successor is not the observation of the row that follows.

    Read in chunks, so that a file larger than memory can be checked; only rows that differ are measured.
    """
    found = []
    for start in range(0, len(obs) - 1, _CHUNK_ROWS):
        stop = min(start + _CHUNK_ROWS, len(obs) - 1)
        recorded, following = next_obs[start:stop], obs[start + 1 : stop + 1]
        differs = np.flatnonzero(recorded != following) // (recorded[0].size or 1)
        rows = differs[np.flatnonzero(np.diff(differs, prepend=-1))]
        gaps = (recorded[rows].astype(np.float64) - following[rows]).reshape(len(rows), recorded[0].size)
        distance = np.linalg.norm(gaps, axis=1)
        found.append(rows[~(distance <= SAME_STATE_TOLERANCE)] + start)
    return np.concatenate(found) if found else np.zeros(0, dtype=np.int64)


Float64Array = npt.NDArray[np.float64]

_SEGMENT_ROWS = 100_000
"""Rows scanned at a time: bounds the working memory, and is no power of two (which upsets CPU caches)."""


@overload
def compute_discounted_returns_to_go(
    rewards: Tensor,
    dones: npt.ArrayLike,
    gamma: float,
    truncations: npt.ArrayLike | None = None,
    *,
    failure_reward: float | None = None,
) -> Tensor: ...
@overload
def compute_discounted_returns_to_go(
    rewards: npt.ArrayLike,
    dones: npt.ArrayLike,
    gamma: float,
    truncations: npt.ArrayLike | None = None,
    *,
    failure_reward: float | None = None,
) -> Array: ...
def compute_discounted_returns_to_go(
    rewards: npt.ArrayLike,
    dones: npt.ArrayLike,
    gamma: float,
    truncations: npt.ArrayLike | None = None,
    *,
    failure_reward: float | None = None,
) -> Any:
    """G_t = r_t + gamma * G_{t+1} inside an episode, 0 after its last row (a time-out is not bootstrapped).

    Rows must be in time order, episode after episode. `dones` are terminations, `truncations` time-outs; both
    end an episode, as does the last row. With `failure_reward`, an episode in which every reward equals it is
    taken to fail for ever: all its returns are failure_reward / (1 - gamma) (the sparse rule of Cal-QL).
    Returns a tensor for a tensor and an array otherwise, in the precision of the rewards.
    """
    values = _floating(rewards)
    flags = _vector(dones), None if truncations is None else _vector(truncations)
    for name, column in zip(("dones", "truncations"), flags, strict=True):
        if column is not None and len(column) != len(values):
            raise ValueError(
                f"rewards and {name} must have the same length, got {len(values)} and {len(column)}"
            )
    ends = episode_ends(flags[0], flags[1])
    returns = returns_to_go(values, ends, gamma, failure_reward=failure_reward, dtype=values.dtype)
    return torch.from_numpy(returns).to(rewards.device) if isinstance(rewards, Tensor) else returns


def returns_to_go(
    rewards: Array,
    ends: BoolArray,
    gamma: float,
    *,
    last_rewards: LastRewards | None = None,
    failure_reward: float | None = None,
    discounts: Float64Array | None = None,
    dtype: npt.DTypeLike = np.float64,
) -> Array:
    """Returns-to-go of rows whose ends are known, computed in double precision and stored as `dtype`.

    `discounts` holds the factor of what follows each row, where it is not gamma everywhere.
    """
    if not 0.0 <= gamma <= 1.0:
        raise ValueError(f"gamma must be between 0 and 1, got {gamma}")
    returns = np.empty(len(rewards), dtype=dtype)
    carry = 0.0
    for start in reversed(range(0, len(rewards), _SEGMENT_ROWS)):
        part = slice(start, start + _SEGMENT_ROWS)
        earned = rewards[part].astype(np.float64)
        factors = np.full(len(earned), gamma) if discounts is None else discounts[part]
        if last_rewards is not None:
            here = slice(*np.searchsorted(last_rewards.rows, (start, start + _SEGMENT_ROWS)))
            rows = last_rewards.rows[here] - start
            earned[rows] += factors[rows] * last_rewards.rewards[here]
        values = _reverse_scan(earned, np.where(ends[part], 0.0, factors), carry)
        returns[part], carry = values, float(values[0])
    if failure_reward is not None:
        if gamma == 1.0:
            raise ValueError("failure_reward needs gamma < 1: failing for ever has no finite return at 1")
        failures = rows_of_failures(rewards, ends, failure_reward, last_rewards=last_rewards)
        returns[failures] = failure_reward / (1.0 - gamma)
    return returns


def rows_of_failures(
    rewards: Array, ends: BoolArray, failure_reward: float, *, last_rewards: LastRewards | None = None
) -> BoolArray:
    """Rows of the episodes whose rewards all equal `failure_reward`."""
    if not len(rewards):
        return np.zeros(0, dtype=bool)
    failed = rewards == np.asarray(failure_reward, dtype=rewards.dtype)
    if last_rewards is not None:
        failed[last_rewards.rows] &= last_rewards.rewards == np.asarray(
            failure_reward, dtype=last_rewards.rewards.dtype
        )
    return np.repeat(np.logical_and.reduceat(failed, episode_starts(ends)), episode_lengths(ends))


def _reverse_scan(rewards: Float64Array, keep: Float64Array, carry: float) -> Float64Array:
    """g[t] = rewards[t] + keep[t] * g[t + 1] with g[n] = carry, in O(sqrt(n)) vector operations.

    The rows are cut into about sqrt(n) blocks that are scanned side by side: a first pass gives each block's
    head as if nothing followed, a loop over the heads gives what really follows each block, a second pass
    runs the recurrence with it.
    """
    count = len(rewards)
    length = max(1, int(np.ceil(np.sqrt(count))))
    blocks = -(-count // length)
    padding = blocks * length - count
    # padding goes in front, where nothing depends on it; axis 0 is the position inside a block
    reward_at = np.ascontiguousarray(np.pad(rewards, (padding, 0)).reshape(blocks, length).T)
    keep_at = np.ascontiguousarray(np.pad(keep, (padding, 0)).reshape(blocks, length).T)
    head = np.zeros(blocks)
    for position in reversed(range(length)):
        head = reward_at[position] + keep_at[position] * head
    through = keep_at.prod(axis=0)
    following = np.empty(blocks)
    for block in reversed(range(blocks)):
        following[block] = carry
        carry = head[block] + through[block] * carry
    value = following
    for position in reversed(range(length)):
        value = reward_at[position] + keep_at[position] * value
        reward_at[position] = value
    return np.ascontiguousarray(reward_at.T).reshape(-1)[padding:]


def n_step_returns(
    rewards: Array, ends: BoolArray, gamma: float | Float64Array, n_step: int
) -> tuple[Float64Array, IntArray, Float64Array]:
    """Per row: the discounted sum of up to `n_step` rewards, the last row it reaches, the bootstrap factor.

    `gamma` is the factor of what follows a row, the same for all or one for each. A window never leaves its
    episode; one that is cut short after k rewards bootstraps with the product of its k factors from the
    successor of its last row (or not at all if that row terminated).
    """
    if n_step < 1:
        raise ValueError(f"n_step must be >= 1, got {n_step}")
    values = rewards.astype(np.float64)
    totals, last = values.copy(), np.arange(len(values), dtype=np.int64)
    discounts = np.broadcast_to(np.asarray(gamma, dtype=np.float64), values.shape)
    factor = discounts.copy()
    growing = np.flatnonzero(~ends)
    for _ in range(1, n_step):
        last[growing] += 1
        totals[growing] += factor[growing] * values[last[growing]]
        factor[growing] *= discounts[last[growing]]
        growing = growing[~ends[last[growing]]]
    return totals, last, factor


def _floating(values: npt.ArrayLike) -> Array:
    array = _vector(values)
    return array if np.issubdtype(array.dtype, np.floating) else array.astype(np.float32)


def _vector(values: npt.ArrayLike) -> Array:
    array = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    return array.reshape(len(array)) if array.ndim else array.reshape(1)
