"""The content of a report, independent of its format: sections of tables and charts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import numpy as np

from rl_training.report.marks import Intervals, Scatter, Sentences
from rl_training.report.run_reader import SCORE
from rl_training.report.statistics import (
    STATISTICS,
    estimate,
    performance_profile,
    probability_of_improvement,
)
from rl_training.report.study import Group, Study, Task
from rl_training.report.svg import Chart, Series
from rl_training.report.tables import (
    Cell,
    Table,
    datasets_table,
    differences_table,
    runs_table,
    throughput_table,
)

PROFILE_THRESHOLDS = 60

Block = Table | Chart | Sentences | Scatter | Intervals


@dataclass(frozen=True)
class Section:
    title: str
    blocks: tuple[Block, ...]


def sections(study: Study, folder: Path, seed: int = 0) -> list[Section]:
    """Everything the report says, in order; links are relative to `folder`."""
    parts = [_task_section(task, study.metric, seed) for task in study.tasks]
    if len(study.tasks) > 1 and study.metric == SCORE:
        parts.append(Section("All tasks together", tuple(across_tasks(study, seed))))
    tables = (throughput_table(study), datasets_table(study), runs_table(study, folder))
    return parts + [Section(table.title, (table,)) for table in tables if table.rows]


def final_table(groups: Iterable[tuple[str, Sequence[Sequence[float]]]], title: str, seed: int) -> Table:
    """Mean, median and interquartile mean of each group's scores (a list per task), with sample sizes."""
    rows: list[tuple[Cell, ...]] = []
    for label, strata in groups:
        scores = [scores for scores in strata if scores]
        if scores:
            runs = str(sum(len(each) for each in scores))
            rows.append((label, runs, *(estimate(scores, f, seed=seed) for f in STATISTICS.values())))
        else:
            rows.append((label, "0", *("–" for _ in STATISTICS)))
    return Table(title, ("configuration", "runs", *STATISTICS), tuple(rows), _INTERVAL_NOTE)


_CURVE_NOTE = (
    "Thick: mean over finished runs and its 95 % interval, at steps at which all of them were evaluated. "
    "Thin: single runs, also unfinished ones."
)
_INTERVAL_NOTE = (
    "In brackets: 95 % stratified bootstrap intervals over runs. Fewer than five runs give intervals that "
    "are too narrow, a single run gives none."
)
_BEST_NOTE = (
    "The highest evaluation of each run, chosen with the same episodes that score it: an optimistic number. "
    + _INTERVAL_NOTE
)


def _task_section(task: Task, metric: str, seed: int) -> Section:
    last = final_table(((g.label, [g.last(metric)]) for g in task.groups), "Last evaluation", seed)
    best = final_table(((g.label, [g.best(metric)]) for g in task.groups), "Best evaluation", seed)
    best = Table(best.title, best.header, best.rows, _BEST_NOTE)
    scores = {group.label: [group.last(metric)] for group in task.groups if group.runs}
    blocks: list[Table | Chart] = [learning_curves(task, metric, seed), last, best]
    if len(scores) > 1:
        blocks.append(_improvement(scores, seed))
    if scores:
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
                f"{group.label}, n = {len(counted)}",
                group.color,
                [(step, mean.value) for step, mean in means],
                [(step, mean.low, mean.high) for step, mean in means if mean.has_interval],
                single if len(single) > 1 or not counted else (),
            )
        )
    title = f"Learning curves on {task.label}"
    return Chart(title, task.step_label, metric_title(metric), tuple(series), _CURVE_NOTE)


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
        for group in task.groups:
            groups.setdefault(group.label, group)
            last.setdefault(group.label, []).append(group.last(study.metric))
            best.setdefault(group.label, []).append(group.best(study.metric))
    blocks: list[Table | Chart] = [final_table(last.items(), "Last evaluation, all tasks", seed)]
    blocks.append(final_table(best.items(), "Best evaluation, all tasks", seed))
    if any(scores for strata in last.values() for scores in strata):
        recolored = [replace(group, color=index) for index, group in enumerate(groups.values())]
        blocks.append(profile_chart(recolored, last, study.metric, seed))
    return blocks


def metric_title(metric: str) -> str:
    """The metric in words: `eval_return_mean` reads "return"."""
    known = {"eval_return_mean": "return", SCORE: "normalised score"}
    return known.get(metric, metric.replace("_", " "))


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
