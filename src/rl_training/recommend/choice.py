"""Which of several judged policies is recommended, and what to log next where none is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rl_training.judging.verdict import Judgement, PolicyJudgement, best_of

NEARLY = 0.9
"""Share of the first policy's gain that another must have to be taken in its place."""
MOST_TIMES = 20
"""A log that had to be longer than this would not help: the gain is too small."""


@dataclass(frozen=True)
class Choice:
    """The recommended policy and why, or why none is."""

    name: str | None
    reason: str
    alike: tuple[str, ...] = ()
    """what the log cannot tell it from, and what acts further from the log than it does"""

    @property
    def sentence(self) -> str:
        """The answer in one sentence, or two."""
        if self.name is None:
            return f"No policy is recommended. {self.reason}"
        told = f"Recommended: {self.name}. {self.reason}"
        if self.alike:
            told += (
                f" This log cannot tell it from {', '.join(self.alike)}; it stays closest to what was logged."
            )
        return told


def distance_to_log(policy: PolicyJudgement, widths: Sequence[float]) -> float:
    """How far the policy's actions lie from the logged ones, as a share of what they can reach."""
    pairs = zip(policy.evidence.actions, widths, strict=True)
    return sum(each.mean_difference / width for each, width in pairs) / max(1, len(widths))


def choose(judgement: Judgement, widths: Sequence[float]) -> Choice:
    """The first of the judge's order that is better than the log, and no worse than its best operator; of
    those that it cannot tell apart and that gain nearly as much, the one that stays closest to the log.

    Where limits are stated, only what keeps all of them; and where the log's own behaviour breaks one, the
    best that does, also where it earns less: what must not go on is no standard.
    """
    better = [each for each in judgement.ranking() if is_wanted(each, judgement)]
    if not better:
        return Choice(None, _why_none(judgement))
    beyond = operators_beyond(judgement)
    ranked = [each for each in better if not _worse_than_an_operator(each, beyond)]
    if not ranked:
        told = f"{better[0].name} comes closest: {better[0].sentence}"
        return Choice(None, f"An operator of this log earns more than every candidate. {told}")
    first, *others = ranked
    enough = NEARLY * first.difference.value if first.difference.value > 0.0 else math.inf
    near = [first]
    for each in others:
        gap = judgement.compare(first.name, each.name)
        if each.difference.value >= enough and (gap.low is None or gap.low <= 0.0):
            near.append(each)
    chosen = min(near, key=lambda each: distance_to_log(each, widths))
    return Choice(chosen.name, chosen.sentence, tuple(each.name for each in near if each is not chosen))


def confirmed(choice: Choice, again: Judgement) -> Choice:
    """The choice after a second judgement on fresh resamples, which had no part in choosing it: what is said
    of the policy is said by this one, as whatever comes first of many looks better than it is.
    """
    if choice.name is None:
        return choice
    (second,) = [each for each in again.policies if each.name == choice.name]
    if is_wanted(second, again):
        return replace(choice, reason=second.sentence)
    missed = "it is not better" if second.limits in (None, "keeps") else "it is not shown to keep the limits"
    return Choice(
        None,
        f"{choice.name} came first, but judged again on fresh resamples {missed}: {second.sentence}",
    )


def is_wanted(policy: PolicyJudgement, judgement: Judgement) -> bool:
    """Better than the log within all limits, or within them where the log is not."""
    if policy.limits is None:
        return policy.verdict == "better"
    instead = policy.verdict != "refused" and judgement.behaviour.limits == "breaks"
    return policy.limits == "keeps" and (policy.verdict == "better" or instead)


def operators_beyond(judgement: Judgement) -> set[str]:
    """Operators whose costs seem to be above a limit: what they earn is no standard."""
    return {
        each.name
        for each in judgement.operators
        if any(cost.limit is not None and cost.value > cost.limit for cost in each.costs)
    }


