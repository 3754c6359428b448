"""From values and checks to one of four verdicts and the sentence that says it, as objects that turn into
JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np

from rl_training.algorithms.dynamics import ColumnErrors
from rl_training.core.errors import UserError, did_you_mean
from rl_training.judging.explanation import Explanation
from rl_training.judging.log import FEWEST_STINTS, Float64Array

Verdict = Literal["better", "worse", "indistinguishable", "refused"]
Outcome = Literal["passed", "warned", "refused"]
LimitOutcome = Literal["keeps", "breaks", "cannot tell"]

LIMIT_ORDER: tuple[LimitOutcome | None, ...] = (None, "keeps", "cannot tell", "breaks")
"""From the best that can be said of limits to the worst; none where no limit is stated."""

ALIKE = 0.25
"""Two methods that learn from one log err alike in part: the truth may lie beyond both, by so much of the way
from one to the other."""


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
    explanation: Explanation | None = None
    """what the policy does"""


@dataclass(frozen=True)
class CostJudgement:
    """One cost of a policy, per step or per episode as its limit is."""

    name: str
    per: Literal["step", "episode"]
    value: float
    low: float
    high: float
    limit: float | None = None
    outcome: LimitOutcome | None = None
    """keeps: the upper bound lies below the limit; breaks: the lower one lies above; none without a limit"""
    sentence: str = ""
    """what is said of the limit"""
    estimates: Mapping[str, Interval] = field(default_factory=dict)
    checks: Mapping[str, Check] = field(default_factory=dict)
    """of the values of this cost"""

    @property
    def excess(self) -> float:
        """By how much of the limit the upper bound lies above it; below 0 it is kept, as far as this says."""
        if self.limit is None:
            return 0.0
        return (self.high - self.limit) / (abs(self.limit) or 1.0)


def limits_kept(costs: Sequence[CostJudgement]) -> LimitOutcome | None:
    """All limits together: the worst that is said of any; none where there are none."""
    return max((each.outcome for each in costs), key=LIMIT_ORDER.index, default=None)


@dataclass(frozen=True)
class LoggedCost:
    """One cost of the log as it was logged: nothing is estimated."""

    name: str
    per_step: float
    """mean over all rows"""
    per_episode: float
    """mean of the episodes' sums"""
    costly_episodes: int
    """those that cost more per step than the least"""
    limit: str | None = None
    episodes_within: float | None = None
    """share of episodes that kept the limit"""


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
    """for ranking: what both methods say together, the lower the further it leads out of the log"""
    members: tuple[float, ...] = ()
    """the fitted value by each network; those of one place saw the same episodes for every policy"""
    worlds: tuple[float, ...] = ()
    """the value in each network of the model of the dynamics, if there is one"""
    operators: Mapping[str, Interval] = field(default_factory=dict)
    """difference to each operator that the log names, from where this took over"""
    costs: tuple[CostJudgement, ...] = ()
    """what it costs, and whether that keeps the limits"""

    @property
    def limits(self) -> LimitOutcome | None:
        """Whether it keeps all limits; none where there are none."""
        return limits_kept(self.costs)

    @property
    def excess(self) -> float | None:
        """By what share of its limit the cost that is least within its own lies above it; 0 or more where
        that cannot be told, below 0 where all are kept; none without limits.
        """
        found = [
            each.excess if each.outcome == "keeps" else max(each.excess, 0.0)
            for each in self.costs
            if each.outcome is not None
        ]
        return max(found, default=None)


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
    costs: tuple[CostJudgement, ...] = ()
    """estimated as those of policies are"""

    @property
    def limits(self) -> LimitOutcome | None:
        """Whether the log's own behaviour keeps all limits."""
        return limits_kept(self.costs)


@dataclass(frozen=True)
class OperatorJudgement:
    """Somebody who acted in the log, valued by the same procedure from where it took over."""

    name: str
    value: float
    low: float
    high: float
    stints: int
    """how often it took over"""
    costs: tuple[CostJudgement, ...] = ()

    @property
    def limits(self) -> LimitOutcome | None:
        """Whether it keeps all limits."""
        return limits_kept(self.costs)


@dataclass(frozen=True)
class DialPosition:
    """A policy with its dial at one position, judged as a policy of its own."""

    dial: float
    name: str
    value: float
    low: float
    high: float
    verdict: Verdict
    share_outside: float | None
    """of its actions in logged states, further from the log than the log's own rows are"""
    limits: LimitOutcome | None = None
    """whether it keeps all limits"""


