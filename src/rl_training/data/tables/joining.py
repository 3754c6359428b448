"""Many small text files read as if they were one: opening and parsing each alone costs more than its rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rl_training.core.errors import DataError
from rl_training.data.tables.csv_text import Dialect, csv_batches
from rl_training.data.tables.files import import_pyarrow
from rl_training.data.tables.opening import TableFile

SMALL_BYTES = 1 << 20
"""Files up to this size are joined."""

JOINED_BYTES = 1 << 22
"""Text that is parsed together at most."""


@dataclass(frozen=True)
class JoinedFiles:
    """Text files with one header, whose lines are parsed together."""

    files: tuple[TableFile, ...]
    dialect: Dialect

    @property
    def names(self) -> tuple[str, ...]:
        return self.dialect.names

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def parts(self) -> tuple[TableFile, ...]:
        """The files one by one, for when something is wrong with one of them."""
        return self.files

    def batches(self, kinds: Mapping[str, str]) -> Iterator[Any]:
        pa = import_pyarrow()
        text = b"".join(piece for file in self.files for piece in _lines(file))
        try:
            yield from csv_batches(pa.BufferReader(text), self.dialect, kinds, skip_rows=0)
        except pa.ArrowException as problem:
            raise DataError(str(problem)) from None


def joined(files: Sequence[TableFile]) -> list[TableFile | JoinedFiles]:
    """The files of a log, neighbours joined where they are small and written alike."""
    groups: list[TableFile | JoinedFiles] = []
    waiting: list[TableFile] = []
    size = 0
    for file in files:
        fits = _joinable(file) and (not waiting or waiting[0].dialect == file.dialect)
        if waiting and (not fits or size + file.bytes > JOINED_BYTES):
            groups.append(_group(waiting))
            waiting, size = [], 0
        if _joinable(file):
            waiting.append(file)
            size += file.bytes
        else:
            groups.append(file)
    if waiting:
        groups.append(_group(waiting))
    return groups


def _joinable(file: TableFile) -> bool:
    text = file.dialect is not None and file.dialect.encoding == "utf-8"
    return text and file.bytes <= SMALL_BYTES and file.path.suffix.lower() != ".gz"


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
