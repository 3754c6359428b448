"""Who is better and how sure that is: the top of a report, and two sets of runs against each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date

from rl_training.core.errors import UserError
from rl_training.judging.candidates import (
    Candidate,
    clearly_above,
    ranking,
    tell_broken,
    tell_refusals,
    ties,
    told_limits,
)
from rl_training.report.content import MARK, bounds, count, plain_number, with_interval
from rl_training.report.statistics import (
    CONFIDENCE,
    FEW_RUNS,
    Estimate,
    difference,
    estimate,
    probability_of_improvement,
)
from rl_training.report.study import (
    JUDGED,
    SCORE,
    Group,
    RunRecord,
    Study,
    Task,
    arrange,
    check_metric,
    common_metric,
    environment_key,
    metric_title,
    task_key,
)
from rl_training.report.tables import COLUMNS, column

FEW_RUNS_HINT = " Few runs: take it as a hint."
_PERCENT = f"{100 * CONFIDENCE:.0f} %"


Scores = list[list[float]]
"""Last evaluations of a configuration, a list per task."""


def verdict(study: Study, seed: int = 0) -> tuple[str, ...]:
    """A sentence or two for all tasks together where their scores share a scale, then for each task."""
    what = f"last {metric_title(study.metric)}"
    sentences = []
    measured = [task for task in study.tasks if not task.estimated]
    shared = _in_all_tasks(measured, study.metric) if len(measured) > 1 and study.metric == SCORE else {}
    if shared:
        sentences.append(f"All {len(measured)} tasks together: {_by_the_mean(shared, what, seed)}")
    for task in study.tasks:
        if not task.counted:
            told = _nothing_counted(task)
        elif task.estimated:
            told = _by_the_judge(task)
        else:
            contenders = {group.label: [group.last(task.metric)] for group in task.counted}
            told = _by_the_mean(contenders, what, seed) + _against_data(task, seed)
        sentences.append(f"{task.label}: {told}")
    return tuple(sentences)


def _in_all_tasks(tasks: Sequence[Task], metric: str) -> dict[str, Scores]:
    """The configurations that have counted runs in every task, from the best down."""
    found: dict[str, Scores] = {}
    for task in tasks:
        for group in task.counted:
            found.setdefault(group.label, []).append(group.last(metric))
    shared = [label for label, scores in found.items() if len(scores) == len(tasks)]
    return {label: found[label] for label in sorted(shared, key=lambda each: -estimate(found[each]).value)}


def _by_the_mean(contenders: Mapping[str, Scores], what: str, seed: int) -> str:
    """The sentence on configurations that are sorted from the best down."""
    runs_of = {label: sum(map(len, scores)) for label, scores in contenders.items()}
    leader, *others = contenders
    reached = with_interval(estimate(contenders[leader], seed=seed))
    if not others:
        return f"{leader} ends at a {what} of {reached} ({count(runs_of[leader], 'run')})."
    # The more rivals, the likelier that chance alone puts one of them behind: each must be left further back.
    confidence = 1 - (1 - CONFIDENCE) / len(others)
    leads = {
        other: difference(contenders[leader], contenders[other], seed=seed, confidence=confidence)
        for other in others
    }
    if not all(lead.has_interval for lead in leads.values()):
        return (
            f"no verdict. {leader} has the highest {what}, {reached}, but a single run of a "
            "configuration says nothing about chance: train at least five seeds of each."
        )
    rival = min(leads, key=lambda other: leads[other].low)
    lead, runs = leads[rival], f"{_PERCENT} confidence, {runs_of[leader]} and {count(runs_of[rival], 'run')}"
    if lead.low > 0:
        rest = "" if len(others) == 1 else f" and of {count(len(others) - 1, 'other')}"
        hint = FEW_RUNS_HINT if min(runs_of.values()) < FEW_RUNS else ""
        ahead = f"ahead of {rival} by {with_interval(lead)}{rest}"
        return f"{leader} wins: {what} {reached}, {ahead} ({runs}).{hint}"
    return (
        f"no winner shown. {leader} has the highest {what}, {reached}, but its lead of "
        f"{with_interval(lead)} over {rival} may be chance ({runs})."
    )


def _nothing_counted(task: Task) -> str:
    """Why there is no verdict on a task, and how to come by one."""
    if any(run.finished for group in task.groups for run in group.unfinished):
        return (
            "trained, but not evaluated. rl-training judge estimates from a log how good a policy is, "
            "rl-training evaluate measures it in an environment."
        )
    return "no run has finished with an evaluation yet, so there is nothing to judge."


def _against_data(task: Task, seed: int) -> str:
    """How the leader stands to the data it learned from."""
    data, best = task.data_return, task.counted[0]
    if data is None:
        return ""
    leader = estimate([best.last(task.metric)], seed=seed)
    low, high = (leader.low, leader.high) if leader.has_interval else (leader.value, leader.value)
    name = f"the logged data's mean of {plain_number(data)}"
    if low > data:
        return f" {best.label} is above {name}."
    if high < data:
        return f" {best.label} is below {name}: nothing gained over what made the data."
    return f" {best.label} is not shown to differ from {name}."


def _by_the_judge(task: Task) -> str:
    """Who comes first by the judge, who is level with it, who was refused, and what that says of the log."""
    found = {group.label: judged for group in task.counted if (judged := group.judged) is not None}
    refused, broken = tell_refusals(found), tell_broken(found)
    leader = next(iter(ranking(found)), None)
    if leader is None or all(each.refused for each in found.values()):
        notes = [run.metrics.get("judge_note") for group in task.counted for run in group.runs]
        note = next((str(note) for note in notes if note), "")
        return f"no estimate can be relied on: the judge refused {refused}. {note}".strip()
    if all(each.out_of_question for each in found.values()):
        rest = f" Refused by the judge: {refused}." if refused else ""
        return f"estimated, not measured. No configuration is shown to keep the limits: {broken}.{rest}"
    first, level = found[leader], ties(found)
    told = f"estimated, not measured. {leader} comes first with a score of {plain_number(first.score)}"
    told += f", value {with_interval(first.value)}"
    if level:
        told += f"; a tie with {', '.join(level)}: the difference is within the noise of the estimates"
    elif sum(not each.out_of_question for each in found.values()) > 1:
        told += ", ahead of the others by more than the noise of the estimates"
    told += f". Against the logged behaviour: {first.told}."
    told += f" Refused by the judge: {refused}." if refused else ""
    return told + (f" Not shown to keep the limits: {broken}." if broken else "")


def facts(study: Study, written: date) -> tuple[str, ...]:
    """How many runs were read and count; when and with what they were trained."""
    groups: list[Group] = [group for task in study.tasks for group in task.groups]
    unfinished = sum(len(group.unfinished) for group in groups)
    repeated = sum(len(group.repeated) for group in groups)
    counted = count(sum(len(group.runs) for group in groups), "run")
    read = f"{counted} of {count(len(groups), 'configuration')} on {count(len(study.tasks), 'task')}"
    left_out = [f"{unfinished} not finished or not evaluated"] if unfinished else []
    left_out += [f"{repeated} that repeat a seed"] if repeated else []
    rest = f"; left out: {', '.join(left_out)}" if left_out else ""
    return f"{read}, {_basis(study)}{rest}.", _origin(study.runs, written)


def _basis(study: Study) -> str:
    """What the runs are judged by, and how many of them were never tried out."""
    guessed = sum(len(group.runs) for task in study.tasks if task.estimated for group in task.groups)
    measured = f"judged by {metric_title(study.metric)}, measured in the environment"
    told = f"{count(guessed, 'run')} by a value {MARK} from logged episodes, never tried out"
    if all(task.estimated for task in study.tasks):
        return told
    return f"{measured}; {told}" if guessed else measured


def _origin(runs: Sequence[RunRecord], written: date) -> str:
    days = sorted({run.day for run in runs if run.day is not None})
    when = f" {' to '.join(dict.fromkeys((days[0], days[-1])))}" if days else ""
    names = dict.fromkeys(str(name) for run in runs for name in run.versions)
    told = []
    for name in names:
        found = sorted({str(run.versions[name]) for run in runs if name in run.versions})
        told.append(f"{name} {' or '.join(found)}")
    trained = f"Trained{when}{' with ' if told else ''}{', '.join(told)}. " if when or told else ""
    return f"{trained}Report of {written.isoformat()}."


# ---- two sets of runs against each other, and when the question makes no sense


@dataclass(frozen=True)
class Comparison:
    """Two sides by their last and by their best evaluations; differences are first minus second."""

    metric: str
    labels: tuple[str, str]
    last: tuple[Scores, Scores]
    best: tuple[Scores, Scores]
    last_difference: Estimate
    best_difference: Estimate
    improvement: Estimate
    online: Mapping[str, tuple[Scores, Scores, Estimate]]
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
) -> Iterator[tuple[str, tuple[Scores, Scores, Estimate]]]:
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
