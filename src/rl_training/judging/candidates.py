"""Configurations by what the judges of their runs say: their values together, their order, who is level."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from rl_training.core.types import Facts, number
from rl_training.judging.verdict import Interval, interval

CONFIDENCE = 0.9
"""That of the intervals that runs give their own policies."""


@dataclass(frozen=True)
class Candidate:
    """A configuration over its runs, one per seed."""

    value: Interval
    score: float
    verdicts: tuple[str, ...]

    @property
    def refused(self) -> bool:
        """One refused run is enough: the others may be those that were lucky."""
        return "refused" in self.verdicts

    @property
    def place(self) -> float:
        """What candidates are sorted by, from the one to take first."""
        return -self.score

    @property
    def told(self) -> str:
        return tell_verdicts(self.verdicts)


def candidate_of(metrics: Iterable[Facts]) -> Candidate | None:
    """What the final metrics of runs say together; none where one of them was not judged.

    Judges of the same log share their noise, which seeds do not average out; their spread adds to it.
    """
    runs = list(metrics)
    judged = [told for each in runs if (told := estimate_of(each)) is not None]
    if not runs or len(judged) < len(runs):
        return None
    values = [each.value for each in judged]
    noise = fmean(map(half_width, judged))
    if len(runs) > 1:
        noise = math.hypot(noise, half_width(interval(np.array(values), CONFIDENCE, of_mean=True)))
    scores = [_score(*each) for each in zip(runs, values, strict=True)]
    return Candidate(
        Interval(fmean(values), fmean(values) - noise, fmean(values) + noise),
        fmean(scores),
        tuple(str(each.get("judge_verdict")) for each in runs),
    )


def _score(metrics: Facts, value: float) -> float:
    """What it is ordered by; runs of earlier versions have none where they were refused."""
    score = number(metrics.get("judge_score"))
    if score is not None:
        return score
    return -math.inf if metrics.get("judge_verdict") == "refused" else value


def estimate_of(metrics: Facts) -> Interval | None:
    """The value that a run's judge gave its final policy; none where it was not judged."""
    value, low, high = (number(metrics.get(f"judge_{name}")) for name in ("value", "low", "high"))
    return None if value is None else Interval(value, low, high)


def half_width(interval: Interval) -> float:
    """Half of the interval; infinite where it has no bounds."""
    if interval.low is None or interval.high is None:
        return math.inf
    return (interval.high - interval.low) / 2.0


def ranking(candidates: Mapping[str, Candidate]) -> list[str]:
    """Names in the order of `Judgement.ranking()`: by the score."""
    return sorted(candidates, key=lambda name: candidates[name].place)


def clearly_above(first: Candidate, second: Candidate) -> bool:
    """Whether the first's value is higher by more than both intervals leave open.

    The two are taken as independent. Candidates that share their resamples are less so, which makes this
    cautious: a tie may be called where a difference exists, not the other way round.
    """
    noise = math.hypot(half_width(first.value), half_width(second.value))
    return first.value.value - second.value.value > noise


def ties(candidates: Mapping[str, Candidate]) -> tuple[str, ...]:
    """Those, in order, that cannot be told from the first of the ranking; refused ones are never level."""
    first, *others = ranking(candidates)
    standing = [name for name in others if not candidates[name].refused]
    return tuple(name for name in standing if not clearly_above(candidates[first], candidates[name]))


def tell_refusals(candidates: Mapping[str, Candidate]) -> str:
    """`cql (2 of 3 runs)` for every configuration that the judge refused, in order."""
    told = []
    for name in ranking(candidates):
        verdicts = candidates[name].verdicts
        if candidates[name].refused:
            told.append(
                f"{name} ({verdicts.count('refused')} of {len(verdicts)} run{'s' * (len(verdicts) > 1)})"
            )
    return ", ".join(told)


def tell_verdicts(verdicts: Sequence[str]) -> str:
    """`better`, or of several runs `2 better, 1 refused`."""
    if len(verdicts) == 1:
        return verdicts[0]
    return ", ".join(f"{verdicts.count(each)} {each}" for each in sorted(set(verdicts)))
