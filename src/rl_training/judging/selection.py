"""Choosing between estimated values: who leads, and who cannot be told apart from the leader."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rl_training.judging.judgement import Interval


def half_width(interval: Interval) -> float:
    """Half of the interval; infinite where it has no bounds."""
    if interval.low is None or interval.high is None:
        return math.inf
    return (interval.high - interval.low) / 2.0


def within_noise(leader: Interval, other: Interval) -> bool:
    """Whether two estimates differ by no more than their intervals say.

    The two are taken as independent. Candidates that share their resamples are less so, which makes this
    cautious: a tie may be called where a difference exists, not the other way round.
    """
    return abs(leader.value - other.value) <= math.hypot(half_width(leader), half_width(other))


def choice(candidates: Mapping[str, Interval]) -> tuple[str, tuple[str, ...]]:
    """The candidate with the highest cautious end, and those that are level with it, from the best down."""
    order = sorted(candidates, key=lambda name: -cautious(candidates[name]))
    leader = order[0]
    return leader, tuple(n for n in order[1:] if within_noise(candidates[leader], candidates[n]))


def cautious(interval: Interval) -> float:
    return -math.inf if interval.low is None else interval.low
