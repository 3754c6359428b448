"""What the readers of all formats share: where arrays are put, and how problems are told."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.config.data_fields import DatasetSource
from rl_training.core.errors import DataError
from rl_training.data.episodes import Array
from rl_training.data.field_names import FIELD_NAMES, FLAG_FIELDS, VECTOR_FIELDS

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
        kept = field in FLAG_FIELDS or field == "episode_ids" or (self.exact and stored == np.float64)
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
    try:
        yield
    except DataError:
        raise
    except Exception as problem:
        if not isinstance(problem, (OSError, *problems)):
            raise
        text = " ".join(str(problem).split()) or type(problem).__name__
        raise DataError(
            f"{path}: cannot be read as {what}; it is damaged or of another kind ({text})"
        ) from None


def vector_columns(names: Iterable[str]) -> dict[str, list[str]]:
    """Numbered columns that together are one vector: `obs_0, obs_1` -> `obs`.

    A table with one column per number is how most logs look; counting must start at 0 and leave no gap.
    """
    vectors = {name for field in VECTOR_FIELDS for name in FIELD_NAMES[field]}
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
