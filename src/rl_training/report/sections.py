"""The content of a report, independent of its format: sections of tables and charts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from statistics import fmean

import numpy as np

from rl_training.report.estimates import (
    MARK,
    estimate_band,
    estimates_table,
    group_estimate,
    judgements_table,
)
from rl_training.report.marks import Intervals, Scatter
from rl_training.report.online_phase import online_table, phase_marks
from rl_training.report.run_reader import JUDGED, SCORE, metric_title
from rl_training.report.single_run import result_table, run_curve, settings_table, training_charts
from rl_training.report.statistics import (
    STATISTICS,
    estimate,
    performance_profile,
    probability_of_improvement,
)
from rl_training.report.study import Group, Study, Task
from rl_training.report.svg import Chart, Level, Series
from rl_training.report.tables import (
    Cell,
    Table,
    datasets_table,
    differences_table,
    plain_number,
    runs_table,
    throughput_table,
)

PROFILE_THRESHOLDS = 60

Scores = Mapping[str, list[list[float]]]
"""Label of a configuration -> its scores, a list per task."""
Block = Table | Chart | Scatter | Intervals


@dataclass(frozen=True)
class Section:
    title: str
    blocks: tuple[Block, ...]


def sections(study: Study, folder: Path, seed: int = 0) -> list[Section]:
    """Everything the report says, in order; links are relative to `folder`."""
    if len(study.runs) == 1:
        return _one_run(study, folder)
    parts = [_task_section(task, task.metric, seed) for task in study.tasks]
    if len(study.tasks) > 1 and study.metric == SCORE:
        parts.append(Section("All tasks together", tuple(across_tasks(study, seed))))
    tables = (
        judgements_table(study),
        throughput_table(study),
        datasets_table(study),
        runs_table(study, folder),
    )
    return parts + [Section(table.title, (table,)) for table in tables if table.rows]


def _final_tables(last: Scores, best: Scores, seed: int, place: str = "") -> list[Table]:
    """Last evaluations, and the best ones of those configurations whose best is not their last."""
    tables = [final_table(last, f"Last evaluation{place}", "", seed)]
    higher = {label: strata for label, strata in best.items() if strata != last[label]}
    if higher:
        left_out = len(last) - len(higher)
        note = _BEST_NOTE + ("Not shown where it is the last one. " if left_out else "")
        tables.append(final_table(higher, f"Best evaluation{place}", note, seed))
    return tables


def final_table(groups: Scores, title: str, note: str, seed: int) -> Table:
    """Mean, median and interquartile mean of each group's scores (a list per task), from the best down.

    Where no configuration has more than one run, the three are one number.
    """
    several = any(len(scores) > 1 for strata in groups.values() for scores in strata)
    statistics = STATISTICS if several else {"value": STATISTICS["mean"]}
    rows: list[tuple[Cell, ...]] = []
    found = {label: [scores for scores in strata if scores] for label, strata in groups.items()}
    for label in sorted(found, key=lambda label: -estimate(found[label]).value if found[label] else inf):
        scores = found[label]
        if scores:
            runs = str(sum(len(each) for each in scores))
            results = [estimate(scores, f, seed=seed) for f in statistics.values()]
            rows.append((label, runs, *(results if several else [plain_number(results[0].value)])))
        else:
            rows.append((label, "0", *("–" for _ in statistics)))
    return Table(
        title,
        ("configuration", "runs", *statistics),
        tuple(rows),
        f"{note}{_INTERVAL_NOTE if several else ''}".strip(),
    )


_CURVE_NOTE = (
    "Thick: mean over finished runs and its 95 % interval, at steps at which all of them were evaluated. "
    "Thin: single runs, also unfinished ones."
)
ESTIMATED_NOTE = (
    f"{MARK}: what a judge says of the final policy from logged episodes, with what its 90 % interval and "
    "the spread over runs leave open. Nothing here was measured."
)
_INTERVAL_NOTE = (
    "In brackets: 95 % stratified bootstrap intervals over runs. Fewer than five runs give intervals that "
    "are too narrow, a single run gives none."
)
_BEST_NOTE = (
    "The highest evaluation of each run, chosen with the same episodes that score it: an optimistic number. "
)


def _one_run(study: Study, folder: Path) -> list[Section]:
    (task,), (run,) = study.tasks, study.runs
    curve = [run_curve(run, task, task.metric, data_level(task, task.metric))]
    evaluated = bool(run.series(task.metric))
    parts = [Section(task.label, (*(curve if evaluated else ()), result_table(run, task.metric, folder)))]
    losses = training_charts(run, task)
    if losses:
        parts.append(Section("Training", tuple(losses)))
    tables = (judgements_table(study), datasets_table(study), settings_table(run))
    return parts + [Section(table.title, (table,)) for table in tables if table.rows]


def _task_section(task: Task, metric: str, seed: int) -> Section:
    last = {group.label: [group.last(metric)] for group in task.groups}
    best = {group.label: [group.best(metric)] for group in task.groups}
    scores = {group.label: last[group.label] for group in task.counted}
    several = any(len(group.runs) > 1 for group in task.counted)
    tables = _final_tables(last, best, seed)
    if task.estimated:  # statistics over runs would leave out the noise of the judge
        tables, several = [estimates_table(task)], False
    blocks: list[Table | Chart] = [learning_curves(task, metric, seed), *tables]
    online = online_table(task.groups, metric, seed)
    if online.rows:
        blocks.append(online)
    if len(scores) > 1 and several:
        blocks.append(_improvement(scores, seed))
    if several:
        blocks.append(
            profile_chart(task.groups, {g.label: scores.get(g.label, []) for g in task.groups}, metric, seed)
        )
    differences = differences_table(task.groups)
    if differences.rows:
        blocks.append(differences)
    return Section(task.label, tuple(blocks))


def learning_curves(task: Task, metric: str, seed: int) -> Chart:
    """Mean over runs with its interval, at the steps at which every counted run was evaluated."""
    series = []
    for group in task.groups:
        counted = [dict(run.series(metric)) for run in group.runs]
        shared = sorted(set.intersection(*(set(curve) for curve in counted))) if counted else []
        means = [(step, estimate([[curve[step] for curve in counted]], seed=seed)) for step in shared]
        single = [run.series(metric) for run in group.runs + group.unfinished]
        series.append(
            Series(
                f"{group.label}, n = {len(counted)}{', estimated' if task.estimated else ''}",
                group.color,
                [(step, mean.value) for step, mean in means],
                estimate_band(group_estimate(group), group.runs)
                if task.estimated
                else [(step, mean.low, mean.high) for step, mean in means if mean.has_interval],
                single if len(single) > 1 or not counted else (),
                task.estimated,
            )
        )
    return Chart(
        "Learning curves",
        task.step_label,
        metric_title(metric),
        tuple(series),
        ESTIMATED_NOTE if task.estimated else _CURVE_NOTE,
        data_level(task, metric),
        marks=phase_marks(run for group in task.groups for run in group.members),
    )


def data_level(task: Task, metric: str) -> tuple[Level, ...]:
    """The data's own return as a line to compare with, where it is known."""
    value = task.data_return(metric)
    name = "logged behaviour, estimated" if metric == JUDGED else "mean of the logged data"
    return () if value is None else (Level(f"{name}, {plain_number(value)}", value),)


