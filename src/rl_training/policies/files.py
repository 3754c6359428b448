"""Policy files opened with no more than they need, and policies over files of observations, in pieces."""

from __future__ import annotations

import csv
import io
import itertools
import os
import shutil
import struct
import tempfile
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np

from rl_training.core.errors import UserError, WrongTypeError, cell_text, install_hint
from rl_training.core.files import reason, replace_file
from rl_training.core.spaces import FloatArray, Spaces, in_words
from rl_training.core.types import Array
from rl_training.policies.acting import ActingPolicy
from rl_training.policies.opened import METADATA_KEY, DeployedPolicy

if TYPE_CHECKING:
    from rl_training.policies.policy import Policy


CHECKPOINT_KEY = "rl_training"


def load_policy(path: str | os.PathLike[str]) -> Policy | DeployedPolicy:
    """A policy that acts: `load_policy("policy.safetensors").predict(obs)`.

    Opens exported files, checkpoints and run directories (their newest checkpoint). An exported
    `.safetensors` file needs numpy and safetensors, an `.onnx` file numpy and onnxruntime; neither needs
    torch or Gymnasium, and none of them can run code.
    """
    if not isinstance(path, str | os.PathLike):
        raise WrongTypeError(
            f"path must name a policy file, a checkpoint or a run directory, got {type(path).__name__}"
        )
    file = Path(path)
    if not file.exists():
        raise UserError(f"{path} does not exist; give a policy file, a checkpoint or a run directory")
    if file.is_dir() or _starts_with(file, CHECKPOINT_KEY):
        from rl_training.policies.policy import load_saved_policy

        return load_saved_policy(file)
    return load_exported(file)


def load_exported(file: Path) -> DeployedPolicy:
    """The policy of a file that `rl-training export` has written."""
    if file.suffix == ".onnx":
        from rl_training.policies.export.onnx import read_onnx_file

        return read_onnx_file(file)
    if file.suffix == ".safetensors":
        from rl_training.policies.export.numpy import read_policy_file

        return read_policy_file(file)
    if file.suffix == ".pt":
        raise UserError(
            f"{file} is TorchScript, which is a program: open it with torch.jit.load if you trust its "
            "source, or export the policy as .onnx or .safetensors"
        )
    raise UserError(f"a policy file ends in .safetensors or .onnx, got {str(file)!r}")


def is_policy_file(path: Path) -> bool:
    """Whether a path names an exported policy; what cannot be read is left to the loader's message."""
    return path.suffix == ".onnx" or _starts_with(path, METADATA_KEY)


def _starts_with(path: Path, key: str) -> bool:
    """Whether this is the first entry of the metadata of a safetensors file."""
    start = b'{"__metadata__":{"' + key.encode() + b'":'
    try:
        with path.open("rb") as file:
            return file.read(8 + len(start))[8:] == start
    except OSError:
        return False


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
    cells = text.split(",") if "," in text else text.split()
    return any(map(str.isalpha, text)) and not any(map(is_number, cells))


def refuse_other_names(line: str, names: Sequence[str], source: str) -> None:
    """Numbers are taken by place only under the policy's own names, in its order, or under none."""
    found = [cell.strip().strip('"') for cell in line.split(",")]
    if names and is_header(line) and found != list(names):
        raise UserError(
            f"{source} must have the columns {', '.join(names)}, in this order, as the policy observes "
            f"them, or no line of names; it has {', '.join(found)}"
        )


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def parse_lines(path: Path, texts: list[str], first: int) -> Array:
    """Numbers of some lines, NaN for an empty cell; a line that holds anything else is named."""
    try:
        return np.loadtxt([text for text in texts if text], delimiter=",", comments=None, ndmin=2)
    except ValueError:
        rows, width = list[list[float]](), next(len(text.split(",")) for text in texts if text)
        for number, text in enumerate(texts, start=first):
            cells = [cell.strip() or "nan" for cell in text.split(",")]
            if text and not (len(cells) == width and all(map(is_number, cells))):
                raise UserError(
                    f"--obs-file {path} line {number} must hold {width} numbers, got {text[:60]!r}"
                ) from None
            rows += [list(map(float, cells))] if text else []
        return np.array(rows)


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
        content = file.read(count * row_bytes)
        if len(content) != count * row_bytes:
            raise EOFError("it ends too early")
        yield Chunk(np.frombuffer(content, dtype).reshape(count, shape[1]), (start + count) / shape[0])


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


# Actions into files of any size: rows are written as they come, their number need not be known before.


Write = Callable[[Array], None]


@contextmanager
def open_actions(path: Path, names: Sequence[str], spaces: Spaces | None = None) -> Iterator[Write]:
    """A function that takes actions, a column per name; the file gets its name when the block ends well.

    Levels that `spaces` have names for are written by name, where the file can hold text.
    """
    if path.suffix not in WRITERS:
        raise UserError(f"--out must end in {', '.join(WRITERS)}, got {str(path)!r}")
    try:
        with replace_file(path) as file, WRITERS[path.suffix](file, names) as write:
            if spaces is None or path.suffix not in TEXT_HOLDERS:
                yield write
            else:
                size, choices = spaces.action_columns, spaces.choices
                beside = (None,) * (len(names) - size) if choices else ()
                yield lambda rows: write(in_words((*choices, *beside), rows))
    except OSError as problem:
        raise UserError(f"cannot write {path}: {reason(problem)}; name a place you can write to") from problem


