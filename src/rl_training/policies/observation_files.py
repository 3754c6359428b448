"""Observations out of files of any size: a few thousand rows at a time, never the whole file in memory."""

from __future__ import annotations

import itertools
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from rl_training.core.atomic import reason
from rl_training.core.errors import UserError
from rl_training.core.extras import install_hint
from rl_training.core.plain import Array

CHUNK_ROWS = 16_384
ARRAY_NAMES = ("obs", "observations")

DAMAGE = (
    *(zipfile.BadZipFile, zlib.error, struct.error, tokenize.TokenError, SyntaxError, EOFError),
    *(ValueError, NotImplementedError, RuntimeError, LookupError, OverflowError, TypeError),
)
"""What the readers of these formats raise on damaged bytes."""


class Chunk(NamedTuple):
    """Rows of numbers, and the share of the file that is read once they are done."""

    rows: Array
    share: float


Chunks = Iterator[Chunk]


def read_chunks(path: Path) -> Chunks:
    """The observations of a .csv, .npy, .npz or .parquet file, in order."""
    if path.suffix not in READERS:
        raise UserError(f"--obs-file must end in {', '.join(READERS)} to be streamed, got {str(path)!r}")
    try:
        yield from READERS[path.suffix](path)
    except UserError:
        raise
    except OSError as problem:
        raise UserError(f"--obs-file {path} cannot be read: {reason(problem)}") from problem
    except DAMAGE as problem:
        words = str(problem).splitlines() or ["it ends too early"]
        raise UserError(f"--obs-file {path} is not a {path.suffix} file of numbers: {words[0]}") from problem


def read_csv(path: Path) -> Chunks:
    """Lines of numbers between commas; a first line of names is skipped."""
    size = max(1, path.stat().st_size)
    done, number = 0, 0
    with path.open("rb") as file:
        while lines := list(itertools.islice(file, CHUNK_ROWS)):
            done += sum(map(len, lines))
            texts = [line.decode("utf-8-sig", errors="replace").strip() for line in lines]
            first = number + 1
            number += len(texts)
            if first == 1 and is_header(texts[0]):
                texts[0] = ""
            if any(texts):
                yield Chunk(parse_lines(path, texts, first), done / size)


def is_header(text: str) -> bool:
    """Names have at least one letter and no number among them."""
    return any(map(str.isalpha, text)) and not any(map(is_number, text.split(",")))


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def parse_lines(path: Path, texts: list[str], first: int) -> Array:
    """Numbers of some lines; when they cannot be read, the line at fault is looked for and named."""
    try:
        return np.loadtxt([text for text in texts if text], delimiter=",", comments=None, ndmin=2)
    except ValueError:
        width = next(len(text.split(",")) for text in texts if text)
        for number, text in enumerate(texts, start=first):
            cells = text.split(",")
            if text and not (len(cells) == width and all(map(is_number, cells))):
                raise UserError(
                    f"--obs-file {path} line {number} must hold {width} numbers, got {text[:60]!r}"
                ) from None
        raise


def read_npy(path: Path) -> Chunks:
    """A mapped array: pages are read as they are used."""
    rows = np.load(path, mmap_mode="r")
    if not isinstance(rows, np.ndarray):
        raise ValueError("it holds several arrays")
    rows = np.atleast_2d(rows)
    for start in range(0, len(rows), CHUNK_ROWS):
        part = np.array(rows[start : start + CHUNK_ROWS])
        yield Chunk(part, min(1.0, (start + CHUNK_ROWS) / len(rows)))


def read_npz(path: Path) -> Chunks:
    """The array `obs` or `observations`, or the only one, unpacked as it is read."""
    with zipfile.ZipFile(path) as archive:
        names = [name.removesuffix(".npy") for name in archive.namelist()]
        chosen = next((name for name in ARRAY_NAMES if name in names), names[0] if len(names) == 1 else None)
        if chosen is None:
            raise UserError(f"--obs-file {path} must hold an array 'obs', it holds {', '.join(names)}")
        with archive.open(f"{chosen}.npy") as member:
            yield from read_array(path, member)


def read_array(path: Path, file: Any) -> Chunks:
    """The rows of an array in numpy's format, from a stream that cannot be mapped."""
    version = np.lib.format.read_magic(file)
    read_header = (
        np.lib.format.read_array_header_1_0 if version[0] == 1 else np.lib.format.read_array_header_2_0
    )
    shape, by_column, dtype = read_header(file)
    if by_column or len(shape) != 2 or dtype.hasobject:
        raise UserError(
            f"--obs-file {path} must hold rows of numbers in row-major order, got shape {shape} of {dtype}; "
            "save np.ascontiguousarray(obs)"
        )
    row_bytes = shape[1] * dtype.itemsize
    for start in range(0, shape[0], CHUNK_ROWS):
        count = min(CHUNK_ROWS, shape[0] - start)
        content = read_exactly(file, count * row_bytes)
        yield Chunk(np.frombuffer(content, dtype).reshape(count, shape[1]), (start + count) / shape[0])


def read_exactly(file: BinaryIO, size: int) -> bytes:
    content = file.read(size)
    if len(content) != size:
        raise EOFError("it ends too early")
    return content


def read_parquet(path: Path) -> Chunks:
    """A column of lists called `obs` or `observations` (or the only one), or one column per feature."""
    try:
        parquet = import_module("pyarrow.parquet")
    except ImportError:
        raise UserError(f"a .parquet file needs pyarrow: {install_hint('parquet')}") from None
    with parquet.ParquetFile(path, pre_buffer=False) as file:
        names = file.schema_arrow.names
        listed = next((name for name in ARRAY_NAMES if name in names), names[0] if len(names) == 1 else None)
        total, done = max(1, file.metadata.num_rows), 0
        columns = None if listed is None else [listed]
        for batch in file.iter_batches(batch_size=CHUNK_ROWS, columns=columns):
            done += batch.num_rows
            yield Chunk(table_rows(batch), done / total)


def table_rows(batch: Any) -> Array:
    """The numbers of some rows of a table; what is missing becomes NaN."""
    columns = [
        column.flatten() if hasattr(column, "flatten") and _is_list(column) else column for column in batch
    ]
    arrays = [np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.float64) for column in columns]
    if len(arrays) > 1:
        return np.stack(arrays, axis=1)
    if batch.num_rows == 0 or len(arrays[0]) % batch.num_rows:
        raise ValueError("its lists differ in length")
    return arrays[0].reshape(batch.num_rows, -1)


def _is_list(column: Any) -> bool:
    types = import_module("pyarrow.types")
    kind = column.type
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


READERS: dict[str, Callable[[Path], Chunks]] = {
    ".csv": read_csv,
    ".npy": read_npy,
    ".npz": read_npz,
    ".parquet": read_parquet,
}
