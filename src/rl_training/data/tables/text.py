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
from rl_training.data.tables.cells import FLAG_WORDS, is_number
from rl_training.data.tables.files import import_pyarrow

SEPARATORS = (",", ";", "\t", "|")
BLANKS = " "
"""As a separator: any number of spaces and tabs."""
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
    thousands: str = ""
    """mark between thousands"""
    words: frozenset[str] = frozenset()
    """columns whose cells are words for on and off"""
    has_names: bool = True
    """whether the first line holds names"""

    def is_plain(self, name: str) -> bool:
        """Whether numbers of a column can be parsed as they are."""
        return not self.thousands and name not in self.words


def detect_dialect(path: Path, fields: TableFields) -> Dialect:
    """Look at the first lines of a file; what the config states is not guessed."""
    with _open_text(path) as stream:
        sample = bytes(stream.read(_SAMPLE_BYTES))
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
    if separator == BLANKS:
        lines = ["\t".join(line.split()) for line in lines]
    rows = list(csv.reader(lines[:200], delimiter="\t" if separator == BLANKS else separator))
    if fields.csv_header:
        names, rows = _column_names(path, rows[0]), rows[1:]
    else:
        names = tuple(f"column_{index + 1}" for index in range(len(rows[0])))
    cells = [cell.strip() for row in rows for cell in row]
    marks = _marks_of(cells)
    thousands = fields.csv_thousands or (marks[1] if fields.csv_decimal in (None, marks[0]) else "")
    decimal = fields.csv_decimal or ("," if thousands == "." else marks[0])
    if thousands and thousands == decimal:
        raise DataError(f"{path}: csv_thousands and csv_decimal must differ, got {decimal!r} for both")
    header = sample.split(b"\n", 1)[0] if fields.csv_header else b""
    words = frozenset(
        name for index, name in enumerate(names) if _is_on_or_off([row[index : index + 1] for row in rows])
    )
    return Dialect(separator, decimal, encoding, names, header, thousands, words, fields.csv_header)


def _is_on_or_off(cells: list[list[str]]) -> bool:
    """Whether every cell of a column is a word for on or off; digits and empty cells are none."""
    words = {cell[0].strip().lower() for cell in cells if cell} - {word.lower() for word in NULL_WORDS}
    return bool(words) and words <= FLAG_WORDS.keys() - {"0", "1"}


_GROUPS = {
    # only what cannot be anything else: two groups, or a group and a decimal mark
    (",", "."): re.compile(r"[+-]?\d{1,3}(\.\d{3})*(\.\d{3},\d+|\.\d{3}\.\d{3})"),
    (".", ","): re.compile(r"[+-]?\d{1,3}(,\d{3})*(,\d{3}\.\d+|,\d{3},\d{3})"),
    (".", "'"): re.compile(r"[+-]?\d{1,3}('\d{3})+(\.\d+)?"),
    (",", "'"): re.compile(r"[+-]?\d{1,3}('\d{3})+,\d+"),
    (".", " "): re.compile(r"[+-]?\d{1,3}([ \u00a0\u202f]\d{3})+(\.\d+)?"),
    (",", " "): re.compile(r"[+-]?\d{1,3}([ \u00a0\u202f]\d{3})+,\d+"),
}
"""(decimal mark, mark between thousands) -> a number that is plainly written with them."""


def _marks_of(cells: list[str]) -> tuple[str, str]:
    """The decimal mark, and the mark between thousands where a number shows it."""
    decimal = _decimal_of(cells)
    found = [marks for marks, pattern in _GROUPS.items() if any(map(pattern.fullmatch, cells))]
    fitting = [marks for marks in found if marks[0] == decimal] or found
    return fitting[-1] if fitting else (decimal, "")


