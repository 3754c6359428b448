"""A report on one run: no statistics over runs, but its curve, its losses and all of its settings."""

from __future__ import annotations

import os
from pathlib import Path

from rl_training.core.feature_names import FeatureNames
from rl_training.report.estimates import MARK, estimate_band
from rl_training.report.online_phase import online_rows, phase_marks
from rl_training.report.run_reader import JUDGED, RunRecord, metric_title, number
from rl_training.report.study import Task, algorithm_title, show_value
from rl_training.report.svg import Chart, Level, Series
from rl_training.report.tables import Cell, Link, Table, duration, plain_number, updates_per_second

NOT_A_CURVE = {"step", "kind", "time", "updates_per_second"}
MOST_CURVES = 8


def result_table(run: RunRecord, metric: str, folder: Path) -> Table:
    """What the run was, how far it got and what it reached."""
    rows: list[tuple[str, Cell]] = [
        ("run", Link(run.name, os.path.relpath(run.path.resolve(), folder.resolve()))),
        ("algorithm", algorithm_title(run.algo)),
        ("seed", show_value(run.seed)),
        ("state", run.stop_reason),
        ("steps", f"{run.last_step:,}"),
    ]
    last, best = run.last(metric), run.best(metric)
    if last is not None:
        spread = f" ({MARK})" if metric == JUDGED else _spread(run)
        rows.append((f"last {metric_title(metric)}", f"{plain_number(last)}{spread}"))
    if run.metrics.get("judge_note"):
        rows.append(("judged by the log", str(run.metrics["judge_note"])))
    if best is not None and best[1] != last:
        told = f"{plain_number(best[1])} at step {best[0]:,} (chosen by its own score: optimistic)"
        rows.append((f"best {metric_title(metric)}", told))
    rows += online_rows(run, metric)
    features = FeatureNames.from_dict(run.dataset.get("features"))
    for kind in ("observation", "action"):
        if listed := features.listed(kind):
            rows.append((f"{kind}s", ", ".join(listed)))
    if run.seconds is not None:
        rows.append(("wall time", duration(run.seconds)))
    speed = updates_per_second(run)
    if speed is not None:
        rows.append(("updates per second", f"{speed:,.0f}"))
    return Table("Result", ("", "value"), tuple(rows))


def _spread(run: RunRecord) -> str:
    """Over how many episodes the last evaluation went, and how much these differ."""
    episodes, std = (number(run.metrics.get(f"eval_{name}")) for name in ("episodes", "return_std"))
    if episodes is None:
        return ""
    spread = "" if std is None else f", standard deviation of the return {plain_number(std)}"
    return f" over {episodes:.0f} episodes{spread}"


def run_curve(run: RunRecord, task: Task, metric: str, levels: tuple[Level, ...]) -> Chart:
    """The evaluations of the run."""
    estimated = metric == JUDGED
    band = estimate_band(run.estimate, [run]) if estimated and run.series(metric) else []
    series = Series(metric_title(metric), 0, run.series(metric), band, estimated=estimated)
    note = "Each point is one evaluation."
    note = f"{MARK} from logged episodes, with its 90 % interval; not measured." if estimated else note
    marks = phase_marks([run])
    return Chart(
        "Learning curve", task.step_label, metric_title(metric), (series,), note, levels, marks=marks
    )


def training_charts(run: RunRecord, task: Task) -> list[Chart]:
    """What the updates reported, losses first, a small chart each."""
    names = dict.fromkeys(name for row in run.rows if row.get("kind") == "train" for name in row)
    curves = {name: run.series(name, kind="train") for name in names if name not in NOT_A_CURVE}
    drawn = [name for name in curves if len(curves[name]) > 1]
    drawn.sort(key=lambda name: not name.endswith("loss"))
    return [
        Chart(name.replace("_", " "), task.step_label, "", (Series(name, 0, curves[name]),), small=True)
        for name in drawn[:MOST_CURVES]
    ]


def settings_table(run: RunRecord) -> Table:
    """Every setting that has a value."""
    left_out = {"algo_kwargs", "output_dir", "format_version"}
    settings = {name: value for name, value in run.config.items() if name not in left_out} | dict(
        run.settings
    )
    rows = tuple(
        (name, show_value(value)) for name, value in settings.items() if value not in (None, [], {}, "")
    )
    return Table("Settings", ("setting", "value"), rows)