def _worse_than_an_operator(policy: PolicyJudgement, beyond: set[str]) -> bool:
    compared = [each for name, each in policy.operators.items() if name not in beyond]
    return any(each.high is not None and each.high < 0.0 for each in compared)


def _why_none(judgement: Judgement) -> str:
    policies = judgement.policies
    if judgement.behaviour.limits is not None:
        missed = [each for each in policies if each.verdict == "better"] or judgement.ranking()[:1]
        nearest = min(missed, key=lambda each: math.inf if each.excess is None else each.excess)
        return (
            f"Of {len(policies)} candidates none is better than what was logged and shown to keep limits. "
            f"{nearest.name} comes nearest: {nearest.sentence}"
        )
    counts = {word: sum(each.verdict == word for each in policies) for word in ("refused", "worse")}
    unclear = len(policies) - sum(counts.values())
    told = [f"{counts['refused']} cannot be judged"] if counts["refused"] else []
    told += [f"{unclear} cannot be told from what was logged"] if unclear else []
    told += [f"{counts['worse']} are worse"] if counts["worse"] else []
    return f"Of {len(policies)} candidates none is better than what was logged: {', '.join(told)}."


# ---- what to log next, where none can be recommended


def what_to_log(judgement: Judgement, *, fell_back: bool = False) -> tuple[str, ...]:
    """Sentences, what helps most first; `fell_back`: the first was better, and was not when judged again."""
    told = list(judgement.advice)
    unclear = [each for each in judgement.policies if each.verdict == "indistinguishable"]
    promising = max(unclear, key=lambda each: each.difference.value, default=None)
    gain = 0.0 if promising is None else promising.difference.value
    if promising is not None and promising.difference.low is not None and gain > 0.0:
        # An interval shrinks with the square root of the episodes, and must leave 0 behind.
        times = math.ceil(((gain - promising.difference.low) / gain) ** 2)
        if times <= MOST_TIMES:
            told.insert(
                0,
                f"{promising.name} seems to gain {gain:.4g}: if so, about {times} times as many episodes "
                "would show it.",
            )
    if fell_back:
        told.append(
            "Log more episodes: what was gained hangs on which of them are counted, so that a second look "
            "did not find it again."
        )
    told += about_limits(judgement)
    allowed = [each for each in judgement.ranking() if each.limits in (None, "keeps")]
    first = next((each for each in allowed if each.verdict == "better"), None)
    if first is not None and not fell_back:
        told.append(
            f"Log more runs of {best_of(first.operators)}, who earns more than every candidate, with small "
            "deliberate changes of the actions; let the others work as this operator does until then."
        )
    if all(each.verdict == "worse" for each in judgement.policies):
        told.append(
            "Let those who act try small deliberate changes of their actions, and log them: this log has no "
            "example of acting better than it does."
        )
    return tuple(told)


def about_limits(judgement: Judgement) -> list[str]:
    """What would show that a limit is kept, or what is missing to learn to keep it."""
    told = []
    judged = [each for each in judgement.policies if each.verdict != "refused"]
    nearest = min(judged, key=lambda each: math.inf if each.excess is None else each.excess, default=None)
    for cost in () if nearest is None else nearest.costs:
        if cost.outcome != "cannot tell" or cost.limit is None or not cost.value < cost.limit < cost.high:
            continue
        reach = (cost.high - cost.value) / (cost.limit - cost.value)
        if nearest is not None and math.isfinite(reach) and (times := math.ceil(reach**2)) <= MOST_TIMES:
            told.append(
                f"{nearest.name} seems to keep the limit of {cost.name}: if so, about {times} times as many "
                "episodes would show it."
            )
    for place, logged in enumerate(judgement.logged_costs):
        if judged and all(each.costs[place].outcome == "breaks" for each in judged):
            told.append(
                f"Log runs that keep the limit of {logged.name} on purpose, whatever they earn: every "
                "candidate breaks it, so the log hardly shows how it is kept."
            )
    return told