def dialect_and_lines(path: Path, like: Dialect | None, fields: TableFields) -> tuple[Dialect, int]:
    """How a file is written, and how many lines it has; `like` is the dialect of the file before.

    A look at the first line tells whether it is the same. Lines are an upper bound of rows, and counting them
    is far quicker than parsing.
    """
    dialect, lines, last = None, 0, b""
    with _open_text(path) as stream:
        while piece := stream.read(1 << 20):
            if dialect is None and like is not None and like.has_names:
                dialect = like if piece.startswith(like.header + b"\n") else None
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
    source: Any, dialect: Dialect, kinds: Mapping[str, str], *, skip_rows: int | None = None
) -> Iterator[Any]:
    """Record batches of the wanted columns: numbers as doubles, everything else as text."""
    pa = import_pyarrow()
    import pyarrow.csv as arrow_csv

    plain = [name for name, kind in kinds.items() if kind == "number" and dialect.is_plain(name)]
    marked = [name for name, kind in kinds.items() if kind == "number" and not dialect.is_plain(name)]
    types = {name: pa.float64() if name in plain else pa.string() for name in kinds}
    if dialect.separator == BLANKS and isinstance(source, Path):
        source = pa.PythonFile(_Blanks(source), mode="r")
    reader = arrow_csv.open_csv(
        source,
        read_options=arrow_csv.ReadOptions(
            column_names=list(dialect.names),
            skip_rows=int(dialect.has_names) if skip_rows is None else skip_rows,
            block_size=_BLOCK_BYTES,
            encoding=dialect.encoding,
            use_threads=False,
        ),
        parse_options=arrow_csv.ParseOptions(delimiter=_delimiter(dialect), newlines_in_values=False),
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
        for batch in reader:
            for name in marked:
                index = batch.schema.get_field_index(name)
                batch = batch.set_column(index, name, _without_marks(batch.column(index), dialect))
            yield batch


def _delimiter(dialect: Dialect) -> str:
    return "\t" if dialect.separator == BLANKS else dialect.separator


def _without_marks(column: Any, dialect: Dialect) -> Any:
    """Numbers as text that any program reads: 1234.5 for 1.234,5."""
    compute = import_pyarrow().compute
    column = compute.utf8_trim_whitespace(column)
    if dialect.thousands:
        marks = "[ \u00a0\u202f]" if dialect.thousands == " " else re.escape(dialect.thousands)
        column = compute.replace_substring_regex(column, rf"(\d){marks}(\d\d\d)", r"\1\2")
        column = compute.replace_substring_regex(column, rf"(\d){marks}(\d\d\d)", r"\1\2")  # every second
    return compute.replace_substring(column, dialect.decimal, ".") if dialect.decimal != "." else column


class _Blanks(io.RawIOBase):
    """A text file with a tab for each run of blanks, and none around a line."""

    def __init__(self, path: Path) -> None:
        self.stream = _open_text(path)
        self.waiting = b""
        self.ready = b""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        while size < 0 or len(self.ready) < size:
            block = bytes(self.stream.read(_BLOCK_BYTES))
            lines, line_end, rest = (self.waiting + block).rpartition(b"\n")
            if not block:
                lines, line_end, rest = self.waiting, b"", b""
            self.waiting = rest
            trimmed = (b"\t".join(line.split()) for line in lines.split(b"\n"))
            self.ready += b"\n".join(trimmed) + line_end
            if not block:
                break
        size = len(self.ready) if size < 0 else size
        given, self.ready = self.ready[:size], self.ready[size:]
        return given


def csv_table(path: Path, dialect: Dialect) -> Any:
    """All cells, with types guessed column by column."""
    import pyarrow.csv as arrow_csv

    source = path if dialect.separator != BLANKS else import_pyarrow().PythonFile(_Blanks(path), mode="r")
    table = arrow_csv.read_csv(
        source,
        read_options=arrow_csv.ReadOptions(
            column_names=list(dialect.names),
            skip_rows=int(dialect.has_names),
            encoding=dialect.encoding,
            block_size=1 << 24,
        ),
        parse_options=arrow_csv.ParseOptions(delimiter=_delimiter(dialect)),
        convert_options=arrow_csv.ConvertOptions(
            null_values=list(NULL_WORDS), strings_can_be_null=True, decimal_point=dialect.decimal
        ),
    )
    return table if not dialect.thousands else _with_numbers(table, dialect)


def _with_numbers(table: Any, dialect: Dialect) -> Any:
    """Columns of numbers whose thousands are marked, as numbers."""
    pa = import_pyarrow()
    for index, name in enumerate(table.column_names):
        if pa.types.is_string(table.column(index).type):
            try:
                numbers = _without_marks(table.column(index), dialect).cast(pa.float64())
            except pa.ArrowException:
                continue
            table = table.set_column(index, name, numbers)
    return table


def text_at_fault(path: Path, dialect: Dialect, name: str) -> tuple[int, str] | None:
    """Row and text of the first cell of a column that is not a number, found by reading it as text."""
    start = 0
    for batch in csv_batches(path, dialect, {name: "text"}):
        for row, cell in enumerate(batch.column(0).to_pylist()):
            if cell is not None and not is_number(cell.strip().replace(dialect.decimal, ".")):
                return start + row, cell
        start += batch.num_rows
    return None


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
    blanks = {len(line.split()) for line in lines[:50]}
    others = any(sign in lines[0] for sign in (",", ";", "|"))
    if len(lines) > 1 and len(blanks) == 1 and blanks.pop() > 1 and not others:
        return BLANKS
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
            f"{path}: its first line holds numbers ({', '.join(names[:4])}, …): it needs a line of "
            "column names, or csv_header: false (--no-csv-header), which calls its columns column_1, …"
        )
    count = {name: names.count(name) for name in names}
    return tuple(
        f"{name} ({names[: index + 1].count(name)})" if count[name] > 1 else name
        for index, name in enumerate(names)
    )
