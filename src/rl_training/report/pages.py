"""The report on runs, whatever it is written as: its sections of tables and figures, and the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from math import inf
from pathlib import Path
from statistics import fmean
from typing import Literal

import numpy as np

from rl_training.core.errors import UserError
from rl_training.core.files import write_text_atomic
from rl_training.judging.verdict import Interval
from rl_training.report.charts import Band, Chart, Level, Series
from rl_training.report.compare import facts, verdict
from rl_training.report.content import (
    MARK,
    Cell,
    Page,
    Section,
    Table,
    plain_number,
    refuse_directory,
    render_csv,
    render_html,
    render_markdown,
)
from rl_training.report.explain import explained, model_table
from rl_training.report.statistics import (
    STATISTICS,
    estimate,
    performance_profile,
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
    find_runs,
    metric_title,
)
from rl_training.report.tables import (
    costs_table,
    datasets_table,
    differences_table,
    estimates_table,
    judgements_table,
    online_table,
    phase_marks,
    result_table,
    runs_table,
    settings_table,
    throughput_table,
)

Format = Literal["html", "md", "csv"]


def write_report(
    paths: Sequence[str | Path],
    out: str | Path,
    *,
    format: Format = "html",
    metric: str | None = None,
    title: str | None = None,
    seed: int = 0,
    written: date | None = None,
) -> Path:
    """Read the runs, compute their statistics (`seed` fixes the bootstrap) and write the report to `out`.

    `written` is the date it carries, by default today's.

    Links to the runs are relative to `out`, so that a folder with both can be moved or sent as a whole.
    """
    path = Path(out)
    refuse_directory(path, f"report.{format}")
    if title is not None and format == "csv":
        raise UserError(f"title has no place in a CSV file, got {title!r}: leave it out")
    study, heading = arrange(find_runs(paths), metric), title or "Training report"
    write_text_atomic(path, render(study, path.parent, format, heading, written or date.today(), seed))
    return path


def render(study: Study, folder: Path, format: Format, title: str, written: date, seed: int) -> str:
    """The report's text; links in it are relative to `folder`."""
    if format == "csv":
        return render_csv(statistics_table(study, seed))
    content = tuple(sections(study, folder, seed))
    page = Page(title, verdict(study, seed), facts(study, written), content)
    return render_html(page) if format == "html" else render_markdown(page)


Scores = Mapping[str, list[list[float]]]
"""Label of a configuration -> its scores, a list per task."""

NOT_A_CURVE = {"step", "kind", "time", "updates_per_second"}
MOST_CURVES = 8
HELD_OUT = "on episodes that were held out of training"
PROFILE_THRESHOLDS = 60

CURVE_NOTE = (
    "Thick: mean over finished runs and its 95 % interval, at steps at which all of them were evaluated. "
    "Thin: single runs, also unfinished ones."
)
ESTIMATED_NOTE = (
    f"{MARK}: what a judge says of the final policy from logged episodes, with what its 90 % interval and "
    "the spread over runs leave open. Nothing here was measured."
)
INTERVAL_NOTE = (
    "In brackets: 95 % stratified bootstrap intervals over runs. Fewer than five runs give intervals that "
    "are too narrow, a single run gives none."
)
BEST_NOTE = (
    "The highest evaluation of each run, chosen with the same episodes that score it: an optimistic number. "
)


def sections(study: Study, folder: Path, seed: int = 0) -> list[Section]:
    """Everything the report says, in order; links are relative to `folder`."""
    if len(study.runs) == 1:
        return _one_run(study, folder)
    parts = [_task_section(task, seed) for task in study.tasks]
    parts += [each for task in study.tasks for each in _what_the_first_does(task)]
    if len(study.tasks) > 1 and study.metric == SCORE:
        parts.append(Section("All tasks together", tuple(_across_tasks(study, seed))))
    tables = (
        judgements_table(study),
        costs_table(study),
        throughput_table(study),
        datasets_table(study),
        runs_table(study, folder),
    )
    return parts + [Section(table.title, (table,)) for table in tables if table.rows]


def _one_run(study: Study, folder: Path) -> list[Section]:
    """No statistics over runs, but the run's curve, its losses and all of its settings."""
    (task,), (run,) = study.tasks, study.runs
    curve = [_run_curve(run, task)] if run.series(task.metric) else []
    parts = [Section(task.label, (*curve, result_table(run, task.metric, folder)))]
    parts += _what_the_first_does(task)
    if run.model_errors:
        table = model_table(run.model_errors, "The model that the policy was found in", HELD_OUT)
        parts.append(Section("How well does the model know the plant?", (table,)))
    losses = _training_charts(run, task)
    if losses:
        parts.append(Section("Training", tuple(losses)))
    tables = (judgements_table(study), costs_table(study), datasets_table(study), settings_table(run))
    return parts + [Section(table.title, (table,)) for table in tables if table.rows]