def profile_chart(
    groups: Sequence[Group], scores: dict[str, list[list[float]]], metric: str, seed: int
) -> Chart:
    """Share of runs above each score, per group."""
    values = [value for strata in scores.values() for runs in strata for value in runs]
    margin = 0.03 * (max(values) - min(values)) or 0.5
    thresholds = np.linspace(min(values) - margin, max(values) + margin, PROFILE_THRESHOLDS + 1)
    series = []
    for group in groups:
        strata = scores[group.label]
        if not any(strata):
            continue
        profile = performance_profile([runs for runs in strata if runs], thresholds, seed=seed)
        bounded = not np.isnan(profile.low).any()
        band = list(zip(thresholds, profile.low, profile.high, strict=True)) if bounded else []
        line = list(zip(thresholds, profile.share, strict=True))
        series.append(Series(f"{group.label}, n = {profile.runs}", group.color, line, band))
    note = f"Share of runs whose last evaluation is above a {metric_title(metric)} τ, with 95 % intervals."
    return Chart(
        "Performance profiles", f"{metric_title(metric)} τ", "share of runs above τ", tuple(series), note
    )


def across_tasks(study: Study, seed: int) -> list[Table | Chart]:
    """Aggregates over tasks: sensible for normalised scores only, which share one scale."""
    groups: dict[str, Group] = {}
    last: dict[str, list[list[float]]] = {}
    best: dict[str, list[list[float]]] = {}
    for task in study.tasks:
        for group in () if task.estimated else task.groups:
            groups.setdefault(group.label, group)
            last.setdefault(group.label, []).append(group.last(study.metric))
            best.setdefault(group.label, []).append(group.best(study.metric))
    blocks: list[Table | Chart] = [*_final_tables(last, best, seed, ", all tasks")]
    if any(len(scores) > 1 for strata in last.values() for scores in strata):
        recolored = [replace(group, color=index) for index, group in enumerate(groups.values())]
        blocks.append(profile_chart(recolored, last, study.metric, seed))
    return blocks


def _improvement(scores: dict[str, list[list[float]]], seed: int) -> Table:
    """The configuration with the highest mean against each of the others."""
    leader = max(scores, key=lambda label: fmean(scores[label][0]))
    rows = tuple(
        (leader, other, str(chance.runs), chance)
        for other in scores
        if other != leader
        for chance in [probability_of_improvement(scores[leader], scores[other], seed=seed)]
    )
    note = "Chance that a run of the first, which has the highest mean, ends above a run of the second."
    return Table(
        "Probability of improvement", ("configuration", "against", "runs", "probability"), rows, note
    )
