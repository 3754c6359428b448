"""One table file of any kind, or many small ones as one: columns, rows in batches."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rl_training.config.data import TableFields
from rl_training.core.errors import DataError
from rl_training.core.files import parse_json
from rl_training.data.fields import FieldColumns
from rl_training.data.reading import CHUNK_ROWS
from rl_training.data.tables.cells import wrong_number
from rl_training.data.tables.files import import_pyarrow, kind_of_file
from rl_training.data.tables.text import (
    BLANKS,
    Dialect,
    csv_batches,
    csv_table,
    dialect_and_lines,
    text_at_fault,
)

COLUMNS_TOGETHER = 20
_WORDS = {"csv": "CSV", "parquet": "Parquet", "feather": "Feather", "jsonl": "JSON lines"}
_COLUMN_NUMBER = re.compile(r"In CSV column #(\d+)")
_CELL_COUNT = re.compile(r"Row #(\d+): Expected (\d+) columns, got (\d+)")
_JSON_COLUMN = re.compile(r"Column\(/([^/)]+)")


class RowSource(Protocol):
    """Something with named columns that gives record batches: a file, a query, or a frame in memory."""

    @property
    def label(self) -> str: ...

    @property
    def names(self) -> tuple[str, ...]: ...

    @property
    def rows(self) -> int: ...

    @property
    def notes(self) -> Sequence[str]: ...

    def batches(self, kinds: Mapping[str, str]) -> Iterable[Any]: ...


@dataclass(frozen=True)
class TableFile:
    """A file that was opened as far as its column names."""

    path: Path
    kind: str
    names: tuple[str, ...]
    rows: int
    """rows at most: exact but for text, whose lines are counted"""
    types: Mapping[str, Any]
    """Arrow type of a column, where the file states it (text does not)"""
    info: Any = b"{}"
    """what a file written here says about itself"""
    dialect: Dialect | None = None
    bytes: int = 0
    notes: Sequence[str] = ()

    @property
    def label(self) -> str:
        return str(self.path)

    def first_rows(self, most: int) -> Any:
        """The first rows with all columns, their types guessed where the file does not state them."""
        pa = import_pyarrow()
        with problems_of(self.path, self.kind):
            if self.dialect is not None:
                return csv_table(self.path, self.dialect).slice(0, most)
            found, rows = [], 0
            for batch in self.batches(dict.fromkeys(self.names, "any")):
                found.append(batch)
                rows += batch.num_rows
                if rows >= most:
                    break
            return pa.Table.from_batches(found).slice(0, most)

    def column_groups(self, fields: FieldColumns) -> list[FieldColumns]:
        """Columns that are read together: all, or a few at a time from a long Parquet file.

        Each column that is being read keeps a dictionary and pages of its own in memory. A wide field is
        split only where all its columns hold one number of the same type, so that its width is known.
        """
        if self.kind != "parquet" or self.rows <= CHUNK_ROWS:
            return [fields]
        groups: list[FieldColumns] = [{}]
        for field, columns in fields.items():
            types = {self.types[column] for column in columns}
            alike = len(types) == 1 and not import_pyarrow().types.is_nested(next(iter(types)))
            pieces = -(-len(columns) // COLUMNS_TOGETHER) if alike else 1
            size = -(-len(columns) // pieces)
            for first in range(0, len(columns), size):
                piece = columns[first : first + size]
                if groups[-1] and sum(map(len, groups[-1].values())) + len(piece) > COLUMNS_TOGETHER:
                    groups.append({})
                groups[-1].setdefault(field, []).extend(piece)
        return groups

    def batches(self, kinds: Mapping[str, str]) -> Iterator[Any]:
        """Record batches of the columns in `kinds` (`number`, `flag`, `id` or `time` each), in that order."""
        with problems_of(self.path, self.kind):
            try:
                yield from self._batches(kinds)
            except import_pyarrow().ArrowInvalid as problem:
                raise self._wrong_cell(problem, kinds) or problem from None

    def _batches(self, kinds: Mapping[str, str]) -> Iterator[Any]:
        pa = import_pyarrow()
        if self.dialect is not None:
            yield from csv_batches(self.path, self.dialect, kinds)
        elif self.kind == "parquet":
            import pyarrow.parquet as parquet

            # pages are streamed, a few at a time: whole row groups would double the memory
            with parquet.ParquetFile(self.path, buffer_size=1 << 14, pre_buffer=False) as file:
                for batch in file.iter_batches(
                    batch_size=CHUNK_ROWS // 4, columns=list(kinds), use_threads=False
                ):
                    yield batch.select(list(kinds))
        elif self.kind == "feather":
            with pa.memory_map(str(self.path)) as source, pa.ipc.open_file(source) as file:
                for index in range(file.num_record_batches):
                    batch = file.get_batch(index).select(list(kinds))
                    batch.validate(full=True)  # its parts lie where the file says, which may be nowhere
                    yield batch
        else:
            import pyarrow.json as arrow_json

            schema = pa.schema([(name, self._json_type(name, kind)) for name, kind in kinds.items()])
            parse = arrow_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
            read = arrow_json.ReadOptions(use_threads=False, block_size=1 << 22)
            with arrow_json.open_json(self.path, parse_options=parse, read_options=read) as reader:
                yield from reader

    def _json_type(self, name: str, kind: str) -> Any:
        pa = import_pyarrow()
        if kind != "number":
            return self.types[name]
        return pa.list_(pa.float64()) if pa.types.is_list(self.types[name]) else pa.float64()

    def _wrong_cell(self, problem: Exception, kinds: Mapping[str, str]) -> DataError | None:
        """The cell behind a failed conversion of text, named by row, column and content."""
        if self.kind == "jsonl":
            return self._wrong_value(problem, kinds)
        cells = _CELL_COUNT.search(str(problem))
        if cells is not None:
            return DataError(
                f"{self.path}: line {cells[1]} has {cells[3]} cells, the line of names has {cells[2]}; "
                "repair the line, or set csv_separator"
            )
        match = _COLUMN_NUMBER.search(str(problem))
        if self.dialect is None or match is None:
            return None
        name = self.dialect.names[int(match[1])]
        found = text_at_fault(self.path, self.dialect, name) if kinds.get(name) == "number" else None
        if found is None:
            return None
        row, text = found
        return wrong_number(str(self.path), row, name, text, f" (line {row + 1 + self.dialect.has_names})")

    def _wrong_value(self, problem: Exception, kinds: Mapping[str, str]) -> DataError | None:
        """The value of a JSON line that is no number, named by row, key and content."""
        match = _JSON_COLUMN.search(str(problem))
        if match is None or kinds.get(match[1]) != "number":
            return None
        with import_pyarrow().input_stream(str(self.path), compression="detect") as stream:
            for row, line in enumerate(io.TextIOWrapper(stream, encoding="utf-8")):
                value = parse_json(line).get(match[1]) if line.strip() else None
                if isinstance(value, str | bool):
                    return wrong_number(str(self.path), row, match[1], str(value))
        return None


def open_table(
    path: Path, fields: TableFields, *, kind: str | None = None, like: TableFile | None = None
) -> TableFile:
    """Look at a file as far as its column names; `like` is the first file of the same log."""
    kind = kind or kind_of_file(path) or "csv"
    pa = import_pyarrow()
    with problems_of(path, kind):
        if kind == "csv":
            known = None if like is None else like.dialect
            dialect, lines = dialect_and_lines(path, known, fields)
            rows, size = max(0, lines - dialect.has_names), path.stat().st_size
            notes = () if known is not None or not dialect.thousands else (_marks(dialect),)
            return TableFile(path, kind, dialect.names, rows, {}, dialect=dialect, bytes=size, notes=notes)
        if kind == "jsonl":
            return _open_jsonl(path)
        if kind == "parquet":
            import pyarrow.parquet as parquet

            with parquet.ParquetFile(path) as file:
                schema, rows = file.schema_arrow, file.metadata.num_rows
        else:
            with pa.memory_map(str(path)) as source, pa.ipc.open_file(source) as file:
                schema = file.schema
                rows = sum(file.get_batch(index).num_rows for index in range(file.num_record_batches))
        types = dict(zip(schema.names, schema.types, strict=True))
        info = (schema.metadata or {}).get(b"rl_training", b"{}")
        return TableFile(path, kind, tuple(schema.names), rows, types, info=info)


def _marks(dialect: Dialect) -> str:
    return (
        f"numbers are read as 1{dialect.thousands}234{dialect.decimal}5 for 1234.5; if that is wrong, set "
        "csv_thousands or csv_decimal"
    )


def _open_jsonl(path: Path) -> TableFile:
    pa = import_pyarrow()
    with pa.input_stream(str(path), compression="detect") as stream:
        line = bytes(stream.read(1 << 20)).lstrip().partition(b"\n")[0]
    if not line:
        raise DataError(f"{path}: the dataset is empty (0 rows)")
    first = parse_json(line)
    if not isinstance(first, dict):
        raise DataError(f"{path}: every line must be a mapping of names to values, got {str(first)[:40]}")
    types = {}
    for name, value in first.items():
        with_points = float(value) if isinstance(value, int) and not isinstance(value, bool) else value
        types[name] = pa.array([with_points]).type
        if value is None:
            types[name] = pa.float64()
    with path.open("rb") as file:
        lines = sum(1 for _ in file)
    return TableFile(path, "jsonl", tuple(first), lines, types)


@contextmanager
def problems_of(path: Path | str, kind: str) -> Iterator[None]:
    """Failures of the library, as one line about the file."""
    pa = import_pyarrow()
    try:
        yield
    except DataError:
        raise
    except (OSError, pa.ArrowException, ValueError, KeyError, TypeError, LookupError) as problem:
        text = " ".join(str(problem).split()) or type(problem).__name__
        raise DataError(
            f"{path}: cannot be read as {_WORDS[kind]}; it is damaged or of another kind ({text[:300]})"
        ) from None


SMALL_BYTES = 1 << 20
"""Files up to this size are joined."""

JOINED_BYTES = 1 << 22
"""Text that is parsed together at most."""


@dataclass(frozen=True)
class JoinedFiles:
    """Text files with one header, whose lines are parsed together."""

    files: tuple[TableFile, ...]
    dialect: Dialect
    notes: Sequence[str] = ()

    @property
    def label(self) -> str:
        return self.files[0].label

    @property
    def names(self) -> tuple[str, ...]:
        return self.dialect.names

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    def batches(self, kinds: Mapping[str, str]) -> Iterator[Any]:
        pa = import_pyarrow()
        text = b"".join(piece for file in self.files for piece in _lines(file))
        try:
            yield from csv_batches(pa.BufferReader(text), self.dialect, kinds, skip_rows=0)
        except pa.ArrowException as problem:
            raise DataError(str(problem)) from None


def joined(sources: Sequence[RowSource]) -> list[RowSource]:
    """The sources of a log, neighbouring files joined where they are small and written alike."""
    groups: list[RowSource] = []
    waiting: list[TableFile] = []
    size = 0
    for each in sources:
        file = each if isinstance(each, TableFile) and _joinable(each) else None
        fits = file is not None and (not waiting or waiting[0].dialect == file.dialect)
        if waiting and (not fits or size + (file.bytes if file else 0) > JOINED_BYTES):
            groups.append(_group(waiting))
            waiting, size = [], 0
        if file is not None:
            waiting.append(file)
            size += file.bytes
        else:
            groups.append(each)
    if waiting:
        groups.append(_group(waiting))
    return groups


def _joinable(file: TableFile) -> bool:
    text = file.dialect is not None and file.dialect.encoding == "utf-8"
    lines = text and file.dialect is not None and file.dialect.has_names and file.dialect.separator != BLANKS
    return lines and file.bytes <= SMALL_BYTES and file.path.suffix.lower() != ".gz"


def _group(files: list[TableFile]) -> TableFile | JoinedFiles:
    dialect = files[0].dialect
    return files[0] if len(files) == 1 or dialect is None else JoinedFiles(tuple(files), dialect)


def _lines(file: TableFile) -> Iterator[memoryview | bytes]:
    """The rows of a file without its header, ending in a line break; not copied."""
    try:
        text = file.path.read_bytes()
    except OSError as problem:
        raise DataError(f"{file.path}: cannot be read ({problem.strerror})") from None
    header = text.find(b"\n") + 1 or len(text)
    yield memoryview(text)[header:]
    if header < len(text) and not text.endswith(b"\n"):
        yield b"\n"
