"""Scores of several runs in a few numbers: averages with bootstrap intervals, profiles, chances to win.

Scores come as strata: one array per task, one number per run in it. The bootstrap draws runs with replacement
inside each task (stratified; Agarwal et al. 2021, arXiv:2108.13264), and a statistic is taken over all runs
together. Nothing here knows run directories.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Strata = Sequence[npt.ArrayLike]
Statistic = Callable[[Array], Any]

REPETITIONS = 5000
CONFIDENCE = 0.95
QUARTER = 0.25
FEW_RUNS = 5
"""Below it, intervals are known to be too narrow."""


@dataclass(frozen=True)
class Estimate:
    """A number, its interval and how many runs it rests on.

    The bounds are NaN where no interval can be given: one run per task says nothing about spread.
    """

    value: float
    low: float
    high: float
    runs: int

    @property
    def has_interval(self) -> bool:
        return not (math.isnan(self.low) or math.isnan(self.high))


def mean(scores: Array) -> Any:
    """Mean over the last axis, that of runs."""
    return scores.mean(-1)


def median(scores: Array) -> Any:
    """Median over the last axis."""
    return np.median(scores, -1)


def iqm(scores: Array) -> Any:
    """Interquartile mean: the mean without the lowest and the highest quarter of runs, rounded down.

    Fewer than four runs have no quarter to leave out, and this is their mean.
    """
    from scipy.stats import trim_mean

    return trim_mean(scores, QUARTER, axis=-1)


STATISTICS: dict[str, Statistic] = {"mean": mean, "median": median, "IQM": iqm}


def estimate(
    strata: Strata,
    statistic: Statistic = mean,
    *,
    seed: int = 0,
    repetitions: int = REPETITIONS,
    confidence: float = CONFIDENCE,
) -> Estimate:
    """A statistic over the runs of all tasks, with its stratified bootstrap interval."""
    samples = checked(strata)
    drawn = statistic(np.concatenate(resampled(samples, repetitions, seed), -1))
    low, high = interval(drawn, samples, confidence)
    pooled = np.concatenate(samples)
    return Estimate(float(statistic(pooled)), float(low), float(high), pooled.size)


def difference(
    first: Strata,
    second: Strata,
    statistic: Statistic = mean,
    *,
    seed: int = 0,
    confidence: float = CONFIDENCE,
) -> Estimate:
    """Statistic of the first set of runs minus that of the second; runs counts both."""
    ours, theirs = checked(first), checked(second)
    drawn = resampled([*ours, *theirs], REPETITIONS, seed)
    split = len(ours)
    change = statistic(np.concatenate(drawn[:split], -1)) - statistic(np.concatenate(drawn[split:], -1))
    low, high = _interval_between(change, ours, theirs, confidence)
    value = statistic(np.concatenate(ours)) - statistic(np.concatenate(theirs))
    return Estimate(float(value), float(low), float(high), sum(s.size for s in [*ours, *theirs]))


def probability_of_improvement(
    first: Strata, second: Strata, *, seed: int = 0, confidence: float = CONFIDENCE
) -> Estimate:
    """P(a run of the first scores above a run of the second), averaged over tasks; a tie counts one half.

    Per task this is the Mann-Whitney U statistic over the number of pairs. Both sides need the same tasks, in
    the same order.
    """
    ours, theirs = checked(first), checked(second)
    if len(ours) != len(theirs):
        raise ValueError(f"both sides must have the same tasks, got {len(ours)} and {len(theirs)}")
    drawn = resampled([*ours, *theirs], REPETITIONS, seed)
    split = len(ours)
    chances = _win_rate(drawn[:split], drawn[split:])
    low, high = _interval_between(chances, ours, theirs, confidence)
    runs = sum(s.size for s in [*ours, *theirs])
    return Estimate(float(_win_rate(ours, theirs)), float(low), float(high), runs)


@dataclass(frozen=True)
class Profile:
    """Share of runs that score above each threshold, with a pointwise interval."""

    thresholds: Array
    share: Array
    low: Array
    high: Array
    runs: int


def performance_profile(
    strata: Strata, thresholds: npt.ArrayLike, *, seed: int = 0, confidence: float = CONFIDENCE
) -> Profile:
    """The run-score distribution: for each threshold, the share of runs above it."""
    samples = checked(strata)
    levels = np.asarray(thresholds, dtype=np.float64)
    drawn = np.concatenate(resampled(samples, REPETITIONS, seed), -1)
    above = np.stack([(drawn > level).mean(-1) for level in levels], -1)
    low, high = interval(above, samples, confidence)
    pooled = np.concatenate(samples)
    return Profile(levels, (pooled[:, None] > levels).mean(0), low, high, pooled.size)


def interval(drawn: Array, samples: Sequence[Array], confidence: float) -> tuple[Any, Any]:
    """Bounds from bootstrap draws (first axis): percentiles, widened for few runs.

    Plain percentiles are too narrow for few runs, by the factor sqrt((n-1)/n) and by the normal instead of
    the t quantile. Taking further percentiles makes up for both (Hesterberg 2015, arXiv:1411.5279). No choice
    of percentiles reaches beyond the lowest and the highest run, so five runs or fewer remain optimistic.
    """
    from scipy.stats import norm, t

    runs = sum(sample.size for sample in samples)
    freedom = runs - len(samples)
    if freedom < 1:
        nothing = np.full(drawn.shape[1:], np.nan)
        return nothing, nothing
    tail = norm.cdf(math.sqrt(runs / freedom) * t.ppf((1 - confidence) / 2, freedom))
    return tuple(np.quantile(drawn, [tail, 1 - tail], axis=0))


def _interval_between(
    drawn: Array, ours: Sequence[Array], theirs: Sequence[Array], confidence: float
) -> tuple[Any, Any]:
    """As `interval`; there is none if one of the sides shows no spread because it has one run per task."""
    if any(sum(sample.size for sample in side) <= len(side) for side in (ours, theirs)):
        return math.nan, math.nan
    return interval(drawn, [*ours, *theirs], confidence)


def resampled(samples: Sequence[Array], repetitions: int, seed: int) -> list[Array]:
    """For each task, `repetitions` rows of as many runs as it has, drawn with replacement."""
    generator = np.random.default_rng(seed)
    return [sample[generator.integers(sample.size, size=(repetitions, sample.size))] for sample in samples]


def checked(strata: Strata) -> list[Array]:
    """The scores as arrays; an empty task or a score that is not a number would make every result one."""
    samples = [np.asarray(scores, dtype=np.float64).reshape(-1) for scores in strata]
    if not samples or any(sample.size == 0 for sample in samples):
        raise ValueError("scores must hold at least one run for each task")
    if not all(np.isfinite(sample).all() for sample in samples):
        raise ValueError("scores must be finite numbers")
    return samples


def _win_rate(ours: Sequence[Array], theirs: Sequence[Array]) -> Any:
    pairs = [(a[..., :, None], b[..., None, :]) for a, b in zip(ours, theirs, strict=True)]
    return np.mean([((a > b) + 0.5 * (a == b)).mean((-2, -1)) for a, b in pairs], axis=0)
