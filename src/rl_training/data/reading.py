"""What the readers of all formats share: where arrays are put, how they are checked, how problems are
told.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rl_training.config.data import DatasetSource
from rl_training.core.errors import DataError
from rl_training.core.spaces import Choice, level_text
from rl_training.core.types import Array
from rl_training.data.episodes import BoolArray
from rl_training.data.fields import FIELDS, all_fields

CHUNK_ROWS = 1 << 16
"""Rows looked at together, so that a check of mapped files needs little memory."""

_FOLD = 64

BOUND_TOLERANCE = 1e-5
"""Share of an action's range by which rounding may carry a recorded action over its bound."""

FEW_ROWS = 30
"""Up to so many rows, nothing is concluded from how often a value is reached."""

_PILE_SHARE, _PILE_ROWS = 0.02, 3


class DataWarning(UserWarning):
    """Something in the data that a user should know and that does not stop the run."""


def matrix(values: Array) -> Array:
    """Rows of vectors; single numbers as vectors of one."""
    return values if values.ndim > 1 else values[:, None]


def row_chunks(count: int) -> Iterator[slice]:
    """Slices that cover `count` rows."""
    return (slice(start, start + CHUNK_ROWS) for start in range(0, count, CHUNK_ROWS))


def check_numeric(name: str, dtype: np.dtype[Any], source: str) -> None:
    """Only plain numbers are read; arrays of Python objects are refused and never decoded."""
    if dtype.kind not in "biuf":
        kind = "Python objects" if dtype.kind == "O" else f"values of type {dtype}"
        raise DataError(f"{source}: {name} must hold numbers, but holds {kind}; write it as a float array")


def check_lengths(columns: Mapping[str, Array], source: str) -> None:
    """Every field has one entry per row, and there is at least one row."""
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise DataError(f"{source}: all fields must have the same length, got {listed}")
    if not next(iter(lengths.values())):
        raise DataError(f"{source}: the dataset is empty (0 rows)")


def check_finite(name: str, values: Array, source: str) -> None:
    """No NaN and no infinity. A sum shows their absence quickly; only a suspicious chunk is searched."""
    for rows in row_chunks(len(values)):
        chunk = values[rows]
        with np.errstate(over="ignore", invalid="ignore"):
            total = chunk.sum()
        if np.isfinite(total):
            continue
        bad = np.flatnonzero(~np.isfinite(chunk.reshape(len(chunk), -1)).all(axis=1))
        if len(bad):
            raise DataError(
                f"{source}: {name} has NaN or infinity at row {rows.start + int(bad[0])}; "
                "remove or repair such rows"
            )


def as_flags(name: str, values: npt.ArrayLike, source: str) -> BoolArray:
    """0/1 markers as booleans."""
    array = np.asarray(values).reshape(-1)
    if array.dtype.kind == "b":
        return array
    other = np.flatnonzero((array != 0) & (array != 1))
    if len(other):
        row = int(other[0])
        raise DataError(f"{source}: {name} must be 0 or 1 in every row, but row {row} is {array[row]}")
    flags: BoolArray = array != 0
    return flags


def check_width(name: str, columns: Array, width: int, source: str, wanted_by: str, remedy: str = "") -> None:
    """Vectors of the size that the environment (or the rest of the data) has."""
    found = columns.shape[1] if columns.ndim > 1 else 1
    if found != width:
        raise DataError(f"{source}: {name} have {found} numbers per row, but {wanted_by} has {width}{remedy}")


def check_shape(name: str, shape: tuple[int, ...], source: str, *, vector: bool) -> None:
    """Observations and actions are flat vectors of a number at least, all else is one value per row."""
    if vector and len(shape) > 2:
        raise DataError(
            f"{source}: {name} must be one flat vector per row, got shape {shape[1:]} per row; "
            "images and nested observations are not supported"
        )
    if shape[1:] == (0,):
        raise DataError(f"{source}: {name} must have at least one number per row, got none")
    if not vector and len(shape) > 1:
        raise DataError(f"{source}: {name} must be one value per row, got shape {shape[1:]} per row")


