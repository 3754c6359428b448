"""Rows of table files put together into one log: columns are filled, then episodes and gaps settled."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from rl_training.config.data_fields import TableFields
from rl_training.core.errors import DataError
from rl_training.core.json_text import parse_json
from rl_training.data.data_info import DataInfo
from rl_training.data.episode_log import EpisodeLog
from rl_training.data.episodes import Array
from rl_training.data.field_names import FLAG_FIELDS, VECTOR_FIELDS
from rl_training.data.reading import Target
from rl_training.data.tables import cells
from rl_training.data.tables.files import import_pyarrow
from rl_training.data.tables.joining import JoinedFiles
from rl_training.data.tables.mapping import FieldColumns, kinds_of, map_columns
from rl_training.data.tables.opening import TableFile
from rl_training.data.tables.steps import Steps, settle_steps
from rl_training.data.validation import action_range

_CACHED_ROWS = 4096


class RowSource(Protocol):
    """Something with named columns that gives record batches: a table file, or a frame in memory."""

    @property
    def names(self) -> tuple[str, ...]: ...

    @property
    def rows(self) -> int: ...

    def batches(self, kinds: Mapping[str, str]) -> Iterable[Any]: ...


@dataclass
class Filling:
    """Columns while they are filled, and where the rows of each file begin."""

    fields: FieldColumns
    columns: dict[str, Array] = field(default_factory=dict)
    starts: list[int] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    rows: int = 0
    episodes: dict[object, int] = field(default_factory=dict)

    def place(self, row: int) -> str:
        """`file: row 7` of a row of the whole log."""
        index = int(np.searchsorted(self.starts, row, side="right")) - 1
        return f"{self.labels[index]}: row {row - self.starts[index]}"


def read_rows(
    sources: Sequence[tuple[str, RowSource]],
    settings: TableFields,
    target: Target,
    *,
    source: str,
    capacity: int,
    info: DataInfo | None = None,
) -> EpisodeLog:
    """Read labelled sources, one after another, into a log; `capacity` is the number of rows at most."""
    filling: Filling | None = None
    for label, table in sources:
        if filling is None:
            filling = Filling(map_columns(table.names, settings.columns, label))
        elif missing := {c for g in filling.fields.values() for c in g} - set(table.names):
            raise DataError(f"{label}: no column {sorted(missing)[0]!r}, which {filling.labels[0]} has")
        if not _fill_joined(filling, table, capacity, target):
            for part in getattr(table, "parts", (table,)):
                filling.starts.append(filling.rows)
                filling.labels.append(str(getattr(part, "path", label)))
                _fill(filling, part, filling.labels[-1], capacity, target)
    if filling is None or not filling.rows:
        raise DataError(f"{source}: the dataset is empty (0 rows)")
    import_pyarrow().default_memory_pool().release_unused()
    steps = settle_steps(_steps(filling), settings, lenient=target.lenient)
    if not target.lenient:
        _refuse_constant_actions(steps.columns["actions"], filling.fields["actions"], source)
    facts = _info(filling, settings, info or DataInfo(source))
    return EpisodeLog.build(steps.columns, info=facts, lenient=target.lenient, extra_notes=steps.notes)


def _fill_joined(filling: Filling, table: RowSource, capacity: int, target: Target) -> bool:
    """Read joined files at once; if any of them has something unusual, they are read one by one instead."""
    if not isinstance(table, JoinedFiles):
        return False
    first = filling.rows
    try:
        _fill(filling, table, "", capacity, target)
    except DataError:
        filling.rows = first
        return False
    if filling.rows - first != table.rows:  # empty lines: which file has them is not known here
        filling.rows = first
        return False
    for file in table.files:
        filling.starts.append(first)
        filling.labels.append(str(file.path))
        first += file.rows
    return True


def _fill(filling: Filling, table: RowSource, label: str, capacity: int, target: Target) -> None:
    first, read = filling.rows, set[int]()
    together = table.column_groups(filling.fields) if isinstance(table, TableFile) else [filling.fields]
    for fields in together:
        filling.rows = first
        kinds = kinds_of(fields)
        position = {name: index for index, name in enumerate(kinds)}
        for batch in table.batches(kinds):
            start, stop = filling.rows, filling.rows + batch.num_rows
            if stop > capacity:
                raise DataError(f"{label}: has more rows than it promised")
            for name, group in fields.items():
                columns = [batch.column(position[column]) for column in group]
                _put(
                    filling, name, group, columns, slice(start, stop), start - first, label, capacity, target
                )
            filling.rows = stop
        read.add(filling.rows)
    if len(read) > 1:
        raise DataError(f"{label}: its columns have different numbers of rows")


def _put(
    filling: Filling,
    name: str,
    group: list[str],
    columns: list[Any],
    rows: slice,
    row_in_file: int,
    label: str,
    capacity: int,
    target: Target,
) -> None:
    """One batch of one field into its place."""
    if name == "episode_ids":
        piece = cells.episode_codes(columns[0], filling.episodes)
    elif name == "times":
        piece = cells.times(columns[0], group[0], label, row_in_file)
    elif name in FLAG_FIELDS:
        piece = cells.flags(columns[0], group[0], label, row_in_file)
    else:
        _put_numbers(filling, name, group, columns, rows, row_in_file, label, capacity, target)
        return
    if name not in filling.columns:
        filling.columns[name] = np.empty(capacity, piece.dtype)
    filling.columns[name][rows] = piece


def _put_numbers(
    filling: Filling,
    name: str,
    group: list[str],
    columns: list[Any],
    rows: slice,
    row_in_file: int,
    label: str,
    capacity: int,
    target: Target,
) -> None:
    pieces = [
        cells.numbers(column, column_name, label, row_in_file)
        for column, column_name in zip(columns, group, strict=True)
    ]
    widths = [piece.shape[1] if piece.ndim > 1 else 1 for piece in pieces]
    flat, whole = name not in VECTOR_FIELDS, filling.fields[name]
    others = len(whole) - len(group)  # columns of the field that are read at another time hold one number
    if name not in filling.columns:
        shape = (capacity,) if flat else (capacity, sum(widths) + others)
        stored = np.result_type(*(piece.dtype for piece in pieces))
        filling.columns[name] = target.array(name, shape, stored)
    out = filling.columns[name]
    if (1 if flat else out.shape[1] - others) != sum(widths):
        raise DataError(
            f"{label}: {', '.join(group)} have {sum(widths)} numbers per row, but {out.shape[-1]} before"
        )
    if flat:
        out[rows] = pieces[0].reshape(-1)
        return
    matrices = [piece if piece.ndim > 1 else piece[:, None] for piece in pieces]
    for first in range(0, len(pieces[0]), _CACHED_ROWS):  # columns into rows, as many as stay in the cache
        part = slice(first, min(first + _CACHED_ROWS, len(pieces[0])))
        place = out[rows.start + part.start : rows.start + part.stop]
        start = whole.index(group[0])
        for matrix, width in zip(matrices, widths, strict=True):
            place[:, start : start + width] = matrix[part]
            start += width


def _steps(filling: Filling) -> Steps:
    columns = {name: values[: filling.rows] for name, values in filling.columns.items()}
    return Steps(columns, filling.fields, filling.starts, filling.place)


def _refuse_constant_actions(actions: Array, names: list[str], source: str) -> None:
    """Nothing can be learned about actions from a log in which none was ever changed."""
    if len(actions) < 2:
        return
    low, high = action_range(actions)
    if (low == high).all():
        listed = " and ".join(f"{name!r}" for name in names)
        raise DataError(
            f"{source}: column {listed} holds {low[0]:g} in every row, so there is no action to learn; map "
            "the columns of commands that varied (columns.actions, --action)"
        )


def _info(filling: Filling, settings: TableFields, info: DataInfo) -> DataInfo:
    """What is known of the log: names and units of its numbers, and whether it has rewards."""
    names = {
        field_name: tuple(group) if len(group) == filling.columns[field_name].shape[1] else None
        for field_name, group in filling.fields.items()
        if field_name in ("obs", "actions")
    }
    return replace(
        info,
        observation_names=info.observation_names or names["obs"],
        action_names=info.action_names or names["actions"],
        units={**info.units, **settings.columns.units},
        rewards_known=info.rewards_known and "rewards" in filling.fields,
    )


def stored_info(source: str, text: bytes) -> DataInfo:
    """What a file written here says about itself."""
    try:
        stored = parse_json(text)
    except ValueError as problem:
        raise DataError(f"{source}: what it says about itself is not valid JSON ({problem})") from None
    return DataInfo.from_dict(source, stored)
