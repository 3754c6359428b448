"""Observations given on the command line or in a file."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rl_training.config.wording import shown
from rl_training.core.errors import UserError
from rl_training.core.json_text import parse_json
from rl_training.policies.observation_files import Chunk

Array = NDArray[np.float64]


def read_observations(text: str | None, file: str | None) -> Array:
    """One observation from `text`, or one per row from `file` (`-` is standard input)."""
    if (text is None) == (file is None):
        raise UserError('give either --obs "0.1, 0.2, 0.3" or --obs-file FILE')
    if file is None:
        return _checked(text or "", "--obs", _one_row)
    if file == "-":
        return _checked(sys.stdin.read(), "standard input", _rows)
    return _from_file(Path(file))


def chunks_by_name(file: str | None, names: Sequence[str], hold: bool) -> Iterator[Chunk] | None:
    """The observations of a table that has the policy's own columns; none where it is to be read by place."""
    from rl_training.data.tables.named_rows import has_named_columns, named_rows

    if file in (None, "-") or not has_named_columns(Path(str(file)), names):
        return None
    return (Chunk(rows, share) for rows, share in named_rows(Path(str(file)), names, hold=hold))


def _from_file(path: Path) -> Array:
    readers = {".npy": _from_npy, ".csv": _from_text, ".json": _from_text}
    if path.suffix not in readers:
        raise UserError(f"--obs-file must end in .npy, .csv or .json, got {str(path)!r}")
    try:
        return readers[path.suffix](path)
    except (OSError, EOFError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"--obs-file {path} cannot be read: {reason}") from None


def _from_npy(path: Path) -> Array:
    try:
        return np.asarray(np.load(path), dtype=np.float64)
    except (ValueError, TypeError, AttributeError):
        raise UserError(f"--obs-file {path} does not hold one array of numbers") from None


def _from_text(path: Path) -> Array:
    return _checked(path.read_text(encoding="utf-8", errors="replace"), f"--obs-file {path}", _rows)


def _checked(text: str, source: str, parse: Callable[[str], object]) -> Array:
    try:
        return np.asarray(parse(text), dtype=np.float64)
    except (ValueError, TypeError):
        raise UserError(
            f"{source} must hold numbers, the same count in every row, got {shown(text)}"
        ) from None


def _one_row(text: str) -> list[float]:
    """Numbers between commas or spaces."""
    return [float(number) for number in re.split(r"\s*,\s*|\s+", text.strip().strip("[]").strip())]


def _rows(text: str) -> object:
    """JSON, or lines of numbers between commas or spaces; a first line of names is skipped."""
    if text.lstrip().startswith("["):
        return parse_json(text)
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) > 1 and any(character.isalpha() for character in lines[0].lower().replace("e", "")):
        lines = lines[1:]
    return [_one_row(line) for line in lines]