def _what_the_first_does(task: Task) -> list[Section]:
    """Of the first configuration, or of its first run that tells; groups are sorted from the best down."""
    runs = [run for run in task.groups[0].members if run.explanation is not None]
    if not runs or (told := runs[0].explanation) is None:
        return []
    return [explained(told, f"What does {runs[0].name} do?")]


def _run_curve(run: RunRecord, task: Task) -> Chart:
    """The evaluations of one run."""
    title, estimated, line = metric_title(task.metric), task.estimated, run.series(task.metric)
    band = _last_interval(run.estimate, [run]) if estimated else []
    note = "Each point is one evaluation."
    if estimated:
        note = f"{MARK} from logged episodes, with its 90 % interval; not measured."
    series = Series(title, 0, line, band, estimated=estimated)
    levels, marks = _data_level(task), phase_marks([run])
    return Chart("Learning curve", task.step_label, title, (series,), note, levels, marks=marks)


def _training_charts(run: RunRecord, task: Task) -> list[Chart]:
    """What the updates reported, losses first, a small chart each."""
    names = dict.fromkeys(name for row in run.rows if row.get("kind") == "train" for name in row)
    curves = {name: run.series(name, kind="train") for name in names if name not in NOT_A_CURVE}
    drawn = [name for name in curves if len(curves[name]) > 1]
    drawn.sort(key=lambda name: not name.endswith("loss"))
    return [
        Chart(name.replace("_", " "), task.step_label, "", (Series(name, 0, curves[name]),), small=True)
        for name in drawn[:MOST_CURVES]
    ]


def _task_section(task: Task, seed: int) -> Section:
    metric = task.metric
    last = {group.label: [group.last(metric)] for group in task.groups}
    best = {group.label: [group.best(metric)] for group in task.groups}
    scores = {group.label: last[group.label] for group in task.counted}
    # Statistics over runs would leave out the noise of a judge.
    several = any(len(group.runs) > 1 for group in task.counted) and not task.estimated
    tables = [estimates_table(task)] if task.estimated else _final_tables(last, best, seed)
    tables.append(online_table(task.groups, metric, seed))
    blocks: list[Table | Chart] = [_learning_curves(task, seed), *(each for each in tables if each.rows)]
    if len(scores) > 1 and several:
        blocks.append(_improvement(scores))
    if several:
        blocks.append(_profile_chart(task.counted, scores, metric, seed))
    differences = differences_table(task.groups)
    return Section(task.label, (*blocks, differences) if differences.rows else tuple(blocks))


def _learning_curves(task: Task, seed: int) -> Chart:
    """Mean over runs with its interval, at the steps at which every counted run was evaluated."""
    series = []
    for group in task.groups:
        counted = [dict(run.series(task.metric)) for run in group.runs]
        shared = sorted(set.intersection(*(set(curve) for curve in counted))) if counted else []
        means = [(step, estimate([[curve[step] for curve in counted]], seed=seed)) for step in shared]
        band: Band = [(step, mean.low, mean.high) for step, mean in means if mean.has_interval]
        if task.estimated:
            band = _last_interval(None if group.judged is None else group.judged.value, group.runs)
        single = [run.series(task.metric) for run in group.runs + group.unfinished]
        label = f"{group.label}, n = {len(counted)}{', estimated' if task.estimated else ''}"
        line = [(step, mean.value) for step, mean in means]
        behind = single if len(single) > 1 or not counted else ()
        series.append(Series(label, group.color, line, band, behind, task.estimated))
    return Chart(
        "Learning curves",
        task.step_label,
        metric_title(task.metric),
        tuple(series),
        ESTIMATED_NOTE if task.estimated else CURVE_NOTE,
        _data_level(task),
        marks=phase_marks(run for group in task.groups for run in group.members),
    )


def _data_level(task: Task) -> tuple[Level, ...]:
    """The data's own return as a line to compare with, where it is known."""
    name = "logged behaviour, estimated" if task.estimated else "mean of the logged data"
    value = task.data_return
    return () if value is None else (Level(f"{name}, {plain_number(value)}", value),)


def _last_interval(told: Interval | None, runs: Sequence[RunRecord]) -> Band:
    """The interval of what a curve of estimates shows, at its last point."""
    steps = [point[0] for run in runs for point in run.series(JUDGED)[-1:]]
    if told is None or told.low is None or told.high is None or not steps:
        return []
    return [(max(steps), told.low, told.high)]


