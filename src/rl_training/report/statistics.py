"""Scores of several runs in a few numbers: averages with bootstrap intervals, profiles, chances to win.

Scores come as strata: one array per task, one number per run in it. The bootstrap draws runs with replacement
inside each task (stratified; Agarwal et al. 2021, arXiv:2108.13264), and a statistic is taken over all runs
together. Nothing here knows run directories.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Strata = Sequence[npt.ArrayLike]
Statistic = Callable[[Array], Array]

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


def mean(scores: Array) -> Array:
    """Mean over the last axis, that of runs."""
    return np.asarray(scores.mean(-1))


def median(scores: Array) -> Array:
    """Median over the last axis."""
    return np.asarray(np.median(scores, -1))


def iqm(scores: Array) -> Array:
    """Interquartile mean: the mean without the lowest and the highest quarter of runs, rounded down.

    Fewer than four runs have no quarter to leave out, and this is their mean.
    """
    from scipy.stats import trim_mean

    return np.asarray(trim_mean(scores, QUARTER, axis=-1))


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
    low = high = np.asarray(math.nan)
    if not _lacks_spread(ours, theirs):
        low, high = interval(change, [*ours, *theirs], confidence)
    value = statistic(np.concatenate(ours)) - statistic(np.concatenate(theirs))
    return Estimate(float(value), float(low), float(high), sum(s.size for s in [*ours, *theirs]))


def probability_of_improvement(first: Strata, second: Strata, *, confidence: float = CONFIDENCE) -> Estimate:
    """P(a run of the first scores above a run of the second), averaged over tasks; a tie counts one half.

    Per task this is the Mann-Whitney U statistic over the number of pairs. Both sides need the same tasks, in
    the same order. Where all runs of one side are above all of the other, so are all of their resamples: the
    interval is that of Newcombe 2006 instead (method 5, doi:10.1002/sim.2324), the chances from which what
    was found lies no further than z standard errors, as these are at that chance.
    """
    from scipy.stats import norm

    ours, theirs = checked(first), checked(second)
    if len(ours) != len(theirs):
        raise ValueError(f"both sides must have the same tasks, got {len(ours)} and {len(theirs)}")
    found, runs = float(_win_rate(ours, theirs)), sum(s.size for s in [*ours, *theirs])
    if _lacks_spread(ours, theirs):
        return Estimate(found, math.nan, math.nan, runs)
    sizes = [(a.size, b.size) for a, b in zip(ours, theirs, strict=True)]
    possible = np.linspace(0.0, 1.0, 10_001)
    near = np.abs(possible - found) <= norm.ppf((1 + confidence) / 2) * _win_rate_error(possible, sizes)
    low, high = min(found, *possible[near][:1]), max(found, *possible[near][-1:])
    return Estimate(found, float(low), float(high), runs)


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


def interval(drawn: Array, samples: Sequence[Array], confidence: float) -> tuple[Array, Array]:
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
    low, high = np.quantile(drawn, [tail, 1 - tail], axis=0)
    return low, high


def _lacks_spread(*sides: Sequence[Array]) -> bool:
    """Whether one of the sides shows no spread, because it has one run per task."""
    return any(sum(sample.size for sample in side) <= len(side) for side in sides)


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


def _win_rate(ours: Sequence[Array], theirs: Sequence[Array]) -> Array:
    pairs = [(a[..., :, None], b[..., None, :]) for a, b in zip(ours, theirs, strict=True)]
    return np.asarray(np.mean([((a > b) + 0.5 * (a == b)).mean((-2, -1)) for a, b in pairs], axis=0))


def _win_rate_error(chance: Array, sizes: Sequence[tuple[int, int]]) -> Array:
    """Standard error of a win rate over tasks of so many runs per side, where the true one is `chance`."""
    variance = np.zeros_like(chance)
    for ours, theirs in sizes:
        others = (ours + theirs) / 2 - 1  # runs that share a pair's one side
        shared = others * (1 - chance) / (2 - chance) + others * chance / (1 + chance)
        variance += chance * (1 - chance) * (1 + shared) / (ours * theirs)
    return np.sqrt(variance) / len(sizes)
