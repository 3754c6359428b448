"""A page on a decision log: is what the policy sees today what it was trained on, and is it followed?"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rl_training.core.drift import LARGE, NOTICEABLE, RECOMMENDED, ColumnShares, training_columns
from rl_training.core.errors import UserError
from rl_training.core.files import refuse_unwritable, write_text_atomic
from rl_training.core.types import Array
from rl_training.report.charts import Chart, Level, Series
from rl_training.report.content import Cell, Page, Section, Table, render_html
from rl_training.serve.app import open_served
from rl_training.serve.decisions import TABLE, open_database, quoted
from rl_training.serve.sessions import Served

WINDOWS = 20
"""Pieces of the log that the curves are drawn of."""
FEWEST = 50
"""Decisions in a piece, so that an index is not noise alone."""


@dataclass(frozen=True)
class Decisions:
    """The newest decisions, in the order of time."""

    observations: Array
    recommended: Array
    applied: Array
    flagged: Array

    def __len__(self) -> int:
        return len(self.flagged)


def write_drift_page(place: str, policy: Path, out: Path, *, last: int) -> list[str]:
    """Write the page; returns its sentences."""
    refuse_unwritable(out, "--out")
    served = open_served(policy)
    known = training_columns(served.policy.metadata["training"]["data"])
    if not known:
        raise UserError(
            f"policy {policy} was exported before the columns of the training data were stored with it; "
            "export it again"
        )
    found = read_decisions(place, served, last)
    if not len(found):
        raise UserError(f"{place} holds no decisions yet")
    page = drift_page(found, served, known)
    write_text_atomic(out, render_html(page))
    return list(page.verdict)


def read_decisions(place: str, served: Served, last: int) -> Decisions:
    """The newest rows of a decision log that has the policy's columns."""
    if (
        not place.startswith(("postgresql://", "postgres://"))
        and not Path(place.removeprefix("sqlite:")).exists()
    ):
        raise UserError(f"{place}: no such decision log")
    names = [
        *served.observations,
        *(f"{RECOMMENDED}{name}" for name in served.actions),
        *served.actions,
        "flagged",
    ]
    with closing(open_database(place)) as database:
        missing = {*names} - {*database.columns()}
        if missing:
            raise UserError(
                f"{place} is no decision log of this policy: it has no {', '.join(sorted(missing))}"
            )
        listed = ", ".join(map(quoted, names))
        rows = database.rows(f"select {listed} from {TABLE} order by at desc limit {int(last)}")
    columns = [np.array(column, dtype=object)[::-1] for column in zip(*rows, strict=True)] or [
        np.empty(0, dtype=object)
    ] * len(names)
    obs, acts = len(served.observations), len(served.actions)
    numbers = [_numbers(column) for column in columns]
    return Decisions(
        np.stack(numbers[:obs], axis=1),
        np.stack(numbers[obs : obs + acts], axis=1),
        np.stack(numbers[obs + acts : obs + 2 * acts], axis=1),
        numbers[-1],
    )


def _numbers(column: Array) -> Array:
    """Numbers of a column; what is missing, and levels that are words, is NaN."""
    return np.array([float(v) if isinstance(v, int | float) else np.nan for v in column], dtype=np.float64)


def drift_page(found: Decisions, served: Served, known: Mapping[str, ColumnShares]) -> Page:
    """Verdict, what drifts, how often the guard speaks, and what was done of what was recommended."""
    indices = {
        name: known[name].instability(found.observations[:, index])
        for index, name in enumerate(served.observations)
        if name in known
    }
    rows: list[tuple[Cell, ...]] = [(name, index, worded(index)) for name, index in indices.items()]
    rows.sort(key=lambda row: -(row[1] if isinstance(row[1], float) else 0.0))
    flagged = float(np.nanmean(found.flagged))
    drifted = [str(row[0]) for row in rows if isinstance(row[1], float) and row[1] >= LARGE]
    sentences = [
        f"{', '.join(drifted)}: the policy sees something else than it was trained on; judge it again on "
        "newer data before you rely on it."
        if drifted
        else "What the policy sees is what it was trained on."
    ]
    if served.policy.guard_facts is not None:
        usual = 1.0 - served.policy.guard_facts.percentile / 100.0
        sentences.append(f"{flagged:.1%} of the observations are flagged; {usual:.1%} is usual.")
    note = (
        "Population stability index against the training data: below "
        f"{NOTICEABLE:g} nothing happened, {LARGE:g} or more is a large change."
    )
    parts = [
        Section("Columns", (Table("Columns", ("column", "index", "meaning"), tuple(rows), note),)),
        Section("Along time", tuple(_curves(found, served, known))),
        Section("What was done", (_done(found, served),)),
    ]
    facts = (f"The newest {len(found):,} decisions.",)
    tones = ("refused" if drifted else "better", *(("indistinguishable",) * (len(sentences) - 1)))
    return Page("Does the policy still fit?", tuple(sentences), facts, tuple(parts), tones)


def worded(index: float | None) -> str:
    if index is None:
        return "never known"
    return "large change" if index >= LARGE else "some change" if index >= NOTICEABLE else "no change"


def _curves(found: Decisions, served: Served, known: Mapping[str, ColumnShares]) -> list[Chart]:
    pieces = np.array_split(np.arange(len(found)), max(1, min(WINDOWS, len(found) // FEWEST)))
    series = []
    for index, name in enumerate(served.observations):
        if name not in known:
            continue
        values = found.observations[:, index]
        told = [(float(rows[-1] + 1), known[name].instability(values[rows])) for rows in pieces]
        series.append(Series(name, index + 1, [(x, y) for x, y in told if y is not None]))
    shares = [(float(rows[-1] + 1), float(np.nanmean(found.flagged[rows]))) for rows in pieces]
    large = (Level("large change", LARGE),)
    return [
        Chart("Index of every column", "decisions", "index", tuple(series), levels=large),
        Chart("Share of flagged observations", "decisions", "share", (Series("flagged", 1, shares),)),
    ]


def _done(found: Decisions, served: Served) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for index, name in enumerate(served.actions):
        wanted, done = found.recommended[:, index], found.applied[:, index]
        both = np.isfinite(wanted) & np.isfinite(done)
        gap = float(np.abs(wanted - done)[both].mean()) if both.any() else None
        rows.append((name, _mean(wanted), _mean(done), gap, int(both.sum())))
    header = ("action", "recommended, mean", "applied, mean", "mean difference", "decisions with both")
    return Table("What was done", header, tuple(rows), "In the units of the log.")


def _mean(values: Array) -> float | None:
    return float(np.nanmean(values)) if np.isfinite(values).any() else None
