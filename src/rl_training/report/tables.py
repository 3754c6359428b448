"""Tables of a report that hold no statistics: settings, throughput, data, runs; and how cells are written."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from rl_training.report.run_reader import RunRecord, number
from rl_training.report.statistics import Estimate
from rl_training.report.study import Group, Study, differing_settings, show_value


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


def differences_table(groups: Sequence[Group]) -> Table:
    names = differing_settings([group.settings for group in groups])
    rows = tuple(
        (name, *(show_value(g.settings[name]) if name in g.settings else "–" for g in groups))
        for name in names
    )
    note = "Settings that are not equal in all configurations that have them."
    return Table("Hyper-parameter differences", ("setting", *(g.label for g in groups)), rows, note)


def throughput_table(study: Study) -> Table:
    rows = []
    for task in study.tasks:
        for group in task.groups:
            timed = [(run.seconds, number(run.metrics.get("global_step"))) for run in group.runs]
            rates = [steps / seconds for seconds, steps in timed if seconds and steps]
            updates = [rate for run in group.runs if (rate := updates_per_second(run)) is not None]
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


def updates_per_second(run: RunRecord) -> float | None:
    """Median over the log lines of the run."""
    rates = [rate for _, rate in run.series("updates_per_second", kind="train")]
    return median(rates) if rates else None


def datasets_table(study: Study) -> Table:
    rows: dict[tuple[str, ...], None] = {}
    fields = ("transitions", "episodes", "terminations", "return_mean", "return_min", "return_max")
    for run in study.runs:
        if run.dataset:
            values = [number(run.dataset.get(field)) for field in fields]
            cells = ("–" if value is None else plain_number(value) for value in values)
            rows.setdefault((str(run.dataset.get("source", "unknown")), *cells))
    header = ("data", "transitions", "episodes", "terminations", "mean return", "lowest", "highest")
    return Table("Datasets", header, tuple(rows), "Returns in the environment's own rewards.")


def runs_table(study: Study, folder: Path) -> Table:
    """All runs, from the best configuration down; the column of best evaluations only where it says more."""
    rows: list[tuple[Cell, ...]] = []
    higher = any(
        (best := run.best(task.metric)) and best[1] != run.last(task.metric)
        for task in study.tasks
        for group in task.groups
        for run in group.members
    )
    for task in study.tasks:
        mark = " ◇ estimated" if task.estimated else ""
        for group in task.groups:
            for run in group.members:
                last, best = run.last(task.metric), run.best(task.metric)
                told = "–" if best is None else f"{plain_number(best[1])} at {best[0]:,}"
                rows.append(
                    (
                        Link(run.name, os.path.relpath(run.path.resolve(), folder.resolve())),
                        group.label,
                        show_value(run.seed),
                        _status(run, group),
                        f"{run.last_step:,}",
                        "–" if last is None else plain_number(last) + mark,
                        *(["as last" if best and best[1] == last else told] if higher else []),
                    )
                )
    header = ("run", "configuration", "seed", "state", "steps", "last", *(["best"] if higher else []))
    note = "Runs that are not finished, or that repeat a seed, are shown here and left out of the statistics."
    return Table("Runs", header, tuple(rows), note)


def _status(run: RunRecord, group: Group) -> str:
    if run in group.repeated:
        return "repeats a seed, left out"
    if run in group.unfinished:
        return f"{run.stop_reason}, left out" if not run.finished else "not evaluated, left out"
    return run.stop_reason


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
