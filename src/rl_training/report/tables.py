"""Tables of a report: settings, speed, data, runs, what a judge estimated, and what going online did."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median

from rl_training.core.spaces import FeatureNames
from rl_training.core.types import Facts, number
from rl_training.judging.candidates import candidate_of
from rl_training.judging.verdict import Interval
from rl_training.report.charts import Mark
from rl_training.report.content import MARK, Cell, Link, Table, duration, plain_number, with_interval
from rl_training.report.judge_page import OUTCOMES
from rl_training.report.statistics import estimate
from rl_training.report.study import (
    JUDGED,
    SCORE,
    Group,
    RunRecord,
    Study,
    Task,
    differing_settings,
    metric_title,
    show_value,
)
from rl_training.runs.directory import algorithm_title
from rl_training.runs.tracking import online_numbers


def differences_table(groups: Sequence[Group]) -> Table:
    rows = tuple(
        (name, *(show_value(group.settings[name]) if name in group.settings else None for group in groups))
        for name in differing_settings([group.settings for group in groups])
    )
    note = "Settings that are not equal in all configurations that have them."
    return Table("Hyper-parameter differences", ("setting", *(g.label for g in groups)), rows, note)


def throughput_table(study: Study) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for task in study.tasks:
        for group in task.groups:
            timed = [(run.seconds, number(run.metrics.get("global_step"))) for run in group.runs]
            rates = [steps / seconds for seconds, steps in timed if seconds and steps]
            updates = [rate for run in group.runs if (rate := updates_per_second(run)) is not None]
            seconds = [seconds for seconds, _ in timed if seconds]
            speeds = (f"{median(values):,.0f}" if values else None for values in (rates, updates))
            wall_time = duration(fmean(seconds)) if seconds else None
            rows.append((group.label, task.label, len(group.runs), *speeds, wall_time))
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
    fields = ("transitions", "episodes", "terminations", "return_mean", "return_min", "return_max")
    rows = dict.fromkeys(
        (str(run.dataset.get("source", "unknown")), *(number(run.dataset.get(field)) for field in fields))
        for run in study.runs
        if run.dataset
    )
    header = ("data", "transitions", "episodes", "terminations", "mean return", "lowest", "highest")
    return Table("Datasets", header, tuple(rows), "Returns in the environment's own rewards.")


def runs_table(study: Study, folder: Path) -> Table:
    """All runs, from the best configuration down; the column of best evaluations only where it says more."""
    rows: list[tuple[Cell, ...]] = []
    bests: list[str | None] = []
    for task, group, run in study.members:
        last, best = run.last(task.metric), run.best(task.metric)
        shown: Cell = last
        if last is not None and task.estimated:
            shown = f"{plain_number(last)} {MARK}, {_verdict_of(run)}"
        link, state = run_link(run, folder), _state(run, group)
        rows.append((link, group.label, show_value(run.seed), state, f"{run.last_step:,}", shown))
        told = None if best is None else f"{plain_number(best[1])} at {best[0]:,}"
        bests.append("as last" if best and best[1] == last else told)
    header: tuple[str, ...] = ("run", "configuration", "seed", "state", "steps", "last")
    if any(told not in (None, "as last") for told in bests):
        header, rows = (*header, "best"), [(*row, told) for row, told in zip(rows, bests, strict=True)]
    note = "Runs that are not finished, or that repeat a seed, are shown here and left out of the statistics."
    return Table("Runs", header, tuple(rows), note)


def _verdict_of(run: RunRecord) -> str:
    """The judge's, and whether it keeps its limits."""
    judged = candidate_of([run.metrics])
    return "–" if judged is None else judged.told


def run_link(run: RunRecord, folder: Path) -> Link:
    return Link(run.name, os.path.relpath(run.path.resolve(), folder.resolve()))


def _state(run: RunRecord, group: Group) -> str:
    if run in group.repeated:
        return "repeats a seed, left out"
    if run in group.unfinished:
        return f"{run.stop_reason}, left out" if not run.finished else "not evaluated, left out"
    return run.stop_reason


def judgements_table(study: Study) -> Table:
    """Every run that was judged, whatever else is known of it."""
    rows = tuple(
        (
            run.name,
            group.label,
            show_value(run.seed),
            with_interval(run.estimate),
            number(run.metrics.get("judge_behaviour")),
            _verdict_of(run),
            number(run.metrics.get("judge_episodes")),
        )
        for _, group, run in study.members
        if run.estimate is not None
    )
    value = "estimated value [90 %]"
    header = ("run", "configuration", "seed", value, "logged behaviour", "verdict", "episodes")
    note = (
        f"{MARK}: discounted values by a judge that saw logged episodes only, not returns of episodes that "
        "were played."
    )
    return Table("Judged by the log", header, rows, note)


def costs_table(study: Study) -> Table:
    """What the judge says of every run's costs, and the log of its own."""
    rows: list[tuple[Cell, ...]] = []
    for _, group, run in study.members:
        logged = run.dataset.get("costs")
        for name, told in _mappings(run.metrics.get("judge_costs")):
            value, low, high, limit = (number(told.get(each)) for each in ("value", "low", "high", "limit"))
            estimated = None if value is None else with_interval(Interval(value, low, high))
            bound = "" if limit is None else plain_number(limit)
            measured = number(dict(_mappings(logged)).get(name, {}).get(f"per_{told.get('per')}"))
            outcome = OUTCOMES.get(told.get("outcome"), "–")
            of = (run.name, group.label, name, f"{bound} per {told.get('per')}".strip())
            rows.append((*of, estimated, measured, outcome))
    header = ("run", "configuration", "cost", "limit", "estimated [90 %]", "as logged", "outcome")
    note = f"{MARK} from logged episodes, not measured; as logged: the mean over the training data."
    return Table("Costs and limits", header, tuple(rows), note)


