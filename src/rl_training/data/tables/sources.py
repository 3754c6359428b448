"""Where the rows of a table come from: files, sheets of workbooks, a database, narrow tables made wide."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.config.data import DatasetSource, TableFields
from rl_training.config.limits import parse_episode_length
from rl_training.core.errors import DataError, did_you_mean, install_hint
from rl_training.core.files import is_database
from rl_training.core.types import Array
from rl_training.data.tables import cells
from rl_training.data.tables.files import files_of, import_pyarrow, local_path
from rl_training.data.tables.read import RowSource, TableFile, open_table
from rl_training.data.tables.sql import QueryRows, open_query

WORKBOOKS = (".xlsx", ".xlsm")


@dataclass(frozen=True)
class FrameRows:
    """An Arrow table as a source of rows."""

    table: Any
    label: str = ""
    notes: Sequence[str] = ()
    info: bytes = b"{}"

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.table.column_names)

    @property
    def rows(self) -> int:
        return int(self.table.num_rows)

    def first_rows(self, most: int) -> Any:
        """The first rows with all columns."""
        return self.table.slice(0, most)

    def batches(self, kinds: Mapping[str, str]) -> Iterable[Any]:
        """Record batches of the wanted columns."""
        batches: Iterable[Any] = self.table.select(list(kinds)).combine_chunks().to_batches()
        return batches


@dataclass(frozen=True)
class WithEmpty:
    """A source with columns that it does not have as empty ones."""

    source: RowSource
    missing: tuple[str, ...]

    @property
    def label(self) -> str:
        return self.source.label

    @property
    def notes(self) -> Sequence[str]:
        listed = ", ".join(self.missing)
        return (*self.source.notes, f"{self.label} has no column {listed}: its cells are taken as empty")

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.source.names, *self.missing)

    @property
    def rows(self) -> int:
        return self.source.rows

    def batches(self, kinds: Mapping[str, str]) -> Iterator[Any]:
        """Record batches of the wanted columns."""
        pa = import_pyarrow()
        there = {name: kind for name, kind in kinds.items() if name not in self.missing}
        if not there:
            raise DataError(f"{self.label}: has none of the columns {', '.join(kinds)}")
        for batch in self.source.batches(there):
            given = dict(zip(batch.schema.names, batch.columns, strict=True))
            empty = {
                name: pa.nulls(batch.num_rows, pa.float64() if kinds[name] == "number" else pa.string())
                for name in self.missing
            }
            yield pa.RecordBatch.from_pydict({name: (given | empty)[name] for name in kinds})


def read_workbook(path: Path, settings: TableFields) -> FrameRows:
    """A sheet of an Excel workbook: a line of names, then a row per step; values, not formulas."""
    try:
        import openpyxl
        from openpyxl.utils.exceptions import InvalidFileException
    except ImportError:
        raise DataError(f"{path}: Excel workbooks need openpyxl; {install_hint('excel')}") from None
    import zipfile

    try:
        workbook = openpyxl.load_workbook(path, read_only=True, data_only=True)
    except (InvalidFileException, zipfile.BadZipFile, KeyError, ValueError, OSError) as problem:
        text = " ".join(str(problem).split())[:200]
        raise DataError(f"{path}: cannot be read as an Excel workbook; it is damaged ({text})") from None
    try:
        sheet = _sheet(workbook, path, settings.sheet)
        lines = [row for row in sheet.iter_rows(values_only=True) if any(cell is not None for cell in row)]
    finally:
        workbook.close()
    if not lines:
        raise DataError(f"{path}: sheet {sheet.title!r} is empty")
    header, rows = lines[0], lines[1:]
    width = max(index + 1 for index, cell in enumerate(header) if cell is not None)
    names = [str(name).strip() for name in header[:width]]
    if len(set(names)) < width or None in header[:width]:
        raise DataError(
            f"{path}: the first line of sheet {sheet.title!r} must name each column once, got "
            f"{', '.join(names)}"
        )
    columns = {name: _column([row[index] for row in rows]) for index, name in enumerate(names)}
    return FrameRows(import_pyarrow().table(columns), str(path))


def _sheet(workbook: Any, path: Path, wanted: str | None) -> Any:
    names = workbook.sheetnames
    if wanted is not None:
        if wanted not in names:
            raise DataError(
                f"{path}: no sheet {wanted!r}{did_you_mean(wanted, names)}; it has {', '.join(names)}"
            )
        return workbook[wanted]
    filled = [name for name in names if next(workbook[name].iter_rows(values_only=True), None)]
    if len(filled) != 1:
        raise DataError(f"{path}: say which sheet: --sheet NAME (it has {', '.join(names)})")
    return workbook[filled[0]]


def _column(values: list[Any]) -> Any:
    """Cells as numbers or times where all are, else as text."""
    pa = import_pyarrow()
    try:
        return pa.array(values)
    except pa.ArrowException:
        return pa.array([None if value is None else str(value) for value in values])


def made_wide(sources: Sequence[Any], settings: TableFields) -> FrameRows:
    """A column per tag out of rows with a time, a tag and a value, as historians write them.

    A tag keeps its value until the next one; before its first one its cells are empty. With `pivot_step`
    there is a row at every step, with the values known then; without, one at every time with a reading.
    """
    assert settings.pivot is not None
    label = sources[0].label
    tag, _, value = settings.pivot.partition("=")
    time = settings.columns.time
    if time is None:
        raise DataError(f"{label}: pivot needs the time of readings; set columns.time (--time)")
    names, times, tags, values = _readings(sources, (time, tag, value), settings)
    order = np.argsort(times, kind="stable")
    times, tags, values = times[order], tags[order], values[order]
    if settings.pivot_step is None:
        grid = np.unique(times)
    else:
        step = parse_episode_length(settings.pivot_step).seconds or 1.0
        count = int(np.floor((times[-1] - times[0]) / step + 1e-9)) + 1
        if count > MOST_STEPS:
            raise DataError(
                f"{label}: pivot_step {settings.pivot_step} makes {count} rows out of {len(times)} readings; "
                "give a longer one"
            )
        grid = times[0] + step * np.arange(count)
    columns: dict[str, Any] = {time: grid}
    for code, name in enumerate(names):
        own = tags == code
        last = np.searchsorted(times[own], grid, side="right") - 1
        columns[name] = np.where(last >= 0, values[own][np.maximum(last, 0)], np.nan)
    pa = import_pyarrow()
    table = pa.table({name: pa.array(column, from_pandas=True) for name, column in columns.items()})
    note = (
        f"{len(times)} readings of {len(names)} tags became {len(grid)} rows; each tag keeps its last value"
    )
    return FrameRows(table, label, (*sources[0].notes, note))


MOST_STEPS = 100_000_000


def _readings(
    sources: Sequence[Any], wanted: tuple[str, str, str], settings: TableFields
) -> tuple[list[str], Array, Array, Array]:
    """Names of tags, and time, number of the tag and value of each reading that has all three."""
    known: dict[object, int] = {}
    found: list[tuple[Array, Array, Array]] = []
    for source in sources:
        for name in wanted:
            if name not in source.names:
                raise DataError(
                    f"{source.label}: no column {name!r} (pivot){did_you_mean(name, source.names)}; it has "
                    f"{', '.join(source.names)}"
                )
        first = 0
        for batch in source.batches(dict(zip(wanted, ("time", "id", "number"), strict=True))):
            when, tag, value = (batch.column(batch.schema.get_field_index(name)) for name in wanted)
            found.append(
                (
                    cells.times(when, wanted[0], source.label, first, settings.date_order),
                    cells.codes(tag, known),
                    cells.numbers(value, wanted[2], source.label, first).astype(np.float64),
                )
            )
            first += batch.num_rows
    if not found:
        raise DataError(f"{sources[0].label}: the dataset is empty (0 rows)")
    times, tags, values = (np.concatenate([batch[index] for batch in found]) for index in range(3))
    whole = np.isfinite(times) & np.isfinite(values) & (tags >= 0)
    if not whole.any():
        raise DataError(f"{sources[0].label}: holds no reading with a time, a tag and a value")
    return [str(name) for name in known], times[whole], tags[whole], values[whole]


Source = TableFile | QueryRows | FrameRows


@contextmanager
def open_sources(source: DatasetSource, *, kind: str | None = None) -> Iterator[list[Source]]:
    """What a dataset's path stands for, opened as far as its column names.

    `kind` overrules the endings of files. A database stays connected until the end.
    """
    import_pyarrow()
    with _as_they_are(source, kind) as tables:
        yield tables if source.pivot is None else [made_wide(tables, source)]


@contextmanager
def _as_they_are(source: DatasetSource, kind: str | None) -> Iterator[list[Source]]:
    if is_database(str(source.dataset_path)):
        with open_query(source) as rows:
            yield [rows]
        return
    files = files_of(local_path(str(source.dataset_path)))
    if files[0].suffix.lower() in WORKBOOKS:
        yield [read_workbook(file, source) for file in files]
        return
    if source.sheet is not None:
        raise DataError(f"{source.dataset_path}: sheet is for Excel workbooks (.xlsx): leave it out")
    tables: list[TableFile] = []
    for file in files:
        tables.append(open_table(file, source, kind=kind, like=tables[0] if tables else None))
    yield [*tables]