@contextmanager
def write_csv(file: BinaryIO, names: Sequence[str]) -> Iterator[Write]:
    """A line of names, then nine digits: enough to read back the same float32; levels by name."""
    csv.writer(text := io.StringIO(), lineterminator="\n").writerow(map(cell_text, names))
    file.write(text.getvalue().encode())

    def write(rows: Array) -> None:
        if rows.dtype != object:
            np.savetxt(file, rows, fmt="%.9g", delimiter=",")
            return
        lines = io.StringIO()
        csv.writer(lines, lineterminator="\n").writerows(
            [cell_text(cell) if isinstance(cell, str) else f"{cell:.9g}" for cell in row] for row in rows
        )
        file.write(lines.getvalue().encode())

    yield write


@contextmanager
def write_npy(file: BinaryIO, names: Sequence[str]) -> Iterator[Write]:
    """The header leaves room for any number of rows, so that the true number can be filled in at the end."""
    rows, action_dim = 0, len(names)
    write_header(file, 0, action_dim)

    def write(actions: FloatArray) -> None:
        nonlocal rows
        rows += len(actions)
        file.write(actions.astype("<f4", copy=False).tobytes())

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
    """One float32 column per action, of text where levels have names."""
    try:
        arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    except ImportError:
        raise UserError(f"a .parquet file needs pyarrow: {install_hint('parquet')}") from None
    table: Any = None

    def write(rows: Array) -> None:
        nonlocal table
        columns = [
            arrow.array([cell if isinstance(cell, str) else None for cell in column])
            if any(isinstance(cell, str) for cell in column)
            else arrow.array(column.astype(np.float32))
            for column in rows.T
        ]
        batch = arrow.record_batch(columns, names=list(names))
        table = table or parquet.ParquetWriter(file, batch.schema)
        table.write_batch(batch)

    try:
        yield write
    finally:
        if table is not None:
            table.close()


TEXT_HOLDERS = (".csv", ".parquet")


def write_header(file: Any, rows: int, action_dim: int) -> None:
    shape = {"descr": "<f4", "fortran_order": False, "shape": (rows, action_dim)}
    np.lib.format.write_array_header_1_0(file, shape)


WRITERS: dict[str, Callable[[BinaryIO, Sequence[str]], AbstractContextManager[Write]]] = {
    ".csv": write_csv,
    ".npy": write_npy,
    ".npz": write_npz,
    ".parquet": write_parquet,
}


# A policy over a file: observations in, actions out, in pieces, so that neither has to fit into memory.


def predict_file(
    policy: ActingPolicy,
    source: Path,
    target: Path,
    on_progress: Callable[[int, float], None] = lambda rows, share: None,
    chunks: Chunks | None = None,
    finite: bool = True,
) -> int:
    """Write the action of every observation in `source`, in order; returns how many there were.

    Of a policy with a guard, novelty and flag (0 or 1) follow the action, which is the fallback's where the
    guard has one: rows are taken as consecutive steps. `on_progress` is told the rows done and the share of
    the source that is read. `chunks` are its observations, where the caller knows better how to read it.
    `finite` refuses rows with NaN or infinity; otherwise a guard flags them.
    """
    if target.exists() and source.exists() and target.samefile(source):
        raise UserError(f"--out must not be the file that is read, got {str(target)!r}")
    done = 0
    predict, names = predictor(policy)
    with open_actions(target, names, policy.spaces) as write:
        for rows, share in read_chunks(source) if chunks is None else chunks:
            write(predict(checked_rows(rows, policy.spaces.obs_dim, source, done, finite=finite)))
            done += len(rows)
            on_progress(done, share)
        if not done:
            raise UserError(f"--obs-file {source} holds no observations")
    return done


def predictor(policy: ActingPolicy) -> tuple[Callable[[FloatArray], FloatArray], list[str]]:
    """What is written of a policy for observations, and the names of these columns."""
    named, size = policy.features.actions, policy.spaces.action_columns
    names = list(named) if len(named) == size else [f"action_{index}" for index in range(size)]
    controller = policy.controller()
    if policy.guard_facts is None:
        return lambda obs: controller.act(obs).action, names

    def guarded_rows(obs: FloatArray) -> FloatArray:
        told = controller.act(obs)
        columns = (told.action, told.novelty[:, None], told.flagged[:, None])
        rows: FloatArray = np.concatenate(columns, axis=1, dtype=np.float32)
        return rows

    return guarded_rows, [*names, "novelty", "flagged"]


def checked_rows(rows: Array, size: int, source: Path, before: int, *, finite: bool) -> FloatArray:
    """The rows as float32; a bad one is named by its place in the whole file, counted from 1."""
    if rows.ndim != 2 or rows.shape[1] != size or rows.dtype.kind not in "biuf":
        raise UserError(
            f"--obs-file {source} must hold rows of {size} numbers, as this policy observes, "
            f"got shape {rows.shape} of {rows.dtype}"
        )
    with np.errstate(over="ignore"):  # too large for float32: found on the next line
        values: FloatArray = rows.astype(np.float32)
    sound = np.isfinite(values).all(axis=1)
    if finite and not sound.all():
        row = before + int(np.argmin(sound)) + 1
        raise UserError(
            f"--obs-file {source} must hold finite numbers: observation {row} has NaN or infinity"
        )
    return values
