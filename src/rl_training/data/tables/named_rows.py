"""Chosen columns of a table by name, whatever their order and whatever else it holds: rows to act on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from rl_training.config.data_fields import TableFields
from rl_training.core.errors import DataError
from rl_training.data.episodes import Array
from rl_training.data.tables import cells
from rl_training.data.tables.files import files_of, holds_tables
from rl_training.data.tables.mapping import missing_column
from rl_training.data.tables.opening import open_table


def has_named_columns(path: Path, names: Sequence[str]) -> bool:
    """Whether a file, folder or pattern is a table with any of these columns.

    One with none of them is not meant by name: it holds bare numbers, or names of its own.
    """
    if not names or not holds_tables(path):
        return False
    try:
        return not set(names).isdisjoint(open_table(files_of(path)[0], TableFields()).names)
    except DataError:  # a file of bare numbers has no line of names
        return False


def named_rows(path: Path, names: Sequence[str], *, hold: bool = False) -> Iterator[tuple[Array, float]]:
    """Matrices with one column per name, and the share of the rows that is read with each.

    With `hold`, an empty cell takes the last value of its column in the same file.
    """
    fields = TableFields()
    tables = [open_table(file, fields) for file in files_of(path)]
    total, done = max(1, sum(table.rows for table in tables)), 0
    for table in tables:
        for name in names:
            if name not in table.names:
                raise missing_column(name, table.names, str(table.path), "which the policy observes")
        first, last = 0, np.full(len(names), np.nan)
        for batch in table.batches(dict.fromkeys(names, "number")):
            columns = [
                cells.numbers(batch.column(index), name, str(table.path), first)
                for index, name in enumerate(names)
            ]
            rows = np.stack(columns, axis=1).astype(np.float64, copy=False)
            if hold:
                rows = _held(rows, last)
            _refuse_empty(rows, names, str(table.path), first)
            last = rows[-1]
            first += len(rows)
            done += len(rows)
            yield rows, min(1.0, done / total)


def _held(rows: Array, last: Array) -> Array:
    """Empty cells filled from the row above; `last` is the row before the first."""
    above = np.vstack([last, rows])
    places = np.where(np.isnan(above), 0, np.arange(len(above))[:, None])
    filled: Array = np.take_along_axis(above, np.maximum.accumulate(places, axis=0), axis=0)[1:]
    return filled


def _refuse_empty(rows: Array, names: Sequence[str], where: str, first: int) -> None:
    empty = np.argwhere(np.isnan(rows))
    if len(empty):
        row, index = empty[0]
        raise DataError(
            f"{where}: row {first + int(row)} has no value in column {names[index]!r}, which the policy "
            "observes; fill it, leave the row out, or take the value before it (--missing-values hold)"
        )
