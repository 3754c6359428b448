"""What going online cost and brought: numbers that a run with an online phase reports."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from rl_training.core.plain import Facts

DROP_STEPS = 10_000
"""Online steps in which the lowest evaluation counts as the drop."""

Points = list[tuple[int, float]]


def online_numbers(
    rows: Sequence[Facts], offline_steps: int, metric: str = "eval_return_mean"
) -> dict[str, float | None]:
    """From a run's logged rows: the return before the first online step and what became of it.

    `online_drop` is how far the lowest evaluation of the first 10,000 online steps lies below it;
    `online_return_mean` is the mean over the evaluations of the online phase; `online_regret` is 1 minus
    their mean normalised score (as a share), where a score is known; `online_rollout_mean` is the mean return
    of the episodes that were collected while learning. With another evaluation metric than the return, the
    evaluations are read on its scale.
    """
    returns = _points(rows, "eval", metric)
    before = next((value for step, value in reversed(returns) if step <= offline_steps), None)
    later = [(step, value) for step, value in returns if step > offline_steps]
    early = [value for step, value in later if step <= offline_steps + DROP_STEPS]
    lowest = min(early) if early else None
    scores = [value for step, value in _points(rows, "eval", "eval_normalized_score") if step > offline_steps]
    return {
        "online_return_before": before,
        "online_return_lowest": lowest,
        "online_drop": None if before is None or lowest is None else max(0.0, before - lowest),
        "online_return_last": later[-1][1] if later else None,
        "online_return_mean": fmean(value for _, value in later) if later else None,
        "online_regret": 1.0 - fmean(scores) / 100.0 if scores else None,
        **_collected(rows, offline_steps),
    }


def _collected(rows: Sequence[Facts], offline_steps: int) -> dict[str, float | None]:
    counted = [
        (float(row["rollout_episodes"]), float(row["rollout_return_mean"]))
        for row in rows
        if row.get("kind") == "collect" and row["step"] > offline_steps and _complete(row)
    ]
    episodes = sum(count for count, _ in counted)
    total = sum(count * mean for count, mean in counted)
    return {"online_episodes": episodes, "online_rollout_mean": total / episodes if episodes else None}


def _complete(row: Facts) -> bool:
    return row.get("rollout_episodes") is not None and row.get("rollout_return_mean") is not None


def _points(rows: Sequence[Facts], kind: str, name: str) -> Points:
    return [
        (int(row["step"]), float(row[name]))
        for row in rows
        if row.get("kind") == kind and row.get(name) is not None
    ]
