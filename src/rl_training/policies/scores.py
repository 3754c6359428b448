"""Scores over seeds, as a model card shows them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy import stats


@dataclass(frozen=True)
class SeedScore:
    """The last evaluation of one seed."""

    seed: int
    mean: float
    std: float
    episodes: int


@dataclass(frozen=True)
class SeedEstimate:
    """What the log says of one seed's policy, which nobody has tried out."""

    seed: int
    value: float
    low: float
    high: float
    verdict: str


def mean_interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float] | None:
    """Student's interval for the mean; nothing can be said from fewer than two numbers."""
    count = len(values)
    if count < 2:
        return None
    mean = math.fsum(values) / count
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    return student_interval(mean, math.sqrt(variance), count, level)


def student_interval(mean: float, sample_std: float, count: int, level: float = 0.95) -> tuple[float, float]:
    width = float(stats.t.ppf((1.0 + level) / 2.0, count - 1)) * sample_std / math.sqrt(count)
    return mean - width, mean + width