def action_range(actions: Array) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Smallest and largest value of every action, reading the rows in chunks."""
    chunks = [actions[rows] for rows in row_chunks(len(actions))]
    low = np.min([_fold(np.min, chunk) for chunk in chunks], axis=0)
    high = np.max([_fold(np.max, chunk) for chunk in chunks], axis=0)
    return low.astype(np.float64), high.astype(np.float64)


def _fold(reduce: Callable[..., Array], rows: Array) -> Array:
    """`reduce` over axis 0, twenty times faster for narrow rows: first over long rows made of many."""
    together = len(rows) // _FOLD
    if not together:
        return reduce(rows, axis=0)
    long_rows = rows[: together * _FOLD].reshape(together, _FOLD * rows.shape[1])
    partial = reduce(long_rows, axis=0).reshape(_FOLD, rows.shape[1])
    return reduce(np.concatenate([partial, rows[together * _FOLD :]]), axis=0)


def piles_up(share: float, rows: int) -> bool:
    """Whether so many rows lie exactly on one extreme of a column that it looks like a bound."""
    return rows > FEW_ROWS and share > _PILE_SHARE and round(share * rows) >= _PILE_ROWS


def first_outside(actions: Array, low: Array, high: Array) -> tuple[int, int] | None:
    """(row, action) of the first recorded action outside the bounds beyond rounding, or None."""
    slack = BOUND_TOLERANCE * (high - low)
    for rows in row_chunks(len(actions)):
        outside = (actions[rows] < low - slack) | (actions[rows] > high + slack)
        if outside.any():
            row, column = np.argwhere(outside)[0]
            return rows.start + int(row), int(column)
    return None


Allocate = Callable[[str, tuple[int, ...], "np.dtype[Any]"], Array]

LARGE = 1 << 30
MOST_COMPRESSED = 2000
"""Bytes that one stored byte may stand for in a large array (deflate reaches 1032)."""

_NUMBERED = re.compile(r"(.+?)_?(\d+)")


@dataclass(frozen=True)
class Target:
    """Where a reader puts what it reads: in memory, or in the files of a cache."""

    allocate: Allocate = lambda name, shape, dtype: np.empty(shape, dtype)
    exact: bool = False
    """keep double precision (conversions do; training data is single precision)"""
    lenient: bool = False
    """let NaN and infinity through (an inspection counts them)"""

    def array(self, field: str, shape: tuple[int, ...], stored: np.dtype[Any]) -> Array:
        """An empty array for a field that is stored with type `stored`."""
        known = FIELDS.get(field)
        kept = not known.is_numeric or known.double or (self.exact and stored == np.float64)
        try:
            return self.allocate(field, shape, stored if kept else np.dtype(np.float32))
        except DataError:
            raise
        except (MemoryError, ValueError, OverflowError):
            raise DataError(
                f"{field} of shape {shape} does not fit into memory; set dataset_in_memory: false, or the "
                "file is damaged"
            ) from None


def file_of(source: DatasetSource) -> Path:
    """The path of a source; that it is given was checked before."""
    if source.dataset_path is None:
        raise DataError("dataset_path is required")
    return Path(source.dataset_path)


def files_below(folder: Path) -> list[Path]:
    """All files of a folder, sorted; a link in it that leads out of it is refused.

    Whoever packed the folder chose where its links lead: to files that were never meant to be read.
    """
    found = sorted(folder.rglob("*"))  # does not go into folders that are links
    for path in found:
        if path.is_symlink():
            refuse_outside(folder, path)
    return [path for path in found if path.is_file()]


def refuse_outside(folder: Path, path: Path) -> None:
    """Refuse a path below `folder` that leads out of it through a link; the folder itself may be one."""
    if not path.resolve().is_relative_to(folder.resolve()):
        raise DataError(
            f"{path}: is a link that leads out of {folder}, which is refused; give what it leads to as the "
            "path, or put a copy in its place"
        )


def refuse_false_size(path: Path, name: str, claimed: int, stored: int) -> None:
    """What an array claims to be, against the bytes that the file has for it."""
    if claimed > LARGE + MOST_COMPRESSED * stored:
        raise DataError(
            f"{path}: {name} claims {claimed} bytes but stores {stored}; the file is damaged or not meant "
            "well"
        )


@contextmanager
def reading(path: Path, what: str, *problems: type[Exception]) -> Iterator[None]:
    """Turn a format library's failures on `path` into one line that names the file."""
    if not path.exists():
        raise DataError(f"{path}: no such file; dataset_path must name an existing {what} file")
    if path.is_dir():
        raise DataError(f"{path}: is a directory; dataset_path must name an {what} file")
    with failures_as(f"{path}: cannot be read as {what}; it is damaged or of another kind", *problems):
        yield


