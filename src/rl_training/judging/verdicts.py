"""From values and checks to one of four verdicts and the sentence that says it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rl_training.judging.judgement import Check, Interval, Verdict
from rl_training.judging.log import Float64Array


def interval(
    members: Float64Array, confidence: float, extra: float = 0.0, *, of_mean: bool = False
) -> Interval:
    """Mean of bootstrap members and t times their spread, widened by a known error of the level.

    `of_mean`: t times the standard error of their mean instead, where members differ by more than the log.
    """
    from scipy.stats import t

    mean = float(members.mean())
    spread = float(members.std(ddof=1)) / (len(members) ** 0.5 if of_mean else 1.0)
    reach = float(t.ppf((1.0 + confidence) / 2.0, len(members) - 1)) * spread + extra
    return Interval(mean, mean - reach, mean + reach)


def combined(first: Interval, second: Interval, *, mean: bool) -> Interval:
    """The first method's value, or the mean of both, with an interval that spans both.

    Each sees what the other cannot: resampling shows noise, another method shows extrapolation.
    """
    lows, highs = (first.low, second.low), (first.high, second.high)
    low = None if None in lows else min(each for each in lows if each is not None)
    high = None if None in highs else max(each for each in highs if each is not None)
    return Interval((first.value + second.value) / 2.0 if mean else first.value, low, high)


def shifted(interval: Interval, by: float) -> Interval:
    low, high = (None if bound is None else bound + by for bound in (interval.low, interval.high))
    return Interval(interval.value + by, low, high)


def verdict_of(difference: Interval, checks: Mapping[str, Check]) -> Verdict:
    if any(check.outcome == "refused" for check in checks.values()):
        return "refused"
    if difference.low is not None and difference.low > 0.0:
        return "better"
    if difference.high is not None and difference.high < 0.0:
        return "worse"
    return "indistinguishable"


def sentence_of(verdict: Verdict, difference: Interval, per_step: float, checks: Mapping[str, Check]) -> str:
    """The verdict as a person would say it; `per_step` is the difference as reward per step."""
    bounds = f"[{number(difference.low)}, {number(difference.high)}]"
    if verdict == "refused":
        reasons = " ".join(check.reason for check in checks.values() if check.outcome == "refused")
        return f"Cannot be judged with this data: {reasons}"
    if verdict == "indistinguishable":
        told = f"{signed(difference.value)} {bounds}"
        return f"Not distinguishable from the logged behaviour with this data: {told}."
    size = Interval(abs(difference.value), *_sizes(difference))
    return (
        f"{verdict.capitalize()} than the logged behaviour by {number(size.value)} "
        f"[{number(size.low)}, {number(size.high)}], {number(abs(per_step))} per step."
    )


def number(value: float | None) -> str:
    """Four digits or so."""
    if value is None or not np.isfinite(value):
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def signed(value: float) -> str:
    return f"+{number(value)}" if value > 0 else number(value)


def _sizes(difference: Interval) -> tuple[float | None, float | None]:
    """The bounds of the size of a difference whose sign is sure."""
    if difference.low is None or difference.high is None or difference.value >= 0.0:
        return difference.low, difference.high
    return -difference.high, -difference.low
