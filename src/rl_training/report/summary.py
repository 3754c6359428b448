"""The top of a report: who won and how sure that is, which runs were read, when, and with which versions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from rl_training.report.estimates import MARK, estimated_verdict
from rl_training.report.run_reader import SCORE, RunRecord, metric_title
from rl_training.report.statistics import CONFIDENCE, FEW_RUNS, Estimate, difference, estimate
from rl_training.report.study import Group, Study, Task
from rl_training.report.tables import bounds, plain_number

FEW_RUNS_HINT = " Few runs: take it as a hint."
_PERCENT = f"{100 * CONFIDENCE:.0f} %"


@dataclass(frozen=True)
class Head:
    """What stands above the first section."""

    title: str
    verdict: tuple[str, ...]
    facts: tuple[str, ...]


@dataclass(frozen=True)
class Candidate:
    """A configuration with its last evaluations, a list per task."""

    label: str
    strata: list[list[float]]

    @property
    def runs(self) -> int:
        return sum(map(len, self.strata))


def verdict(study: Study, seed: int = 0) -> tuple[str, ...]:
    """A sentence or two for all tasks together where their scores share a scale, then for each task."""
    what = f"last {metric_title(study.metric)}"
    sentences = []
    measured = [task for task in study.tasks if not task.estimated]
    shared = _in_all_tasks(measured, study.metric) if len(measured) > 1 and study.metric == SCORE else []
    if shared:
        sentences.append(f"All {len(measured)} tasks together: {_judged(shared, what, seed)}")
    for task in study.tasks:
        if task.estimated and task.counted:
            sentences.append(f"{task.label}: {estimated_verdict(task)}")
            continue
        if not task.counted:
            sentences.append(f"{task.label}: {_nothing_counted(task)}")
            continue
        candidates = [Candidate(group.label, [group.last(task.metric)]) for group in task.counted]
        told = _judged(candidates, what, seed) + _against_data(task, task.metric, seed)
        sentences.append(f"{task.label}: {told}")
    return tuple(sentences)


def _in_all_tasks(tasks: Sequence[Task], metric: str) -> list[Candidate]:
    """The configurations that have counted runs in every task, from the best down."""
    found: dict[str, list[list[float]]] = {}
    for task in tasks:
        for group in task.counted:
            found.setdefault(group.label, []).append(group.last(metric))
    shared = [Candidate(label, strata) for label, strata in found.items() if len(strata) == len(tasks)]
    return sorted(shared, key=lambda each: -estimate(each.strata).value)


def _judged(candidates: Sequence[Candidate], what: str, seed: int) -> str:
    """The sentence on candidates that are sorted from the best down."""
    leader, others = candidates[0], candidates[1:]
    reached = show(estimate(leader.strata, seed=seed))
    if not others:
        return f"{leader.label} ends at a {what} of {reached} ({count(leader.runs, 'run')})."
    # The more rivals, the likelier that chance alone puts one of them behind: each must be left further back.
    confidence = 1 - (1 - CONFIDENCE) / len(others)
    leads = [
        (difference(leader.strata, other.strata, seed=seed, confidence=confidence), other) for other in others
    ]
    if not all(lead.has_interval for lead, _ in leads):
        return (
            f"no verdict. {leader.label} has the highest {what}, {reached}, but a single run of a "
            "configuration says nothing about chance: train at least five seeds of each."
        )
    lead, rival = min(leads, key=lambda pair: pair[0].low)
    runs = f"{_PERCENT} confidence, {leader.runs} and {count(rival.runs, 'run')}"
    if lead.low > 0:
        rest = "" if len(others) == 1 else f" and of {count(len(others) - 1, 'other')}"
        hint = FEW_RUNS_HINT if min(each.runs for each in candidates) < FEW_RUNS else ""
        ahead = f"ahead of {rival.label} by {show(lead)}{rest}"
        return f"{leader.label} wins: {what} {reached}, {ahead} ({runs}).{hint}"
    return (
        f"no winner shown. {leader.label} has the highest {what}, {reached}, but its lead of {show(lead)} "
        f"over {rival.label} may be chance ({runs})."
    )


def _nothing_counted(task: Task) -> str:
    """Why there is no verdict on a task, and how to come by one."""
    if any(run.finished for group in task.groups for run in group.unfinished):
        return (
            "trained, but not evaluated. rl-training judge estimates from a log how good a policy is, "
            "rl-training evaluate measures it in an environment."
        )
    return "no run has finished with an evaluation yet, so there is nothing to judge."


def _against_data(task: Task, metric: str, seed: int) -> str:
    """How the leader stands to the data it learned from."""
    data = task.data_return(metric)
    if data is None or not task.counted:
        return ""
    best = task.counted[0]
    leader = estimate([best.last(metric)], seed=seed)
    low, high = (leader.low, leader.high) if leader.has_interval else (leader.value, leader.value)
    name = f"the logged data's mean of {plain_number(data)}"
    if low > data:
        return f" {best.label} is above {name}."
    if high < data:
        return f" {best.label} is below {name}: nothing gained over what made the data."
    return f" {best.label} is not shown to differ from {name}."


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


def show(result: Estimate) -> str:
    """A number with its interval, where it has one."""
    return (
        f"{plain_number(result.value)} {bounds(result)}"
        if result.has_interval
        else plain_number(result.value)
    )


def count(number: int, noun: str) -> str:
    """`1 run`, `2 runs`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
