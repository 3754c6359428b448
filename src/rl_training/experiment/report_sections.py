"""The content of a report, independent of its format: sections of tables and charts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median

import numpy as np

from rl_training.experiment.report_study import Group, Study, Task, differing_settings, show_value
from rl_training.experiment.report_svg import Chart, Series
from rl_training.experiment.run_reader import SCORE, RunRecord, number
from rl_training.experiment.statistics import (
    STATISTICS,
    Estimate,
    estimate,
    performance_profile,
    probability_of_improvement,
)

PROFILE_THRESHOLDS = 60


@dataclass(frozen=True)
class Link:
    """Text that leads to a file beside the report."""

    text: str
    target: str


Cell = str | Link | Estimate


@dataclass(frozen=True)
class Table:
    """Rows under a header; the note says how to read them."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""


@dataclass(frozen=True)
class Section:
    title: str
    blocks: tuple[Table | Chart, ...]


def sections(study: Study, folder: Path, seed: int = 0) -> list[Section]:
    """Everything the report says, in order; links are relative to `folder`."""
    parts = [_task_section(task, study.metric, seed) for task in study.tasks]
    if len(study.tasks) > 1 and study.metric == SCORE:
        parts.append(Section("All tasks together", tuple(across_tasks(study, seed))))
    tables = (_throughput(study), _datasets(study), _runs(study, folder))
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
    differences = _differences(task.groups)
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


def _differences(groups: Sequence[Group]) -> Table:
    names = differing_settings([group.settings for group in groups])
    rows = tuple(
        (name, *(show_value(g.settings[name]) if name in g.settings else "–" for g in groups))
        for name in names
    )
    note = "Settings that are not equal in all configurations that have them."
    return Table("Hyper-parameter differences", ("setting", *(g.label for g in groups)), rows, note)


def _throughput(study: Study) -> Table:
    rows = []
    for task in study.tasks:
        for group in task.groups:
            timed = [(run.seconds, number(run.metrics.get("global_step"))) for run in group.runs]
            rates = [steps / seconds for seconds, steps in timed if seconds and steps]
            updates = [rate for run in group.runs if (rate := _updates_per_second(run)) is not None]
            rows.append(
                (
                    group.label,
                    task.label,
                    str(len(group.runs)),
                    f"{median(rates):,.0f}" if rates else "–",
                    f"{median(updates):,.0f}" if updates else "–",
                    duration(fmean(s for s, _ in timed if s)) if any(s for s, _ in timed) else "–",
                )
            )
    header = ("configuration", "task", "runs", "steps / s", "updates / s", "mean wall time")
    note = (
        "Medians over runs. Steps per second count evaluation and saving, updates per second training alone."
    )
    return Table("Throughput", header, tuple(rows), note)


def _updates_per_second(run: RunRecord) -> float | None:
    rates = [rate for _, rate in run.series("updates_per_second", kind="train")]
    return median(rates) if rates else None


def _datasets(study: Study) -> Table:
    rows: dict[tuple[str, ...], None] = {}
    fields = ("transitions", "episodes", "terminations", "return_mean", "return_min", "return_max")
    for run in study.runs:
        if run.dataset:
            values = [number(run.dataset.get(field)) for field in fields]
            cells = ("–" if value is None else plain_number(value) for value in values)
            rows.setdefault((str(run.dataset.get("source", "unknown")), *cells))
    header = ("data", "transitions", "episodes", "terminations", "mean return", "lowest", "highest")
    return Table("Datasets", header, tuple(rows), "Returns in the environment's own rewards.")


def _runs(study: Study, folder: Path) -> Table:
    rows = []
    for task in study.tasks:
        for group in task.groups:
            for run in group.members:
                best = run.best(study.metric)
                rows.append(
                    (
                        Link(run.name, os.path.relpath(run.path.resolve(), folder.resolve())),
                        group.label,
                        show_value(run.seed),
                        _status(run, group),
                        f"{run.last_step:,}",
                        _optional(run.last(study.metric)),
                        "–" if best is None else f"{plain_number(best[1])} at {best[0]:,}",
                    )
                )
    header = ("run", "configuration", "seed", "state", "steps", "last", "best")
    note = "Runs that are not finished, or that repeat a seed, are shown here and left out of the statistics."
    return Table("Runs", header, tuple(rows), note)


def _status(run: RunRecord, group: Group) -> str:
    if run in group.repeated:
        return "repeats a seed, left out"
    if run in group.unfinished:
        return f"{run.stop_reason}, left out" if not run.finished else "not evaluated, left out"
    return run.stop_reason


def _optional(value: float | None) -> str:
    return "–" if value is None else plain_number(value)


def plain_number(value: float) -> str:
    """Four digits or so, never an exponent for everyday sizes."""
    size = abs(value)
    if size >= 1000 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 100 else f"{value:.2f}" if size >= 1 else f"{value:.3g}"


def bounds(result: Estimate) -> str:
    """The interval in brackets, or why there is none."""
    if not result.has_interval:
        return "(no interval)"
    return f"[{plain_number(result.low)}, {plain_number(result.high)}]"


def duration(seconds: float) -> str:
    """Seconds up to two minutes, then minutes, then hours."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
