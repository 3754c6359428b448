"""What going online did to a run: the drop, what was reached, and where its phases begin."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rl_training.core.types import number
from rl_training.report.charts import Mark
from rl_training.report.content import Cell, Table
from rl_training.report.statistics import estimate
from rl_training.report.study import SCORE, Group, RunRecord, metric_title
from rl_training.runs.metrics import online_numbers

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
