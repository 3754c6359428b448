"""What every column of an unknown table holds: kind, range, empty cells, how it behaves over time."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.config.data_fields import TableFields
from rl_training.data.episodes import Array
from rl_training.data.tables.cells import FLAG_WORDS
from rl_training.data.tables.csv_text import NULL_WORDS
from rl_training.data.tables.files import files_of, import_pyarrow
from rl_training.data.tables.opening import TableFile, open_table, problems_of

ENOUGH_ROWS = 100_000
"""Rows looked at; the first files of a large log are enough to tell its columns."""


@dataclass(frozen=True)
class ColumnFacts:
    """One column, as far as it was looked at."""

    name: str
    kind: str
    """number, vector, flag, time, text or empty"""
    low: str
    high: str
    missing: int
    distinct: int
    changes: int
    """rows whose value differs from the row before"""
    comes_back: bool
    """whether a value appears again after another one"""
    rises: bool
    """whether it is a number or time that mostly goes up from row to row"""
    on_low: float
    on_high: float
    """share of rows that lie exactly on the smallest and on the largest value"""


@dataclass(frozen=True)
class TableFacts:
    """All columns, and how much was looked at."""

    source: str
    files: int
    rows_seen: int
    columns: tuple[ColumnFacts, ...]

    def column(self, name: str) -> ColumnFacts:
        return next(column for column in self.columns if column.name == name)


def look_at(path: Path, fields: TableFields, *, kind: str | None = None) -> TableFacts:
    """Read the first rows of a table with types guessed column by column."""
    pa = import_pyarrow()
    files = files_of(path)
    tables: list[Any] = []
    rows = 0
    for file in files:
        opened = open_table(file, fields, kind=kind)
        with problems_of(file, opened.kind):
            tables.append(_whole(opened).slice(0, ENOUGH_ROWS - rows))
        rows += tables[-1].num_rows
        if rows >= ENOUGH_ROWS:
            break
    names = [name for name in tables[0].column_names if all(name in table.column_names for table in tables)]
    with problems_of(path, "csv"):
        joined = pa.concat_tables([table.select(names) for table in tables], promote_options="permissive")
    facts = tuple(_facts(name, joined.column(name).combine_chunks()) for name in names)
    return TableFacts(str(path), len(files), rows, facts)


def _whole(table: TableFile) -> Any:
    pa = import_pyarrow()
    if table.dialect is None:
        return pa.Table.from_batches(list(table.batches(dict.fromkeys(table.names, "any"))))
    import pyarrow.csv as arrow_csv

    return arrow_csv.read_csv(
        table.path,
        read_options=arrow_csv.ReadOptions(
            column_names=list(table.names), skip_rows=1, encoding=table.dialect.encoding, block_size=1 << 24
        ),
        parse_options=arrow_csv.ParseOptions(delimiter=table.dialect.separator),
        convert_options=arrow_csv.ConvertOptions(
            null_values=list(NULL_WORDS), strings_can_be_null=True, decimal_point=table.dialect.decimal
        ),
    )


def _facts(name: str, column: Any) -> ColumnFacts:
    pa = import_pyarrow()
    kind = _kind(column)
    codes, words = _codes(column) if kind != "vector" else (np.zeros(0), [])
    changed = codes[1:] != codes[:-1]
    starts = codes[np.concatenate([[True], changed])] if len(codes) else codes
    low = high = ""
    on_low = on_high = 0.0
    rises = False
    if kind in ("number", "time"):
        values = _numbers(column)
        known = values[~np.isnan(values)]
        steps = np.diff(known)
        rises = len(steps) > 0 and float((steps > 0).mean()) > 0.9
        if len(known):
            on_low, on_high = float((known == known.min()).mean()), float((known == known.max()).mean())
            shown = [f"{known.min():g}", f"{known.max():g}"]
            if not (pa.types.is_floating(column.type) or pa.types.is_integer(column.type)):
                ordered = sorted(str(word) for word in words)
                shown = [ordered[0], ordered[-1]]
            low, high = shown
    elif words:
        low, high = str(words[0])[:20], str(words[-1])[:20]
    return ColumnFacts(
        name=name,
        kind=kind,
        low=low,
        high=high,
        missing=int(column.null_count),
        distinct=len(words),
        changes=int(changed.sum()),
        comes_back=len(starts) > len(np.unique(starts)),
        rises=rises,
        on_low=on_low,
        on_high=on_high,
    )


def _kind(column: Any) -> str:
    pa = import_pyarrow()
    kind = column.type
    if pa.types.is_null(kind):
        return "empty"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return "vector"
    if pa.types.is_boolean(kind):
        return "flag"
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_time(kind):
        return "time"
    words = {
        str(value).strip().lower() for value in column.unique().slice(0, 5).to_pylist() if value is not None
    }
    if words and len(words) <= 2 and words <= FLAG_WORDS.keys():
        return "flag"
    return "number" if pa.types.is_floating(kind) or pa.types.is_integer(kind) else "text"


def _codes(column: Any) -> tuple[Array, list[object]]:
    encoded = column.dictionary_encode()
    words = encoded.dictionary.to_pylist()
    return encoded.indices.fill_null(len(words)).to_numpy(zero_copy_only=False), words


def _numbers(column: Any) -> Array:
    pa = import_pyarrow()
    if not (pa.types.is_floating(column.type) or pa.types.is_integer(column.type)):
        column = column.cast(
            pa.timestamp("us") if not pa.types.is_time(column.type) else pa.time64("us")
        ).cast(pa.int64())
    values: Array = column.to_numpy(zero_copy_only=False).astype(np.float64)
    return values