def _final_tables(last: Scores, best: Scores, seed: int, place: str = "") -> list[Table]:
    """Last evaluations, and the best ones of those configurations whose best is not their last."""
    tables = [_final_table(last, f"Last evaluation{place}", "", seed)]
    higher = {label: strata for label, strata in best.items() if strata != last[label]}
    if higher:
        left_out = len(last) - len(higher)
        note = BEST_NOTE + ("Not shown where it is the last one. " if left_out else "")
        tables.append(_final_table(higher, f"Best evaluation{place}", note, seed))
    return tables


def _final_table(groups: Scores, title: str, note: str, seed: int) -> Table:
    """Mean, median and interquartile mean of each group's scores (a list per task), from the best down.

    Where no configuration has more than one run, the three are one number.
    """
    several = any(len(scores) > 1 for strata in groups.values() for scores in strata)
    statistics = STATISTICS if several else {"value": STATISTICS["mean"]}
    rows: list[tuple[Cell, ...]] = []
    found = {label: [scores for scores in strata if scores] for label, strata in groups.items()}
    for label in sorted(found, key=lambda label: -estimate(found[label]).value if found[label] else inf):
        scores = found[label]
        results: list[Cell] = [None] * len(statistics)
        if scores:
            estimates = [estimate(scores, f, seed=seed) for f in statistics.values()]
            results = [*estimates] if several else [estimates[0].value]
        rows.append((label, sum(map(len, scores)), *results))
    note = f"{note}{INTERVAL_NOTE if several else ''}".strip()
    return Table(title, ("configuration", "runs", *statistics), tuple(rows), note)


def _profile_chart(groups: Sequence[Group], scores: Scores, metric: str, seed: int) -> Chart:
    """Share of runs above each score, per group."""
    values = [value for strata in scores.values() for runs in strata for value in runs]
    margin = 0.03 * (max(values) - min(values)) or 0.5
    thresholds = np.linspace(min(values) - margin, max(values) + margin, PROFILE_THRESHOLDS + 1)
    series = []
    for group in groups:
        strata = [runs for runs in scores[group.label] if runs]
        if not strata:
            continue
        profile = performance_profile(strata, thresholds, seed=seed)
        bounded = not np.isnan(profile.low).any()
        band = list(zip(thresholds, profile.low, profile.high, strict=True)) if bounded else []
        line = list(zip(thresholds, profile.share, strict=True))
        series.append(Series(f"{group.label}, n = {profile.runs}", group.color, line, band))
    title = metric_title(metric)
    note = f"Share of runs whose last evaluation is above a {title} τ, with 95 % intervals."
    return Chart("Performance profiles", f"{title} τ", "share of runs above τ", tuple(series), note)


def _across_tasks(study: Study, seed: int) -> list[Table | Chart]:
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
        blocks.append(_profile_chart(recolored, last, study.metric, seed))
    return blocks


def _improvement(scores: Scores) -> Table:
    """The configuration with the highest mean against each of the others."""
    leader = max(scores, key=lambda label: fmean(scores[label][0]))
    chances = {
        other: probability_of_improvement(scores[leader], scores[other])
        for other in scores
        if other != leader
    }
    rows = tuple((leader, other, chance.runs, chance) for other, chance in chances.items())
    note = "Chance that a run of the first, which has the highest mean, ends above a run of the second."
    header = ("configuration", "against", "runs", "probability")
    return Table("Probability of improvement", header, rows, note)


def statistics_table(study: Study, seed: int = 0) -> Table:
    """A row per task, configuration, evaluation (last or best) and statistic: what a spreadsheet takes."""
    place = ("task", "configuration", "metric", "evaluation", "runs")
    header = (*place, "statistic", "value", "low", "high", "verdict")
    rows: list[tuple[Cell, ...]] = []
    for task in study.tasks:
        for group in task.groups:
            own = (task.label, group.label)
            if task.estimated and (judged := group.judged) is not None:
                value, mean = judged.value, ("last", len(group.runs), "mean")
                rows.append((*own, task.metric, *mean, value.value, value.low, value.high, judged.told))
                rows.append((*own, "judge_score", *mean, judged.score, None, None, judged.told))
                continue
            for name, scores in (("last", group.last(task.metric)), ("best", group.best(task.metric))):
                row = (*own, task.metric, name, len(scores))
                for statistic, function in STATISTICS.items() if scores else ():
                    found = estimate([scores], function, seed=seed)
                    low, high = (found.low, found.high) if found.has_interval else (None, None)
                    rows.append((*row, statistic, found.value, low, high, None))
                if not scores:
                    rows.append((*row, *(None,) * 5))
    return Table("Statistics", header, tuple(rows))
