"""Observations given on the command line or in a file."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rl_training.core.errors import UserError, shown
from rl_training.core.files import parse_json
from rl_training.policies.files import Chunk, is_header, refuse_other_names

Array = NDArray[np.float64]


def read_observations(text: str | None, file: str | None, names: Sequence[str] = ()) -> Array:
    """One observation from `text`, or one per row from `file` (`-` is standard input).

    `names` are the columns that the policy observes: a line of other names is refused.
    """
    if (text is None) == (file is None):
        raise UserError('give either --obs "0.1, 0.2, 0.3" or --obs-file FILE')
    if file is None:
        return _checked(text or "", "--obs", _one_row)
    if file == "-":
        text = sys.stdin.read()
        if not text.lstrip().startswith("["):
            refuse_other_names(text.lstrip().partition("\n")[0].strip(), names, "standard input")
        return _checked(text, "standard input", _rows)
    return _from_file(Path(file))


def chunks_by_name(
    file: str | None, names: Sequence[str], *, hold: bool, gaps: bool
) -> Iterator[Chunk] | None:
    """The observations of a table that has the policy's own columns; none where it is to be read by place."""
    from rl_training.data.tables.build import has_named_columns, named_rows

    if file in (None, "-"):
        return None
    path = Path(str(file))
    if has_named_columns(path, names):
        return (Chunk(rows, share) for rows, share in named_rows(path, names, hold=hold, gaps=gaps))
    if path.suffix == ".csv" and path.is_file():  # also where the reader of tables is not installed
        with path.open(encoding="utf-8-sig", errors="replace") as lines:
            refuse_other_names(lines.readline().strip(), names, f"--obs-file {path}")
    return None


def _from_file(path: Path) -> Array:
    if path.suffix not in (".npy", ".csv", ".json"):
        raise UserError(f"--obs-file must end in .npy, .csv or .json, got {str(path)!r}")
    try:
        if path.suffix == ".npy":
            return _from_npy(path)
        return _checked(path.read_text(encoding="utf-8", errors="replace"), f"--obs-file {path}", _rows)
    except (OSError, EOFError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"--obs-file {path} cannot be read: {reason}") from None


def _from_npy(path: Path) -> Array:
    try:
        return np.asarray(np.load(path), dtype=np.float64)
    except (ValueError, TypeError, AttributeError):
        raise UserError(f"--obs-file {path} does not hold one array of numbers") from None


def _checked(text: str, source: str, parse: Callable[[str], object]) -> Array:
    try:
        return np.asarray(parse(text), dtype=np.float64)
    except (ValueError, TypeError):
        raise UserError(
            f"{source} must hold numbers, the same count in every row, got {shown(text)}"
        ) from None


def _one_row(text: str) -> list[float]:
    """Numbers between commas or spaces."""
    return [float(number) for number in _cells(text)]


def _cells(text: str) -> list[str]:
    return re.split(r"\s*,\s*|\s+", text.strip().strip("[]").strip())


def _rows(text: str) -> object:
    """JSON, or lines of numbers between commas or spaces; a first line of names is skipped.

    NaN stands for null and for an empty cell.
    """
    if text.lstrip().startswith("["):
        return parse_json(text)
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) > 1 and is_header(lines[0]):
        lines = lines[1:]
    return [[float(number or "nan") for number in _cells(line)] for line in lines]