@dataclass(frozen=True)
class DialCurve:
    """Value against dial, and where to leave it; none where no position passes its checks."""

    name: str
    positions: tuple[DialPosition, ...]
    recommended: float | None


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
    operators: tuple[OperatorJudgement, ...] = ()
    """those whom the log names, where a column says who acted"""
    dials: tuple[DialCurve, ...] = ()
    """of policies with a dial that were judged at several positions"""
    logged_costs: tuple[LoggedCost, ...] = ()
    """what the log itself says of every cost"""
    model: tuple[ColumnErrors, ...] = ()
    """how well the judge's own model predicts episodes that its members have not seen"""

    @property
    def gamma(self) -> float:
        return float(self.settings["gamma"])

    def per_step(self, value: float) -> float:
        """A discounted value as reward per step."""
        kept = float(self.data.get("step_discount", self.gamma))
        return value * (1.0 - kept) if kept < 1.0 else value / float(self.data["mean_length"])

    def ranking(self) -> list[PolicyJudgement]:
        """By the score, from the one to take first; a verdict, also a refusal, stands beside it.

        Where limits are stated, those that keep them come first, and those that break one last.
        """
        return sorted(self.policies, key=lambda each: (LIMIT_ORDER.index(each.limits), -each.score))

    def named(self, name: str) -> PolicyJudgement:
        """The judgement of one policy."""
        for each in self.policies:
            if each.name == name:
                return each
        known = [each.name for each in self.policies]
        raise UserError(f"no policy is called {name!r}{did_you_mean(name, known)}; it is one of {known}")

    def compare(self, first: str, second: str) -> Interval:
        """What the first policy earns more than the second, with an interval of its own.

        Network by network: what both share, such as lucky episodes, cancels. Where a model was asked as well,
        the interval spans its answer, world by world.
        """
        confidence, a, b = float(self.settings["confidence"]), self.named(first), self.named(second)
        shared = max(_beyond_members(each, confidence) for each in (a, b))
        fitted = interval(np.subtract(a.members, b.members), confidence, shared)
        if not (a.worlds and b.worlds):
            return fitted
        model = interval(np.subtract(a.worlds, b.worlds), confidence, of_mean=True)
        return combined(fitted, model, together=True)

    def ties(self) -> list[PolicyJudgement]:
        """The first of the ranking and those that this log cannot tell from it, in order.

        Compared network by network: what all policies share, such as lucky episodes, cancels.
        """

        first, *others = self.ranking()
        tied = [first]
        for each in others:
            if each.verdict == "refused" and first.verdict != "refused":
                continue
            if each.limits != first.limits:
                continue
            gap = self.compare(first.name, each.name)
            if gap.low is None or gap.low <= 0.0:
                tied.append(each)
        return tied

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain data: `json.dumps` takes it."""
        plain = asdict(self)
        for policy, told in zip(self.policies, plain["policies"], strict=True):
            told["per_step"] = self.per_step(policy.value)
            told["limits"] = policy.limits
        plain["behaviour"]["per_step"] = self.per_step(self.behaviour.value)
        return plain


def joined(parts: Sequence[Judgement]) -> Judgement:
    """Judgements of several policies by the same log, settings and seed as one: what all share is equal."""
    first, policies = parts[0], tuple(each for part in parts for each in part.policies)
    advice, seconds = advice_for(policies, first.behaviour), max(part.seconds for part in parts)
    return replace(first, policies=policies, advice=advice, seconds=seconds)


def _beyond_members(policy: PolicyJudgement, confidence: float) -> float:
    """By how much the fitted value's interval is wider than what its networks differ by."""
    fitted, spread = policy.estimates["fqe"], interval(np.array(policy.members), confidence)
    if None in (fitted.high, spread.high):
        return 0.0
    return max(0.0, float(fitted.high or 0.0) - float(spread.high or 0.0))


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


def combined(first: Interval, second: Interval, *, together: bool) -> Interval:
    """The first method's value, or what both say together, with an interval that spans both and more.

    Each sees what the other cannot: resampling shows noise, another method shows extrapolation. Together,
    each counts the more the narrower it is: the spread of networks, or of worlds, tells where a method fails.
    """
    lows, highs = (first.low, second.low), (first.high, second.high)
    beyond = ALIKE * abs(first.value - second.value)
    low = None if None in lows else min(each for each in lows if each is not None) - beyond
    high = None if None in highs else max(each for each in highs if each is not None) + beyond
    return Interval(weighted(first, second) if together else first.value, low, high)


