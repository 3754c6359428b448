"""Where episodes end in rows that are stored one after another, and what each episode earned."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from rl_training.core.plain import Array as Array

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

    def within(self, kept_rows: IntArray) -> LastRewards:
        """Those that remain when only `kept_rows` (ascending, whole episodes) are kept."""
        here = np.isin(self.rows, kept_rows)
        return LastRewards(np.searchsorted(kept_rows, self.rows[here]).astype(np.int64), self.rewards[here])


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
