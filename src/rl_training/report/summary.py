"""The top of a report: who won and how sure that is, which runs were read, when, and with which versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date

from rl_training.judging.candidates import ranking, tell_broken, tell_refusals, ties
from rl_training.report.content import MARK, count, plain_number, with_interval
from rl_training.report.statistics import CONFIDENCE, FEW_RUNS, difference, estimate
from rl_training.report.study import SCORE, Group, RunRecord, Study, Task, metric_title

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