def weighted(first: Interval, second: Interval) -> float:
    """The mean of two values, each weighed by one over the width of its interval; plain without widths."""
    own, other = (
        None if each.low is None or each.high is None else each.high - each.low for each in (first, second)
    )
    if own is None or other is None or own + other <= 0.0:
        return (first.value + second.value) / 2.0
    return (first.value * other + second.value * own) / (own + other)


def widened(own: Interval, plain: Interval, wide: Interval) -> Interval:
    """An interval with as much more on either side as `wide` has around `plain`."""
    if None in (own.low, own.high, plain.low, plain.high, wide.low, wide.high):
        return Interval(own.value)
    below = max(0.0, float(plain.low or 0.0) - float(wide.low or 0.0))
    above = max(0.0, float(wide.high or 0.0) - float(plain.high or 0.0))
    return Interval(own.value, float(own.low or 0.0) - below, float(own.high or 0.0) + above)


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
    if verdict == "refused":
        reasons = " ".join(check.reason for check in checks.values() if check.outcome == "refused")
        return f"Cannot be judged with this data: {reasons}"
    if verdict == "indistinguishable":
        bounds = f"[{number(difference.low)}, {number(difference.high)}]"
        told = f"{'+' * (difference.value > 0)}{number(difference.value)} {bounds}"
        return f"Not distinguishable from the logged behaviour with this data: {told}."
    low, high = difference.low, difference.high
    if difference.value < 0.0 and low is not None and high is not None:
        low, high = -high, -low  # the size of what is lost
    return (
        f"{verdict.capitalize()} than the logged behaviour by {number(abs(difference.value))} "
        f"[{number(low)}, {number(high)}], {number(abs(per_step))} per step."
    )


def number(value: float | None) -> str:
    """Four digits or so."""
    if value is None or not np.isfinite(value):
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def best_of(differences: Mapping[str, Interval]) -> str:
    """Who is hardest to beat: the one to whom the difference is smallest."""
    return min(differences, key=lambda name: differences[name].value)


def against_the_best(
    differences: Mapping[str, Interval], checks: Mapping[str, Check], seldom: Mapping[str, int]
) -> str:
    """How a policy stands to the best operator, as the rest of a sentence."""
    name = best_of(differences)
    whom = f"its best operator, {name}" if not seldom else f"the best operator that can be judged, {name}"
    difference = differences[name]
    verdict: Verdict = verdict_of(difference, checks)
    bounds = f"[{number(difference.low)}, {number(difference.high)}]"
    told = {
        "better": f"Better than {whom}, too",
        "worse": f"Worse than {whom}",
        "indistinguishable": f"Not distinguishable from {whom}",
        "refused": f"Nor can it be compared with {whom}",
    }[verdict]
    left_out = "".join(
        f" {each} took over too seldom to be judged: {count} times, {FEWEST_STINTS} are the least."
        for each, count in seldom.items()
    )
    return f"{told}: {'+' * (difference.value > 0)}{number(difference.value)} {bounds}.{left_out}"


def advice_for(policies: Sequence[PolicyJudgement], behaviour: BehaviourJudgement) -> tuple[str, ...]:
    """What would make an answer surer, what helps most first; none where everything was sure."""
    everything = [*(each.checks for each in policies), behaviour.checks]
    refused = {name for found in everything for name, check in found.items() if check.outcome == "refused"}
    told = []
    if "falsification" in refused:
        told.append(
            "Look for what is missing in the observations (a set point, a disturbance, the previous action), "
            "and check that each reward belongs to the row it stands in."
        )
    if refused & {"episodes_alike", "memory"}:
        told.append(
            "Give the judge what the plant or its operators answer to and the observations lack: a load, a "
            "product, which plant it is, earlier rows."
        )
    if "unmarked_ends" in refused:
        told.append("Mark the rows in which the task itself ended, such as trips.")
    if refused & {"coverage", "rollout_coverage"}:
        told.append(
            "Log some episodes with actions nearer to the policy's, for example the running controller with "
            "small deviations towards it; or train with a stronger pull to the data."
        )
    if "convergence" in refused:
        told.append("Allow more updates, or judge with a smaller gamma.")
    if "second_opinion" in refused:
        told.append("Log more episodes in the states where the policy differs most from the log.")
    if any(each.verdict == "indistinguishable" for each in policies):
        told.append("Log more episodes: the interval shrinks with the square root of their number.")
    return tuple(told)
