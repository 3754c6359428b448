"""Names of columns: patterns that stand for several, and what is said where one is not there."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

from rl_training.core.errors import DataError, did_you_mean

_DIGITS = re.compile(r"(\d+)")


def in_order(names: Sequence[str]) -> list[str]:
    """Names sorted with their numbers as numbers: obs_2 before obs_10."""
    return sorted(names, key=lambda name: [int(p) if p.isdigit() else p for p in _DIGITS.split(name)])


def matching(pattern: str, names: Sequence[str]) -> list[str]:
    """The columns that a name or a pattern stands for; none where it is neither."""
    if pattern in names:
        return [pattern]
    found = [name for name in names if fnmatchcase(name, pattern)] if any(c in pattern for c in "*?[") else []
    return in_order(found) if all(any(map(str.isdigit, name)) for name in found) else found


def expanded(pattern: str, names: Sequence[str], role: str, source: str) -> list[str]:
    """The columns that an entry of a mapping stands for, at least one."""
    found = matching(pattern, names)
    if not found:
        raise missing_column(pattern, names, source, f"columns.{role}")
    return found


def missing_column(name: str, names: Sequence[str], source: str, why: str) -> DataError:
    """A column that somebody asked for is not there."""
    hint = "; if these are several, set csv_separator" if len(names) == 1 else ""
    return DataError(
        f"{source}: no column {name!r} ({why}){did_you_mean(name, names)}; it has "
        f"{', '.join(names) or 'nothing'}{hint}"
    )
