"""Checks of loaded data. Each message names the source, the field and the row, and says what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from rl_training.core.errors import DataError
from rl_training.data.episodes import Array, BoolArray

CHUNK_ROWS = 1 << 16
"""Rows looked at together, so that a check of mapped files needs little memory."""

_FOLD = 64

BOUND_TOLERANCE = 1e-5
"""Share of an action's range by which rounding may carry a recorded action over its bound."""


class DataWarning(UserWarning):
    """Something in the data that a user should know and that does not stop the run."""


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


def check_flat(name: str, shape: tuple[int, ...], source: str) -> None:
    """Observations and actions are flat vectors."""
    if len(shape) > 2:
        raise DataError(
            f"{source}: {name} must be one flat vector per row, got shape {shape[1:]} per row; "
            "images and nested observations are not supported"
        )


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


def first_outside(actions: Array, low: Array, high: Array) -> tuple[int, int] | None:
    """(row, action) of the first recorded action outside the bounds beyond rounding, or None."""
    slack = BOUND_TOLERANCE * (high - low)
    for rows in row_chunks(len(actions)):
        outside = (actions[rows] < low - slack) | (actions[rows] > high + slack)
        if outside.any():
            row, column = np.argwhere(outside)[0]
            return rows.start + int(row), int(column)
    return None
