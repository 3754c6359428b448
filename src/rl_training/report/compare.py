"""Which of two sets of runs is better, how sure that is, and when the question makes no sense."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rl_training.core.errors import UserError
from rl_training.judging.candidates import Candidate, clearly_above, ranking, tell_refusals, told_limits
from rl_training.report.content import bounds, plain_number, with_interval
from rl_training.report.online import COLUMNS, column
from rl_training.report.statistics import FEW_RUNS, Estimate, difference, probability_of_improvement
from rl_training.report.study import (
    JUDGED,
    SCORE,
    Group,
    RunRecord,
    arrange,
    check_metric,
    common_metric,
    environment_key,
    metric_title,
    task_key,
)
from rl_training.report.summary import FEW_RUNS_HINT

Strata = list[list[float]]


@dataclass(frozen=True)
class Comparison:
    """Two sides by their last and by their best evaluations; differences are first minus second."""

    metric: str
    labels: tuple[str, str]
    last: tuple[Strata, Strata]
    best: tuple[Strata, Strata]
    last_difference: Estimate
    best_difference: Estimate
    improvement: Estimate
    online: Mapping[str, tuple[Strata, Strata, Estimate]]
    """What going online did, by name: both sides and their difference; only what all their tasks have."""
    estimates: tuple[Candidate, Candidate] | None = None
    """Where nothing was measured: what the judges of the runs say, with the noise of that."""

    @property
    def runs(self) -> tuple[int, int]:
        first, second = (sum(len(scores) for scores in side) for side in self.last)
        return first, second

    @property
    def verdict(self) -> str:
        """One sentence that rests on the last evaluations."""
        if self.estimates is not None:
            return estimated_verdict(*self.estimates)
        change, (first, second) = self.last_difference, self.runs
        what, value = f"last {metric_title(self.metric)}", plain_number(change.value)
        if min(first, second) <= 1:
            shown = f"{value} with {first} and {second} runs"
            return f"No verdict: a single run has no interval; difference in {what} (A - B): {shown}."
        told, basis = f"{value} {bounds(change)}", f"95 % interval, {first} and {second} runs"
        if change.low <= 0 <= change.high:
            return f"No difference shown: {what} differs by {told} ({basis})."
        better = "A" if change.low > 0 else "B"
        hint = "" if min(first, second) >= FEW_RUNS else FEW_RUNS_HINT
        return f"{better} is better: difference in {what} (A - B) {told} ({basis}).{hint}"


def estimated_verdict(first: Candidate, second: Candidate) -> str:
    """Which of two is better by the judge, in one sentence."""
    sides = {"A": first, "B": second}
    if refused := tell_refusals(sides):
        return f"No verdict: the judge refused {refused}; judgement.json in each run says why."
    if any(each.limits is not None for each in sides.values()):
        told = "; ".join(f"{name} {told_limits(each.limits)}" for name, each in sides.items() if each.limits)
        broken = [name for name, each in sides.items() if each.out_of_question]
        if len(broken) == 2:
            return f"Neither is to be taken: {told}."
        if broken:
            return f"{ranking(sides)[0]} is to be taken, whatever the other earns: {told}."
    better, other = ranking(sides)
    shown = ", ".join(f"{name} {with_interval(side.value)}" for name, side in sides.items())
    change = f"{plain_number(first.value.value - second.value.value)}, {shown}"
    if not clearly_above(sides[better], sides[other]):
        return f"A tie: estimated values differ by {change}, within the noise of the estimates; not measured."
    return f"{better} is better by estimate: values differ by {change}; estimated from the log, not measured."


def compare_runs(
    first: Sequence[RunRecord], second: Sequence[RunRecord], *, metric: str | None = None, seed: int = 0
) -> Comparison:
    """Compare the finished runs of two configurations, task by task."""
    metric = metric or common_metric([*first, *second])
    check_metric([*first, *second], metric)
    sides = [_groups_of(name, runs, metric) for name, runs in (("A", first), ("B", second))]
    key = _common_key(sides, same_data=metric == JUDGED)
    tables = [{key(group.runs[0]): group for group in side} for side in sides]
    if len(tables[0]) > 1 and metric != SCORE:
        raise UserError(
            f"{metric} of {len(tables[0])} different tasks has no common scale: compare one task at a time"
        )
    order = sorted(tables[0])
    groups = [[table[name] for name in order] for table in tables]
    last_a, last_b = ([group.last(metric) for group in side] for side in groups)
    best_a, best_b = ([group.best(metric) for group in side] for side in groups)
    judged = [group.judged for side in groups for group in side] if metric == JUDGED else []
    estimates = [each for each in judged if each is not None]
    return Comparison(
        metric,
        (sides[0][0].label, sides[1][0].label),
        (last_a, last_b),
        (best_a, best_b),
        difference(last_a, last_b, seed=seed),
        difference(best_a, best_b, seed=seed),
        probability_of_improvement(last_a, last_b),
        dict(_online(groups[0], groups[1], metric, seed)),
        (estimates[0], estimates[1]) if len(estimates) == 2 else None,
    )


def _online(
    first: Sequence[Group], second: Sequence[Group], metric: str, seed: int
) -> Iterator[tuple[str, tuple[Strata, Strata, Estimate]]]:
    for name in COLUMNS:
        a, b = ([column(group.runs, metric, name) for group in side] for side in (first, second))
        if all((*a, *b)):
            yield name, (a, b, difference(a, b, seed=seed))


def _groups_of(name: str, runs: Sequence[RunRecord], metric: str) -> list[Group]:
    """The one configuration of a side, in each of its tasks."""
    if not any(run.finished and run.last(metric) is not None for run in runs):
        only = any(run.estimate for run in runs) and metric != JUDGED
        hint = "; it was only estimated: judge both by one log with `rl-training judge`" if only else ""
        raise UserError(
            f"{name} has no finished run with the metric {metric!r}: the two cannot be compared{hint}"
        )
    groups = []
    for task in arrange(runs, metric).tasks:
        if len(task.groups) > 1:
            labels = ", ".join(group.label for group in task.groups)
            raise UserError(f"{name} must hold one configuration, got {len(task.groups)}: {labels}")
        groups += [group for group in task.groups if group.runs]
    return groups


def _common_key(sides: Sequence[Sequence[Group]], *, same_data: bool) -> Callable[[RunRecord], str]:
    """What pairs the tasks of both sides: environment and data, or the environment where the data differs."""
    for key in (task_key,) if same_data else (task_key, environment_key):
        first, second = ([key(group.runs[0]) for group in side] for side in sides)
        if set(first) == set(second) and len(set(first)) == len(first) == len(second):
            return key
    places = [", ".join(sorted({str(group.runs[0].env_id) for group in side})) for side in sides]
    raise UserError(
        f"A and B ran in different environments or on different sets of tasks and cannot be compared: "
        f"A has {places[0]}, B has {places[1]}"
    )
