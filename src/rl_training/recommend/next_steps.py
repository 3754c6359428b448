"""What to log next where no policy can be recommended."""

from __future__ import annotations

import math

from rl_training.judging.verdict import Judgement, best_of

MOST_TIMES = 20
"""A log that had to be longer than this would not help: the gain is too small."""


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
