"""What a judgement says, as plain objects that turn into JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

Verdict = Literal["better", "worse", "indistinguishable", "refused"]
Outcome = Literal["passed", "warned", "refused"]


@dataclass(frozen=True)
class Interval:
    """A number and where it lies with the stated confidence; without bounds, nothing is claimed of it."""

    value: float
    low: float | None = None
    high: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Check:
    """One question asked of the data, what came out, and what that means."""

    outcome: Outcome
    reason: str
    """one plain sentence"""
    numbers: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ActionComparison:
    """One action of the policy beside the logged one, in the user's units."""

    name: str
    mean_difference: float
    """mean |pi(s) - a|"""
    mean: float
    logged_mean: float
    on_bound: float
    """share of states at which the policy's action lies on a bound"""
    logged_on_bound: float
    rate: float
    """mean |change| from one logged state to the next"""
    logged_rate: float


@dataclass(frozen=True)
class UncoveredState:
    """A logged state at which the policy does what the log has never seen the like of."""

    distance: float
    """in multiples of what 99 % of the logged rows stay below"""
    observation: Mapping[str, float]
    logged_action: Mapping[str, float]
    action: Mapping[str, float]


@dataclass(frozen=True)
class Evidence:
    """What a page draws: points and curves, as plain numbers."""

    actions: tuple[ActionComparison, ...] = ()
    along_time: tuple[tuple[float, float, float], ...] = ()
    """(step, value of the policy, value of the behaviour) along the logged episodes"""
    map_logged: tuple[tuple[float, float], ...] = ()
    map_inside: tuple[tuple[float, float], ...] = ()
    map_outside: tuple[tuple[float, float], ...] = ()
    uncovered: tuple[UncoveredState, ...] = ()
    critic: tuple[tuple[float, float], ...] = ()
    """(value by the critic it was trained with, mean return-to-go of such rows), from low to high values"""
    training: tuple[tuple[float, float, float, float], ...] = ()
    """(updates, value, low, high) while the values were fitted"""


@dataclass(frozen=True)
class PolicyJudgement:
    """One policy: its value, whether that is better than the log, and why one may or may not believe it."""

    name: str
    value: float
    low: float
    high: float
    difference: Interval
    """to the behaviour's value"""
    verdict: Verdict
    sentence: str
    reasons: tuple[str, ...]
    """why it was refused, or what else should be known"""
    estimates: Mapping[str, Interval]
    checks: Mapping[str, Check]
    evidence: Evidence
    score: float
    """for ranking: the mean of both methods; of a refused policy, if it earns the least outside the log"""
    members: tuple[float, ...] = ()
    """the fitted value by each network; those of one place saw the same episodes for every policy"""


@dataclass(frozen=True)
class BehaviourJudgement:
    """The log's own behaviour, valued by the same procedure."""

    value: float
    low: float
    high: float
    mean_return: float
    """mean discounted return of the episodes as logged, without what cut-off episodes would still earn"""
    checks: Mapping[str, Check]
    calibration: tuple[tuple[float, float], ...]
    """(held-out value, mean return-to-go of such rows), from low to high values"""


@dataclass(frozen=True)
class Judgement:
    """The answer to: how good are these policies, by this log?"""

    policies: tuple[PolicyJudgement, ...]
    behaviour: BehaviourJudgement
    data: Mapping[str, Any]
    settings: Mapping[str, Any]
    advice: tuple[str, ...]
    """what would make the answer surer"""
    seconds: float

    @property
    def gamma(self) -> float:
        return float(self.settings["gamma"])

    def per_step(self, value: float) -> float:
        """A discounted value as reward per step."""
        kept = float(self.data.get("step_discount", self.gamma))
        return value * (1.0 - kept) if kept < 1.0 else value / float(self.data["mean_length"])

    def ranking(self) -> list[PolicyJudgement]:
        """From the one to take first; refused ones come last."""
        return sorted(self.policies, key=lambda each: (each.verdict == "refused", -each.score))

    def ties(self) -> list[PolicyJudgement]:
        """The first of the ranking and those that this log cannot tell from it, in order.

        Compared network by network: what all policies share, such as lucky episodes, cancels.
        """
        from rl_training.judging.verdicts import interval

        first, *others = self.ranking()
        tied = [first]
        for each in others:
            if each.verdict == "refused" and first.verdict != "refused":
                continue
            gap = interval(np.subtract(first.members, each.members), float(self.settings["confidence"]))
            if gap.low is None or gap.low <= 0.0:
                tied.append(each)
        return tied

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain data: `json.dumps` takes it."""
        plain = asdict(self)
        for policy, told in zip(self.policies, plain["policies"], strict=True):
            told["per_step"] = self.per_step(policy.value)
        plain["behaviour"]["per_step"] = self.per_step(self.behaviour.value)
        return plain
