"""Which to take? Configurations by what the judges of their runs say: their values together, their order, who
is level; and where to leave a dial, whose positions are judged as policies of their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from rl_training.core.errors import UserError
from rl_training.core.types import Facts, number
from rl_training.judging.policies import Predicts
from rl_training.judging.verdict import (
    LIMIT_ORDER,
    DialCurve,
    DialPosition,
    Interval,
    Judgement,
    LimitOutcome,
    interval,
)
from rl_training.policies.acting import ActingPolicy

CONFIDENCE = 0.9
"""That of the intervals that runs give their own policies."""


@dataclass(frozen=True)
class Candidate:
    """A configuration over its runs, one per seed."""

    value: Interval
    score: float
    verdicts: tuple[str, ...]
    limits: LimitOutcome | None = None
    """whether all runs keep all limits; none where there are none"""

    @property
    def out_of_question(self) -> bool:
        """Refused, or not shown to keep the limits."""
        return self.refused or self.limits in ("breaks", "cannot tell")

    @property
    def refused(self) -> bool:
        """One refused run is enough: the others may be those that were lucky."""
        return "refused" in self.verdicts

    @property
    def place(self) -> tuple[int, float]:
        """What candidates are sorted by, from the one to take first."""
        return LIMIT_ORDER.index(self.limits), -self.score

    @property
    def told(self) -> str:
        return tell_verdicts(self.verdicts) + ("" if self.limits is None else f", {told_limits(self.limits)}")


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
        limits_of(runs),
    )


def limits_of(runs: Sequence[Facts]) -> LimitOutcome | None:
    """The worst that the judge says of any run; one that says nothing beside others that do is not known."""
    told = [next((each for each in LIMIT_ORDER if each == run.get("judge_limits")), None) for run in runs]
    if all(each is None for each in told):
        return None
    return max((each or "cannot tell" for each in told), key=LIMIT_ORDER.index)


def told_limits(outcome: LimitOutcome) -> str:
    """In words, as a part of a sentence or the cell of a table."""
    words: dict[LimitOutcome, str] = {
        "keeps": "keeps its limits",
        "breaks": "breaks a limit",
        "cannot tell": "limits: cannot tell",
    }
    return words[outcome]


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
    """Names in the order of `Judgement.ranking()`: those that keep limits first, then by the score."""
    return sorted(candidates, key=lambda name: candidates[name].place)


def clearly_above(first: Candidate, second: Candidate) -> bool:
    """Whether the first's value is higher by more than both intervals leave open.

    The two are taken as independent. Candidates that share their resamples are less so, which makes this
    cautious: a tie may be called where a difference exists, not the other way round.
    """
    noise = math.hypot(half_width(first.value), half_width(second.value))
    return first.value.value - second.value.value > noise


def ties(candidates: Mapping[str, Candidate]) -> tuple[str, ...]:
    """Those, in order, that cannot be told from the first of the ranking; refused ones are never level, nor
    those that keep limits less surely.
    """
    first, *others = ranking(candidates)
    alike = [name for name in others if candidates[name].limits == candidates[first].limits]
    standing = [name for name in alike if not candidates[name].refused]
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


def tell_broken(candidates: Mapping[str, Candidate]) -> str:
    """`cql (breaks a limit)` for every configuration that is not shown to keep the limits, in order."""
    told = [(name, candidates[name].limits) for name in ranking(candidates)]
    return ", ".join(
        f"{name} ({told_limits(limits)})" for name, limits in told if limits in ("breaks", "cannot tell")
    )


def tell_verdicts(verdicts: Sequence[str]) -> str:
    """`better`, or of several runs `2 better, 1 refused`."""
    if len(verdicts) == 1:
        return verdicts[0]
    return ", ".join(f"{verdicts.count(each)} {each}" for each in sorted(set(verdicts)))


DIAL = "dial"


def has_dial(policy: Predicts) -> bool:
    return isinstance(policy, ActingPolicy) and any(each.name == DIAL for each in policy.inputs)


def at_positions(name: str, policy: Predicts, dials: Sequence[float]) -> dict[str, Predicts]:
    """The policy at every position, by a name of its own; one without a dial as it is."""
    if not isinstance(policy, ActingPolicy) or not has_dial(policy):
        return {name: policy}
    return {name_at(name, dial): policy.with_inputs(dial=dial) for dial in dials}


def name_at(name: str, dial: float) -> str:
    return f"{name} at dial {dial:g}"


def checked_dials(dials: Sequence[float]) -> tuple[float, ...]:
    """Positions in order, each once."""
    wrong = [each for each in dials if not 0.0 <= each <= 1.0]
    if wrong or not dials:
        raise UserError(f"dial must be numbers from 0 to 1, got {wrong[0] if wrong else 'none'}")
    return tuple(sorted(set(map(float, dials))))


def dial_curve(judgement: Judgement, name: str, positions: Mapping[float, str]) -> DialCurve:
    """What is known of each position, judged by a name of its own, and the one to leave the dial at."""
    found = {dial: judgement.named(own) for dial, own in positions.items()}
    points = tuple(
        DialPosition(
            dial,
            each.name,
            each.value,
            each.low,
            each.high,
            each.verdict,
            outside_of(each.checks),
            each.limits,
        )
        for dial, each in found.items()
    )
    return DialCurve(name, points, recommended(judgement, points))


def outside_of(checks: object) -> float | None:
    """Share of its actions that lie outside the log."""
    assert isinstance(checks, dict)
    share = checks["coverage"].numbers.get("share_outside") if "coverage" in checks else None
    return None if share is None else float(share)


def recommended(judgement: Judgement, points: Sequence[DialPosition]) -> float | None:
    """The largest position whose checks pass, and those of all below it, and beyond which nothing is gained.

    From position to position it goes on only where the next one surely earns more, judged on the same
    resamples: a tie stays closer to what is done today. Positions that are not shown to keep the limits are
    passed over: what is done today may break one that a position further up keeps.
    """
    best: DialPosition | None = None
    for point in points:
        if point.verdict == "refused":
            break
        if point.limits in ("breaks", "cannot tell"):
            continue
        if best is None:
            best = point
            continue
        gain = judgement.compare(point.name, best.name).low
        if gain is not None and gain > 0.0:
            best = point
    return None if best is None else best.dial


def sentence_of_dial(curve: DialCurve) -> str:
    """One sentence on where to leave it."""
    if curve.recommended is None:
        if any(each.verdict != "refused" and each.limits in (None, "keeps") for each in curve.positions):
            return f"{curve.name}: no position of its dial is recommended."
        limits = " and keeps the limits" * any(each.limits is not None for each in curve.positions)
        return f"{curve.name}: leave the dial alone; no position passes the checks{limits}."
    refused = [f"{each.dial:g}" for each in curve.positions if each.verdict == "refused"]
    beyond = f" Positions {', '.join(refused)} fail a check." if refused else ""
    broken = [f"{each.dial:g}" for each in curve.positions if each.limits in ("breaks", "cannot tell")]
    beyond += f" Positions {', '.join(broken)} are not shown to keep the limits." if broken else ""
    if curve.recommended == curve.positions[0].dial:
        where = f"leave the dial at {curve.recommended:g}; further up nothing is surely gained."
        return f"{curve.name}: {where}{beyond}"
    return (
        f"{curve.name}: turn the dial to {curve.recommended:g}; its checks pass, and further up nothing is "
        f"surely gained.{beyond}"
    )
