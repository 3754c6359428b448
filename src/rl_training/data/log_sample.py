"""A sample of a log, small enough to fit things to while somebody waits, and the fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rl_training.core.types import Array
from rl_training.data.episodes import IntArray, episode_starts
from rl_training.data.log import EpisodeLog

Float64 = npt.NDArray[np.float64]

SAMPLE_ROWS = 20_000
"""Rows looked at: enough to tell, and a second or two whatever the size of the log."""

_PIECES = 16
"""Parts in which a long episode is looked at."""

_RANDOM_FEATURES = 96
_RIDGE = 1e-4

_FAR = 50.0
"""Values further away than so many times the range of nine tenths of their column are left out."""


@dataclass(frozen=True)
class LogSample:
    """Pieces of episodes from all over the log, in its order; rows with gaps are nobody's neighbour."""

    obs: Float64
    actions: Float64
    rewards: Float64
    piece: IntArray
    """number of the piece of each row"""
    episode: IntArray
    """number of the episode of each row"""
    finite: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.rewards)

    def rows(self, before: int, after: int = 1) -> IntArray:
        """Rows that have so many neighbours before and after them in the same piece, all without gaps."""
        count = len(self) - before - after
        if count <= 0:
            return np.zeros(0, dtype=np.int64)
        first = np.arange(count) + before
        gaps = np.concatenate([[0], np.cumsum(~self.finite)])
        whole = gaps[first + after + 1] == gaps[first - before]
        fitting: IntArray = first[whole & (self.piece[first - before] == self.piece[first + after])]
        return fitting


def sample_log(log: EpisodeLog, most: int = SAMPLE_ROWS) -> LogSample:
    """Pieces of at most a sixteenth of the sample, evenly spread over the log."""
    starts = episode_starts(log.ends)
    stops = np.append(starts[1:], len(log))
    size = max(most // _PIECES, 2)
    pieces = [
        (episode, first, min(first + size, int(stop)))
        for episode, (start, stop) in enumerate(zip(starts.tolist(), stops.tolist(), strict=True))
        for first in range(start, stop, size)
    ]
    if len(log) > most:
        mean = len(log) / len(pieces)
        chosen = np.linspace(0, len(pieces) - 1, max(1, int(most / mean))).round().astype(int)
        pieces = [pieces[index] for index in np.unique(chosen)]
    rows = np.concatenate([np.arange(first, stop) for _, first, stop in pieces])
    lengths = [stop - first for _, first, stop in pieces]
    obs, actions, rewards = (
        np.asarray(values[rows], dtype=np.float64).reshape(len(rows), -1)
        for values in (log.obs, log.actions, log.rewards)
    )
    obs[:, np.isnan(obs).all(axis=0)] = 0.0  # a column without any number says nothing about the others
    return LogSample(
        obs,
        actions,
        rewards[:, 0],
        np.repeat(np.arange(len(pieces)), lengths),
        np.repeat([episode for episode, _, _ in pieces], lengths),
        np.asarray(_usual(np.hstack([obs, actions, rewards]))),
    )


def _usual(values: Float64) -> npt.NDArray[np.bool_]:
    """Rows without gaps, and without codes such as -9999 that would outweigh everything else."""
    known = np.isfinite(values)
    low, middle, high = np.nanquantile(
        np.where(known | ~known.any(axis=0), np.where(known, values, 0.0), np.nan), (0.05, 0.5, 0.95), axis=0
    )
    wide = np.where(high > low, high - low, np.inf)
    usual: npt.NDArray[np.bool_] = (known & ~(np.abs(values - middle) > _FAR * wide)).all(axis=1)
    return usual


def standardised(values: Float64) -> Float64:
    """Columns with mean 0 and standard deviation 1; one that never changes is 0."""
    spread = values.std(axis=0)
    result: Float64 = (values - values.mean(axis=0)) / np.where(spread > 1e-12, spread, 1.0)
    return result


def curved(values: Float64) -> Float64:
    """The columns, their squares, and bent sums of them, so that a linear fit follows curves."""
    normal = standardised(values)
    return np.hstack([normal, normal**2, _bent_sums(normal, _RANDOM_FEATURES)])


def interacting(values: Float64) -> Float64:
    """The same, closer: the products of every two columns, and more bent sums."""
    normal = standardised(values)
    one, other = np.triu_indices(normal.shape[1])
    return np.hstack([normal, normal[:, one] * normal[:, other], _bent_sums(normal, 3 * _RANDOM_FEATURES)])


def _bent_sums(normal: Float64, count: int) -> Float64:
    draws = np.random.default_rng(0)
    directions = draws.normal(size=(normal.shape[1], count)) / np.sqrt(normal.shape[1])
    bent: Float64 = np.maximum(normal @ directions + draws.normal(size=count), 0.0)
    return bent


def without_outliers(values: Float64) -> Float64:
    """Standardised columns in which rows that stand out do not decide."""
    return np.clip(standardised(values), -3.0, 3.0)


def held_out_residuals(inputs: Float64, targets: Float64, groups: Array) -> Float64:
    """What a ridge regression fitted on half of the groups leaves over on the others."""
    normal, wanted = standardised(inputs), targets - targets.mean(axis=0)
    normal = np.hstack([normal, np.ones((len(normal), 1))])
    half = _halves(groups)
    left: Float64 = np.empty_like(wanted)
    for side in (False, True):
        fit, test = half != side, half == side
        gram = normal[fit].T @ normal[fit]
        gram[np.diag_indices_from(gram)] += _RIDGE * max(1, int(fit.sum()))
        left[test] = wanted[test] - normal[test] @ np.linalg.solve(gram, normal[fit].T @ wanted[fit])
    return left


def _halves(groups: Array) -> npt.NDArray[np.bool_]:
    """Half of the groups; of blocks of rows where there are few groups."""
    numbers = np.unique(groups, return_inverse=True)[1]
    if numbers.max(initial=0) < 3:
        numbers = np.arange(len(groups)) // max(1, len(groups) // 10)
    draws = np.random.default_rng(0)  # not by turns, which operators may take too
    halves: npt.NDArray[np.bool_] = (draws.permutation(int(numbers.max()) + 1) % 2 == 1)[numbers]
    return halves


def unexplained(inputs: Float64, targets: Float64, groups: Array) -> Float64:
    """Share of the variance of each target that is left over on held-out groups."""
    spread = targets.var(axis=0)
    left = (held_out_residuals(inputs, targets, groups) ** 2).mean(axis=0)
    shares: Float64 = np.asarray(left / np.where(spread > 1e-18, spread, np.inf))
    return shares


def lagged(values: Float64, rows: IntArray, lags: Sequence[int]) -> Float64:
    """The values so many rows before `rows`, side by side."""
    found: Float64 = np.hstack([values[rows - lag] for lag in lags])
    return found
