"""What a report says of policies that were never tried out: values that a judge estimated from a log."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rl_training.judging.judgement import Interval
from rl_training.judging.selection import choice, half_width
from rl_training.report.run_reader import JUDGED, RunRecord, number
from rl_training.report.statistics import estimate
from rl_training.report.study import Group, Study, Task, show_value
from rl_training.report.svg import Band
from rl_training.report.tables import Table, plain_number

MARK = "◇ estimated"
"""Beside every number that nobody has measured."""


def group_estimate(group: Group) -> Interval | None:
    """The mean over seeds; judges of the same log share their noise, which seeds do not average out."""
    found = [run.estimate for run in trusted(group)]
    intervals = [each for each in found if each is not None]
    if not intervals:
        return None
    values = [each.value for each in intervals]
    noise = sum(map(half_width, intervals)) / len(intervals)
    over_seeds = estimate([values])
    if over_seeds.has_interval:
        noise = math.hypot(noise, (over_seeds.high - over_seeds.low) / 2.0)
    mean = sum(values) / len(values)
    return Interval(mean, mean - noise, mean + noise)


def trusted(group: Group) -> list[RunRecord]:
    """Runs whose judge did not refuse."""
    return [run for run in group.runs if run.metrics.get("judge_verdict") != "refused"]


def estimated_verdict(task: Task) -> str:
    """Who leads by the estimates, who is level with it, and what that says against the log."""
    found = {group.label: own for group in task.counted if (own := group_estimate(group)) is not None}
    if not found:
        notes = [run.metrics.get("judge_note") for group in task.counted for run in group.runs]
        return f"no estimate can be relied on. {next((str(note) for note in notes if note), '')}".strip()
    leader, level = choice(found)
    told = f"estimated, not measured. {leader} has the highest estimated value, {show(found[leader])}"
    if level:
        told += f"; a tie with {', '.join(level)}: the difference is within the noise of the estimates"
    elif len(found) > 1:
        told += ", ahead of the others by more than the noise of the estimates"
    verdicts = [str(run.metrics.get("judge_verdict")) for run in _runs_of(task, leader)]
    counts = ", ".join(f"{verdicts.count(each)} {each}" for each in sorted(set(verdicts)))
    return f"{told}. Against the logged behaviour: {counts}."


def estimated_difference(first: Sequence[Group], second: Sequence[Group]) -> tuple[Interval, Interval] | None:
    """The estimates of both sides of a comparison, where each has one."""
    sides = [group_estimate(each) for groups in (first, second) for each in groups]
    if len(sides) != 2 or sides[0] is None or sides[1] is None:
        return None
    return sides[0], sides[1]


def judgements_table(study: Study) -> Table:
    """Every run that was judged, whatever else is known of it."""
    rows = []
    for task in study.tasks:
        for group in task.groups:
            for run in group.members:
                told = run.estimate
                if told is None:
                    continue
                behaviour = number(run.metrics.get("judge_behaviour"))
                episodes = number(run.metrics.get("judge_episodes"))
                rows.append(
                    (
                        run.name,
                        group.label,
                        show_value(run.seed),
                        show(told),
                        "–" if behaviour is None else plain_number(behaviour),
                        str(run.metrics.get("judge_verdict") or "–"),
                        "–" if episodes is None else f"{episodes:.0f}",
                    )
                )
    value = "estimated value [90 %]"
    header = ("run", "configuration", "seed", value, "logged behaviour", "verdict", "episodes")
    note = (
        f"{MARK}: discounted values by a judge that saw logged episodes only, not returns of episodes that "
        "were played."
    )
    return Table("Judged by the log", header, tuple(rows), note)


def estimates_table(task: Task) -> Table:
    """Each configuration's value with the noise of judge and seeds together."""
    found = [(group, group_estimate(group)) for group in task.groups]
    rows = tuple(
        (group.label, str(len(group.runs)), "–" if told is None else show(told)) for group, told in found
    )
    note = (
        f"{MARK} from logged episodes, not measured; discounted. In brackets: what the judge (90 %) "
        "and the spread over runs leave open. Runs that the judge refused do not count."
    )
    return Table("Estimated value", ("configuration", "runs", "estimated value"), rows, note)


def estimate_band(told: Interval | None, runs: Sequence[RunRecord]) -> Band:
    """The interval of what a curve shows, at its last point."""
    steps = [point[0] for run in runs for point in run.series(JUDGED)[-1:]]
    if told is None or told.low is None or told.high is None or not steps:
        return []
    return [(max(steps), told.low, told.high)]


def show(interval: Interval) -> str:
    if interval.low is None or interval.high is None:
        return plain_number(interval.value)
    return f"{plain_number(interval.value)} [{plain_number(interval.low)}, {plain_number(interval.high)}]"


def _runs_of(task: Task, label: str) -> list[RunRecord]:
    return [run for group in task.counted if group.label == label for run in group.runs]
