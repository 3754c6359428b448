"""What is what in a table: the columns of every field, as the config says or as their names say."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

from rl_training.config.data_fields import ColumnsConfig
from rl_training.config.wording import did_you_mean
from rl_training.core.errors import DataError
from rl_training.data.field_names import FIELD_NAMES, FLAG_FIELDS, VECTOR_FIELDS, resolve_names
from rl_training.data.reading import vector_columns

FieldColumns = dict[str, list[str]]
"""Field -> its columns in order; `times` is a field of tables alone."""

_ROLES = {
    "observations": "obs",
    "actions": "actions",
    "next_observations": "next_obs",
    "reward": "rewards",
    "episode": "episode_ids",
    "time": "times",
    "terminated": "terminated",
    "truncated": "truncated",
    "behavior_logprobs": "behavior_logprobs",
}
"""Key of `columns` -> field."""

_DIGITS = re.compile(r"(\d+)")


def map_columns(names: Sequence[str], columns: ColumnsConfig, source: str) -> FieldColumns:
    """The columns of every field. What is not mapped is taken by its usual name, if it has one."""
    mapped = {
        field: [
            column for pattern in _given(columns, role) for column in _expanded(pattern, names, role, source)
        ]
        for role, field in _ROLES.items()
        if _given(columns, role)
    }
    vectors = vector_columns(name for name in names)
    if "obs" in mapped and "actions" in mapped:
        usual = _usual_names(names, vectors)
    elif mapped.keys() & {"obs", "actions"} or not mapped:
        try:
            resolved = resolve_names([*names, *vectors], source, optional=("rewards", "terminated", *mapped))
        except DataError as problem:
            raise DataError(
                f"{problem}; say which columns are what (`columns:`, or --obs and --action): "
                f"`rl-training data inspect {source}` shows how"
            ) from None
        usual = {field: vectors.get(name, [name]) for field, name in resolved.items()}
    else:
        resolved = resolve_names([*names, *vectors], source, optional=("rewards", "terminated"))
        usual = {field: vectors.get(name, [name]) for field, name in resolved.items()}
    taken = {column for group in mapped.values() for column in group}
    if mapped.keys() & {"terminated", "truncated"}:  # a mapped flag is the whole truth about ends
        usual = {field: group for field, group in usual.items() if field not in FLAG_FIELDS}
    result = mapped | {
        field: group for field, group in usual.items() if field not in mapped and taken.isdisjoint(group)
    }
    _check_once(result, source)
    return result


def kinds_of(fields: FieldColumns) -> dict[str, str]:
    """Column -> how it is read: `number`, `flag`, `id` or `time`."""
    kinds: dict[str, str] = {}
    for field, group in fields.items():
        kind = {"episode_ids": "id", "times": "time"}.get(field, "flag" if field in FLAG_FIELDS else "number")
        kinds |= dict.fromkeys(group, kind)
    return kinds


def in_order(names: Sequence[str]) -> list[str]:
    """Names sorted with their numbers as numbers: obs_2 before obs_10."""
    return sorted(names, key=lambda name: [int(p) if p.isdigit() else p for p in _DIGITS.split(name)])


def _given(columns: ColumnsConfig, role: str) -> tuple[str, ...]:
    value = getattr(columns, role)
    return (value,) if isinstance(value, str) else tuple(value or ())


def _expanded(pattern: str, names: Sequence[str], role: str, source: str) -> list[str]:
    if pattern in names:
        return [pattern]
    found = [name for name in names if fnmatchcase(name, pattern)] if any(c in pattern for c in "*?[") else []
    if not found:
        raise missing_column(pattern, names, source, f"columns.{role}")
    return in_order(found) if all(any(map(str.isdigit, name)) for name in found) else found


def missing_column(name: str, names: Sequence[str], source: str, why: str) -> DataError:
    """A column that somebody asked for is not there."""
    hint = "; if these are several, set csv_separator" if len(names) == 1 else ""
    return DataError(
        f"{source}: no column {name!r} ({why}){did_you_mean(name, names)}; it has "
        f"{', '.join(names) or 'nothing'}{hint}"
    )


def _usual_names(names: Sequence[str], vectors: dict[str, list[str]]) -> FieldColumns:
    """Columns other than observations and actions that go by one of their usual names."""
    found = {}
    for field, accepted in FIELD_NAMES.items():
        name = next((name for name in accepted if name in names or name in vectors), None)
        if name is not None and field not in ("obs", "actions", "next_obs", "next_actions"):
            found[field] = vectors.get(name, [name])
    return found


def _check_once(fields: FieldColumns, source: str) -> None:
    seen: dict[str, str] = {}
    for field, group in fields.items():
        for column in group:
            if column in seen:
                raise DataError(
                    f"{source}: column {column!r} is mapped twice, to {seen[column]} and to {field}"
                )
            seen[column] = field
        if field not in VECTOR_FIELDS and len(group) > 1:
            raise DataError(f"{source}: {field} must be one column, got {', '.join(group)}")
