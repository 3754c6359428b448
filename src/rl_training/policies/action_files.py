"""Actions into files of any size: rows are written as they come, their number need not be known before."""

from __future__ import annotations

import csv
import io
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from rl_training.core.atomic import reason, replace_file
from rl_training.core.errors import UserError
from rl_training.core.extras import install_hint
from rl_training.core.spaces import FloatArray

Write = Callable[[FloatArray], None]


@contextmanager
def open_actions(path: Path, names: Sequence[str]) -> Iterator[Write]:
    """A function that takes actions, a column per name; the file gets its name when the block ends well."""
    if path.suffix not in WRITERS:
        raise UserError(f"--out must end in {', '.join(WRITERS)}, got {str(path)!r}")
    try:
        with replace_file(path) as file, WRITERS[path.suffix](file, names) as write:
            yield write
    except OSError as problem:
        raise UserError(f"cannot write {path}: {reason(problem)}; name a place you can write to") from problem


@contextmanager
def write_csv(file: BinaryIO, names: Sequence[str]) -> Iterator[Write]:
    """A line of names, then nine digits: enough to read back the same float32."""
    csv.writer(text := io.StringIO(), lineterminator="\n").writerow(names)
    file.write(text.getvalue().encode())
    yield lambda actions: np.savetxt(file, actions, fmt="%.9g", delimiter=",")


@contextmanager
def write_npy(file: BinaryIO, names: Sequence[str]) -> Iterator[Write]:
    """The header leaves room for any number of rows, so that the true number can be filled in at the end."""
    rows, action_dim = 0, len(names)
    write_header(file, 0, action_dim)

    def write(actions: FloatArray) -> None:
        nonlocal rows
        rows += len(actions)
        file.write(little_endian(actions))

    yield write
    file.seek(0)
    write_header(file, rows, action_dim)


@contextmanager
def write_npz(file: BinaryIO, names: Sequence[str]) -> Iterator[Write]:
    """One array, `actions`. A packed header cannot be changed afterwards, so the rows wait beside it."""
    with tempfile.TemporaryFile(dir=Path(file.name).parent) as waiting:
        with write_npy(waiting, names) as write:
            yield write
        waiting.seek(0)
        with (
            zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive,
            archive.open("actions.npy", "w", force_zip64=True) as member,
        ):
            shutil.copyfileobj(waiting, member)


@contextmanager
def write_parquet(file: BinaryIO, names: Sequence[str]) -> Iterator[Write]:
    """One float32 column per action."""
    try:
        arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError:
        raise UserError(f"a .parquet file needs pyarrow: {install_hint('parquet')}") from None
    schema = arrow.schema([(name, arrow.float32()) for name in names])
    with parquet.ParquetWriter(file, schema) as table:
        yield lambda actions: table.write_batch(
            arrow.record_batch([arrow.array(column) for column in actions.T], schema=schema)
        )


def numbered(action_dim: int) -> list[str]:
    """Names of actions that have none."""
    return [f"action_{index}" for index in range(action_dim)]


def write_header(file: Any, rows: int, action_dim: int) -> None:
    shape = {"descr": "<f4", "fortran_order": False, "shape": (rows, action_dim)}
    np.lib.format.write_array_header_1_0(file, shape)


def little_endian(actions: FloatArray) -> bytes:
    return actions.astype("<f4", copy=False).tobytes()


WRITERS: dict[str, Callable[[BinaryIO, Sequence[str]], AbstractContextManager[Write]]] = {
    ".csv": write_csv,
    ".npy": write_npy,
    ".npz": write_npz,
    ".parquet": write_parquet,
}