def _mappings(given: object) -> list[tuple[str, Facts]]:
    """The mappings in a mapping, by name; a file may hold anything."""
    if not isinstance(given, Mapping):
        return []
    return [(str(name), each) for name, each in given.items() if isinstance(each, Mapping)]


def estimates_table(task: Task) -> Table:
    """Each configuration's verdict, and its value with the noise of judge and seeds together."""
    rows: list[tuple[Cell, ...]] = []
    for group in task.groups:
        told: tuple[Cell, ...] = (None,) * 3
        if (judged := group.judged) is not None:
            told = (judged.told, judged.score, with_interval(judged.value))
        rows.append((group.label, len(group.runs), *told))
    note = (
        f"{MARK} from logged episodes, not measured; discounted. In brackets: what the judge (90 %) "
        "and the spread over runs leave open. From the one to take first, by the score; the numbers of a "
        "refused run must not be relied on."
    )
    header = ("configuration", "runs", "verdict", "score", "estimated value")
    return Table("Estimated value", header, tuple(rows), note)


def result_table(run: RunRecord, metric: str, folder: Path) -> Table:
    """What one run was, how far it got and what it reached."""
    rows: list[tuple[str, Cell]] = [
        ("run", run_link(run, folder)),
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
    if (speed := updates_per_second(run)) is not None:
        rows.append(("updates per second", f"{speed:,.0f}"))
    return Table("Result", ("", "value"), tuple(rows))


def _spread(run: RunRecord) -> str:
    """Over how many episodes the last evaluation went, and how much these differ."""
    episodes, std = (number(run.metrics.get(f"eval_{name}")) for name in ("episodes", "return_std"))
    if episodes is None:
        return ""
    spread = "" if std is None else f", standard deviation of the return {plain_number(std)}"
    return f" over {episodes:.0f} episodes{spread}"


def settings_table(run: RunRecord) -> Table:
    """Every setting that has a value."""
    left_out = {"algo_kwargs", "output_dir", "format_version"}
    settings = {name: run.config[name] for name in run.config if name not in left_out} | dict(run.settings)
    rows = tuple(
        (name, show_value(value)) for name, value in settings.items() if value not in (None, [], {}, "")
    )
    return Table("Settings", ("setting", "value"), rows)


# ---- what going online did: the drop, what was reached, and where phases begin

COLUMNS = {
    "before": "online_return_before",
    "lowest": "online_return_lowest",
    "drop": "online_drop",
    "last": "online_return_last",
    "mean": "online_return_mean",
    "while learning": "online_rollout_mean",
    "regret": "online_regret",
}
_NOTE = (
    "Evaluations before the first online step, the lowest of the first 10,000 online steps and how far it "
    "lies below, the last, and the mean of the online phase; while learning: the episodes that were "
    "collected, exploration included."
)
_REGRET_NOTE = " Regret: 1 minus the mean normalised score as a share."


def online_values(run: RunRecord, metric: str) -> dict[str, float]:
    """The numbers that are known of a run's online phase, on the metric's scale; empty where it has none."""
    if run.offline_steps is None:
        return {}
    names = (metric, SCORE, "rollout_episodes", "rollout_return_mean")
    rows = [
        {**{name: number(row.get(name)) for name in names}, "step": row["step"], "kind": row.get("kind")}
        for row in run.rows
    ]
    found = online_numbers(rows, run.offline_steps, metric)
    rollouts = COLUMNS["while learning"]
    found[rollouts] = run.on_scale(found[rollouts], metric)
    return {name: value for name, key in COLUMNS.items() if (value := found[key]) is not None}


def column(runs: Sequence[RunRecord], metric: str, name: str) -> list[float]:
    """One of the numbers, of all runs that have it."""
    return [values[name] for run in runs if name in (values := online_values(run, metric))]


def online_table(groups: Sequence[Group], metric: str, seed: int) -> Table:
    """A row for every configuration that has an online phase; a column for every number that one has."""
    phased = [group for group in groups if any(run.offline_steps is not None for run in group.runs)]
    found = {group.label: {name: column(group.runs, metric, name) for name in COLUMNS} for group in phased}
    shown = [name for name in COLUMNS if any(values[name] for values in found.values())]
    rows = tuple(
        (group.label, len(group.runs), *(_cell(found[group.label][name], seed) for name in shown))
        for group in phased
    )
    note = _NOTE + (_REGRET_NOTE if "regret" in shown else "")
    return Table(f"Going online, {metric_title(metric)}", ("configuration", "runs", *shown), rows, note)


def _cell(values: Sequence[float], seed: int) -> Cell:
    return estimate([values], seed=seed) if len(values) > 1 else next(iter(values), None)


def online_rows(run: RunRecord, metric: str) -> list[tuple[str, Cell]]:
    """The same for the table of one run."""
    titles = {
        "before": f"{metric_title(metric)} before going online",
        "lowest": "lowest of the first 10,000 online steps",
        "drop": "drop",
        "mean": "mean of the online phase",
        "while learning": "episodes collected while learning",
        "regret": "regret",
    }
    values = online_values(run, metric)
    return [(title, values[name]) for name, title in titles.items() if name in values]


def phase_marks(runs: Iterable[RunRecord]) -> tuple[Mark, ...]:
    """Where the phases of these runs begin."""
    places: dict[Mark, None] = {}
    for run in runs:
        if run.offline_steps is None:
            continue
        warmup = int(number(run.settings.get("warmup_steps_online")) or 0)
        if warmup:
            places.setdefault(Mark("warm-up →", run.offline_steps))
        places.setdefault(Mark("online →", run.offline_steps + warmup))
    return tuple(places)