@contextmanager
def failures_as(message: str, *problems: type[Exception]) -> Iterator[None]:
    """Tell the system's failures, and a library's `problems`, in one line behind a message of ours."""
    told: tuple[type[Exception], ...] = (OSError, *problems)
    try:
        yield
    except DataError:
        raise
    except told as problem:
        text = " ".join(str(problem).split()) or type(problem).__name__
        raise DataError(f"{message} ({text})") from None


def vector_columns(names: Iterable[str]) -> dict[str, list[str]]:
    """Numbered columns that together are one vector: `obs_0, obs_1` -> `obs`.

    A table with one column per number is how most logs look; counting must start at 0 and leave no gap.
    """
    vectors = {name for field in all_fields() if field.kind == "vector" for name in field.file_names}
    found: dict[str, dict[int, str]] = {}
    for column in names:
        match = _NUMBERED.fullmatch(column)
        if match is not None and match[1] in vectors:
            found.setdefault(match[1], {})[int(match[2])] = column
    for name, columns in found.items():
        missing = [index for index in range(len(columns)) if index not in columns]
        if missing:
            raise DataError(
                f"columns {name}_0, {name}_1, ... must be numbered without gaps, {missing[0]} is missing"
            )
    return {name: [columns[index] for index in range(len(columns))] for name, columns in found.items()}


def level_shares(actions: Array, choices: Sequence[Choice | None]) -> dict[int, dict[str, float]]:
    """Share of the rows with each level, of every action that is a choice."""
    return {
        index: {
            level_text(level): float((matrix(actions)[:, index] == number).mean())
            for level, number in zip(choice.levels, choice.numbers, strict=True)
        }
        for index, choice in enumerate(choices)
        if choice is not None
    }


FEW_LEVELS = 8
"""Distinct values up to which an action may be a choice that nobody has declared."""


def few_levels(actions: Array, choices: Sequence[object]) -> dict[int, list[float]]:
    """Of actions that are no choices, those with few values, each taken often enough to be one on purpose."""
    found = {}
    for index, column in enumerate((actions if actions.ndim > 1 else actions[:, None]).T):
        if index < len(choices) and choices[index] is not None:
            continue
        if len(column) < 100 or len(np.unique(column[:1000])) > FEW_LEVELS:
            continue
        levels = np.unique(column)
        if 1 < len(levels) <= FEW_LEVELS and np.isfinite(levels).all():
            found[index] = [float(level) for level in levels]
    return found


def few_levels_words(name: str, levels: Sequence[float]) -> str:
    """The proposal for one such action."""
    listed, plain = ", ".join(f"{level:g}" for level in levels), name.split(" (")[0]
    return (
        f"{name} takes only the values {listed} and is learned as a number; if it is a choice, say so: "
        f"--action '{plain}{{{listed.replace(', ', ',')}}}', or levels: [{listed}] beside its name"
    )
