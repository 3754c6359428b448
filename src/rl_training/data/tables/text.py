"""Text tables as people have them: any separator, decimal comma, encoding; detected, or as configured."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_training.config.data import TableFields
from rl_training.core.errors import DataError
from rl_training.data.tables.cells import is_number
from rl_training.data.tables.files import import_pyarrow

SEPARATORS = (",", ";", "\t", "|")
_SAMPLE_BYTES = 1 << 16
_BLOCK_BYTES = 1 << 19
_DECIMAL_COMMA = re.compile(r"[+-]?\d*,\d+([eE][+-]?\d+)?")
_DECIMAL_POINT = re.compile(r"[+-]?\d*\.\d+([eE][+-]?\d+)?")

NULL_WORDS = ("", "NA", "N/A", "n/a", "NaN", "nan", "NAN", "null", "NULL", "None", "none", "#N/A", "#NV", "-")
"""Cells that hold no value."""


@dataclass(frozen=True)
class Dialect:
    """How a text table is written; files of one log share it."""

    separator: str
    decimal: str
    encoding: str
    names: tuple[str, ...]
    header: bytes
    """the first line as it is in the file, to see quickly that another file has the same one"""


def detect_dialect(path: Path, fields: TableFields) -> Dialect:
    """Look at the first lines of a file; what the config states is not guessed."""
    sample = _first_bytes(path)
    encoding = fields.csv_encoding or _encoding_of(sample)
    try:
        text = sample.decode(encoding, errors="ignore" if len(sample) == _SAMPLE_BYTES else "strict")
    except (LookupError, UnicodeDecodeError) as problem:
        raise DataError(
            f"{path}: is not text in the encoding {encoding} ({problem}); set csv_encoding"
        ) from None
    lines = [line for line in text.splitlines() if line.strip()]
    if "\0" in text:
        raise DataError(f"{path}: cannot be read as CSV; it holds bytes that are no text")
    if not lines:
        raise DataError(f"{path}: the dataset is empty (no header line)")
    separator = fields.csv_separator or _separator_of(path, lines)
    rows = list(csv.reader(lines[:200], delimiter=separator))
    names = _column_names(path, rows[0])
    decimal = fields.csv_decimal or _decimal_of([cell for row in rows[1:] for cell in row])
    return Dialect(separator, decimal, encoding, names, sample.split(b"\n", 1)[0])


def dialect_and_lines(path: Path, like: Dialect | None, fields: TableFields) -> tuple[Dialect, int]:
    """How a file is written, and how many lines it has; `like` is the dialect of the file before.

    A look at the first line tells whether it is the same. Lines are an upper bound of rows, and counting them
    is far quicker than parsing.
    """
    dialect, lines, last = None, 0, b""
    with _open_text(path) as stream:
        while piece := stream.read(1 << 20):
            if dialect is None and like is not None and piece.startswith(like.header + b"\n"):
                dialect = like
            lines += piece.count(b"\n") or piece.count(b"\r")  # which old programs end lines with
            last = piece[-1:]
            if dialect is None:
                dialect = detect_dialect(path, fields)
    return dialect or detect_dialect(path, fields), lines + (last not in (b"", b"\n", b"\r"))


def _open_text(path: Path) -> Any:
    if path.suffix.lower() == ".gz":
        return import_pyarrow().input_stream(str(path), compression="gzip")
    return path.open("rb", buffering=0)


def csv_batches(
    source: Any, dialect: Dialect, kinds: Mapping[str, str], *, skip_rows: int = 1
) -> Iterator[Any]:
    """Record batches of the wanted columns: numbers as doubles, everything else as text."""
    pa = import_pyarrow()
    import pyarrow.csv as arrow_csv

    types = {name: pa.float64() if kind == "number" else pa.string() for name, kind in kinds.items()}
    reader = arrow_csv.open_csv(
        source,
        read_options=arrow_csv.ReadOptions(
            column_names=list(dialect.names),
            skip_rows=skip_rows,
            block_size=_BLOCK_BYTES,
            encoding=dialect.encoding,
            use_threads=False,
        ),
        parse_options=arrow_csv.ParseOptions(delimiter=dialect.separator, newlines_in_values=False),
        convert_options=arrow_csv.ConvertOptions(
            include_columns=list(kinds),
            column_types=types,
            null_values=list(NULL_WORDS),
            strings_can_be_null=True,
            quoted_strings_can_be_null=True,
            decimal_point=dialect.decimal,
        ),
    )
    with reader:
        yield from reader


def csv_table(path: Path, dialect: Dialect) -> Any:
    """All cells, with types guessed column by column."""
    import pyarrow.csv as arrow_csv

    return arrow_csv.read_csv(
        path,
        read_options=arrow_csv.ReadOptions(
            column_names=list(dialect.names), skip_rows=1, encoding=dialect.encoding, block_size=1 << 24
        ),
        parse_options=arrow_csv.ParseOptions(delimiter=dialect.separator),
        convert_options=arrow_csv.ConvertOptions(
            null_values=list(NULL_WORDS), strings_can_be_null=True, decimal_point=dialect.decimal
        ),
    )


def text_at_fault(path: Path, dialect: Dialect, name: str) -> tuple[int, str] | None:
    """Row and text of the first cell of a column that is not a number, found by reading it as text."""
    start = 0
    for batch in csv_batches(path, dialect, {name: "text"}):
        for row, cell in enumerate(batch.column(0).to_pylist()):
            if cell is not None and not is_number(cell.strip().replace(dialect.decimal, ".")):
                return start + row, cell
        start += batch.num_rows
    return None


def _first_bytes(path: Path) -> bytes:
    with _open_text(path) as stream:
        return bytes(stream.read(_SAMPLE_BYTES))


def _encoding_of(sample: bytes) -> str:
    if sample.startswith(b"\xef\xbb\xbf"):
        return "utf-8-sig"
    if sample.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    try:
        io.TextIOWrapper(io.BytesIO(sample.rpartition(b"\n")[0]), encoding="utf-8").read()
    except UnicodeDecodeError:
        return "cp1252"
    return "utf-8"


def _separator_of(path: Path, lines: list[str]) -> str:
    """The separator that gives every line the same number of cells, and more than one."""
    widths = {}
    for separator in SEPARATORS:
        counts = {len(row) for row in csv.reader(lines[:50], delimiter=separator)}
        if len(counts) == 1:
            widths[separator] = counts.pop()
    if path.name.lower().removesuffix(".gz").endswith(".tsv"):
        return "\t"
    best = max(widths, key=lambda separator: widths[separator], default=None)
    if best is not None and widths[best] > 1:
        return best
    return max(SEPARATORS, key=lines[0].count)


def _decimal_of(cells: list[str]) -> str:
    """The mark that more cells have; beside commas as separators, a decimal comma stands in quotes."""
    commas = sum(_DECIMAL_COMMA.fullmatch(cell.strip()) is not None for cell in cells)
    points = sum(_DECIMAL_POINT.fullmatch(cell.strip()) is not None for cell in cells)
    return "," if commas > points else "."


def _column_names(path: Path, cells: list[str]) -> tuple[str, ...]:
    """Names as they are; of columns that share one, each is numbered, so that none is taken by mistake."""
    names = [name.strip() for name in cells]
    if all(is_number(name) for name in names if name):
        raise DataError(
            f"{path}: its first line holds numbers ({', '.join(names[:4])}, …); a table needs a line of "
            "column names"
        )
    count = {name: names.count(name) for name in names}
    return tuple(
        f"{name} ({names[: index + 1].count(name)})" if count[name] > 1 else name
        for index, name in enumerate(names)
    )
