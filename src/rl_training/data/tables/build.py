"""Tables put together into one log: which column is what, rows of files and of data frames."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.config.data import ColumnsConfig, TableFields
from rl_training.core.errors import DataError
from rl_training.core.files import parse_json
from rl_training.core.signals import Signals
from rl_training.core.spaces import Choice
from rl_training.core.types import Array
from rl_training.data.fields import (
    ACTION_MASK,
    END_FLAGS,
    FIELDS,
    FORMULA_COLUMNS,
    SPACE_FIELDS,
    Field,
    FieldColumns,
    all_fields,
    expanded,
    matching,
    missing_column,
    named_in_files,
    refuse_undeclared,
    resolve_names,
)
from rl_training.data.formulas import Formulas, split_formulas, with_history
from rl_training.data.info import DataInfo
from rl_training.data.log import EpisodeLog
from rl_training.data.reading import Target, action_range, check_shape, vector_columns
from rl_training.data.tables import cells
from rl_training.data.tables.files import files_of, holds_tables, import_pyarrow
from rl_training.data.tables.read import JoinedFiles, RowSource, TableFile, open_table
from rl_training.data.tables.sources import FrameRows, WithEmpty
from rl_training.data.tables.steps import Steps, settle_steps

_CACHED_ROWS = 4096


def map_columns(names: Sequence[str], settings: TableFields, source: str) -> FieldColumns:
    """The columns of every field. What is not mapped is taken by its usual name, if it has one."""
    return map_with_formulas(names, settings, source)[0]


def map_with_formulas(
    names: Sequence[str], settings: TableFields, source: str
) -> tuple[FieldColumns, Formulas]:
    """The columns of every field, and the formulas that stand in their places or are made of them."""
    columns = settings.columns
    refuse_undeclared(
        columns.fields.keys() - set(FIELDS.names()), FIELDS.names(), f"{source}: columns.fields"
    )
    columns, formulas = split_formulas(names, columns, source, settings.costs)
    mapped = {
        field.name: [
            column
            for pattern in given
            for column in expanded(pattern, names, field.role or f"fields.{field.name}", source)
        ]
        for field in all_fields()
        if (given := _given(columns, field))
    }
    vectors = vector_columns(names)
    if "obs" in mapped and "actions" in mapped:
        found = named_in_files([*names, *vectors])
        resolved = {field: name for field, name in found.items() if field not in SPACE_FIELDS}
    else:
        try:
            resolved = resolve_names([*names, *vectors], source, optional=("rewards", "terminated", *mapped))
        except DataError as problem:
            raise DataError(
                f"{problem}; say which columns are what (`columns:`, or --obs and --action): "
                f"`rl-training data inspect {source}` shows how"
            ) from None
    if formulas.costs and "costs" in mapped:
        raise DataError(f"{source}: costs are given twice, in costs and in columns.fields: leave one out")
    made = {*formulas.computed, *(("costs",) if formulas.costs else ())}
    usual = {field: vectors.get(name, [name]) for field, name in resolved.items() if field not in made}
    taken = {column for group in mapped.values() for column in group}
    if (mapped.keys() | formulas.computed.keys()) & set(
        END_FLAGS
    ):  # a mapped flag is the whole truth about ends
        usual = {field: group for field, group in usual.items() if field not in END_FLAGS}
    result = mapped | {
        field: group for field, group in usual.items() if field not in mapped and taken.isdisjoint(group)
    }
    _check_once(result, source)
    return result | ({FORMULA_COLUMNS: formulas.columns} if formulas.columns else {}), formulas


OF_CHOICES = ("actions", FORMULA_COLUMNS)
"""Fields in which a column with levels counts as the place of its level."""


def _given(columns: ColumnsConfig, field: Field) -> tuple[str, ...]:
    value = getattr(columns, field.role) if field.role else columns.fields.get(field.name)
    return (value,) if isinstance(value, str) else tuple(value or columns.fields.get(field.name, ()))


def choices_of(columns: ColumnsConfig, actions: Sequence[str], source: str) -> dict[str, Choice]:
    """The action columns that are choices, as they were declared by name or pattern."""
    found: dict[str, Choice] = {}
    for pattern, levels in columns.levels.items():
        names = matching(pattern, actions)
        if not names:
            raise missing_column(pattern, actions, source, "columns.levels, which is of actions")
        found |= dict.fromkeys(names, Choice(levels))
    return found


def _check_once(fields: FieldColumns, source: str) -> None:
    """A column may serve in several roles; not twice in one, nor as what is seen and what is decided."""
    seen: dict[str, str] = {}
    for field, group in fields.items():
        for column in group:
            rivals = [field] if field not in ("obs", "actions") else ["obs", "actions"]
            if seen.get(column) in rivals:
                other = seen[column]
                hint = "" if other == field else "; the past of an action is lag(x)"
                raise DataError(
                    f"{source}: column {column!r} is mapped twice, to {other} and to {field}{hint}"
                )
            seen[column] = field
        if FIELDS.get(field).kind != "vector" and len(group) > 1:
            raise DataError(f"{source}: {field} must be one column, got {', '.join(group)}")


@dataclass
class TableBuilder:
    """Columns while they are filled, and where the rows of each file begin."""

    fields: FieldColumns
    capacity: int
    target: Target
    choices: Mapping[str, Choice] = dataclasses.field(default_factory=dict)
    date_order: str | None = None
    columns: dict[str, Array] = dataclasses.field(default_factory=dict)
    starts: list[int] = dataclasses.field(default_factory=list)
    labels: list[str] = dataclasses.field(default_factory=list)
    rows: int = 0
    ids: dict[str, dict[object, int]] = dataclasses.field(default_factory=dict)
    """per field, the number of each id in the order in which they first appear"""

    def place(self, row: int) -> str:
        """`file: row 7` of a row of the whole log."""
        index = int(np.searchsorted(self.starts, row, side="right")) - 1
        return f"{self.labels[index]}: row {row - self.starts[index]}"

    def add(self, label: str, table: RowSource) -> None:
        """Read a source; of joined files that have something unusual, each is read by itself."""
        if isinstance(table, JoinedFiles) and self._add_joined(table):
            return
        for part in table.files if isinstance(table, JoinedFiles) else (table,):
            self.starts.append(self.rows)
            self.labels.append(part.label or label)
            self._fill(part, self.labels[-1])

    def _add_joined(self, table: JoinedFiles) -> bool:
        first = self.rows
        try:
            self._fill(table, "")
        except DataError:
            self.rows = first
            return False
        if self.rows - first != table.rows:  # empty lines: which file has them is not known here
            self.rows = first
            return False
        for file in table.files:
            self.starts.append(first)
            self.labels.append(str(file.path))
            first += file.rows
        return True

    def _fill(self, table: RowSource, label: str) -> None:
        first, read = self.rows, set[int]()
        together = table.column_groups(self.fields) if isinstance(table, TableFile) else [self.fields]
        for fields in (part for group in together for part in one_kind_each(group, self._kind)):
            self.rows = first
            kinds = {column: self._kind(name, column) for name, group in fields.items() for column in group}
            position = {name: index for index, name in enumerate(kinds)}
            for batch in table.batches(kinds):
                rows = slice(self.rows, self.rows + batch.num_rows)
                if rows.stop > self.capacity:
                    raise DataError(f"{label}: has more rows than it promised")
                for name, group in fields.items():
                    columns = [batch.column(position[column]) for column in group]
                    self._put(name, group, columns, rows, rows.start - first, label)
                self.rows = rows.stop
            read.add(self.rows)
        if len(read) > 1:
            raise DataError(f"{label}: its columns have different numbers of rows")

    def _kind(self, field: str, column: str) -> str:
        """How the cells of a column are read for a field."""
        known = FIELDS.get(field)
        if field in OF_CHOICES and column in self.choices:
            return "level"
        return "number" if known.is_numeric else known.kind

    def _put(
        self, name: str, group: list[str], columns: list[Any], rows: slice, row_in_file: int, label: str
    ) -> None:
        """One batch of one field into its place."""
        kind = FIELDS.get(name).kind
        if FIELDS.get(name).is_numeric:
            self._put_numbers(name, group, columns, rows, row_in_file, label)
            return
        cells.refuse_nested(columns[0], group[0], label)
        if kind == "id":
            piece = cells.codes(columns[0], self.ids.setdefault(name, {}))
        else:
            order = (self.date_order,) if kind == "time" else ()
            read = cells.times if kind == "time" else cells.flags
            piece = read(columns[0], group[0], label, row_in_file, *order)
        if name not in self.columns:
            self.columns[name] = np.empty(self.capacity, piece.dtype)
        self.columns[name][rows] = piece

    def _put_numbers(
        self, name: str, group: list[str], columns: list[Any], rows: slice, row_in_file: int, label: str
    ) -> None:
        choices = self.choices if name in OF_CHOICES else {}
        words = name in ("obs", "next_obs", FORMULA_COLUMNS)
        flat = FIELDS.get(name).kind == "number"
        pieces = [
            cells.levels(column, choices[column_name], column_name, label, row_in_file)
            if column_name in choices
            else cells.numbers(column, column_name, label, row_in_file, words=words)
            for column, column_name in zip(columns, group, strict=True)
        ]
        widths = [piece.shape[1] if piece.ndim > 1 else 1 for piece in pieces]
        whole = self.fields[name]
        others = len(whole) - len(group)  # columns of the field that are read at another time hold one number
        if name not in self.columns:
            shape = (self.capacity,) if flat else (self.capacity, sum(widths) + others)
            check_shape(name, shape, label, vector=not flat)
            stored = np.result_type(*(piece.dtype for piece in pieces))
            self.columns[name] = self.target.array(name, shape, stored)
        out = self.columns[name]
        if flat and widths != [1]:
            raise DataError(f"{label}: {group[0]} must hold one number per row, but holds {widths[0]}")
        if not flat and out.shape[1] - others != sum(widths):
            raise DataError(
                f"{label}: {', '.join(group)} have {sum(widths)} numbers per row, but {out.shape[-1]} before"
            )
        if flat:
            out[rows] = pieces[0].reshape(-1)
            return
        matrices = [piece if piece.ndim > 1 else piece[:, None] for piece in pieces]
        for first in range(
            0, len(pieces[0]), _CACHED_ROWS
        ):  # columns into rows, as many as stay in the cache
            part = slice(first, min(first + _CACHED_ROWS, len(pieces[0])))
            place = out[rows.start + part.start : rows.start + part.stop]
            start = whole.index(group[0])
            for matrix, width in zip(matrices, widths, strict=True):
                place[:, start : start + width] = matrix[part]
                start += width


def one_kind_each(fields: FieldColumns, kind: Callable[[str, str], str]) -> list[FieldColumns]:
    """Fields that can be read together: a column that is a number and a flag is read twice."""
    groups: list[FieldColumns] = []
    for field, columns in fields.items():
        for group in groups:
            taken = {column: kind(name, column) for name, each in group.items() for column in each}
            if all(taken.get(column, kind(field, column)) == kind(field, column) for column in columns):
                group[field] = columns
                break
        else:
            groups.append({field: columns})
    return groups


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
    builder: TableBuilder | None = None
    formulas = Formulas()
    notes: list[str] = []
    for label, table in sources:
        if builder is None:
            fields, formulas = map_with_formulas(table.names, settings, label)
            choices = choices_of(settings.columns, fields["actions"], label)
            builder = TableBuilder(fields, capacity, target, choices, settings.date_order)
        elif missing := {c for g in builder.fields.values() for c in g} - set(table.names):
            if settings.missing_columns == "error":
                listed = ", ".join(repr(name) for name in sorted(missing))
                raise DataError(
                    f"{label}: no column {listed}, which {builder.labels[0]} has; missing_columns: empty "
                    "(--missing-columns empty) takes its cells as empty"
                )
            table = WithEmpty(table, tuple(sorted(missing)))
            notes += table.notes[len(table.source.notes) :]
        builder.add(label, table)
    if builder is None or not builder.rows:
        raise DataError(f"{source}: the dataset is empty (0 rows)")
    import_pyarrow().default_memory_pool().release_unused()
    columns = {name: values[: builder.rows] for name, values in builder.columns.items()}
    steps = Steps(columns, builder.fields, builder.starts, builder.place)
    steps = settle_steps(steps, settings, formulas, lenient=target.lenient)
    if not target.lenient:
        _refuse_constant_actions(steps.columns["actions"], builder.fields["actions"], source)
    facts = _info(builder, settings, formulas, info or DataInfo(source))
    told = (*(note for _, table in sources for note in table.notes), *notes, *steps.notes)
    return EpisodeLog.build(steps.columns, info=facts, lenient=target.lenient, extra_notes=told)


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


def _info(builder: TableBuilder, settings: TableFields, formulas: Formulas, info: DataInfo) -> DataInfo:
    """What is known of the log: names and units of its numbers, its signals, and whether it has rewards."""
    groups = {name: tuple(builder.fields[name]) for name in ("obs", "actions")}
    names = {
        name: group if len(group) == builder.columns[name].shape[1] else None
        for name, group in groups.items()
    }
    if names["obs"] is not None:  # the mask comes to stand behind them
        names["obs"] += tuple(builder.fields.get(ACTION_MASK, ()))
    if formulas.signals is not None and None in names.values():
        several = "observations" if names["obs"] is None else "actions"
        raise DataError(f"{info.source}: {several} with formulas must be columns of one number per row")
    own = formulas.signals is not None
    return replace(
        info,
        choices=info.choices
        or (tuple(map(builder.choices.get, groups["actions"])) if builder.choices else ()),
        observation_names=names["obs"] if own else info.observation_names or names["obs"],
        action_names=names["actions"] if own else info.action_names or names["actions"],
        signals=Signals(formulas.signals) if formulas.signals is not None else info.signals,
        cost_names=tuple(formulas.costs) or info.cost_names,
        operator_names=info.operator_names or tuple(map(str, builder.ids.get("operators", ()))),
        units={**info.units, **settings.columns.units},
        rewards_known=info.rewards_known and "rewards" in {*builder.fields, *formulas.computed},
    )


def stored_info(source: str, text: bytes) -> DataInfo:
    """What a file written here says about itself."""
    try:
        stored = parse_json(text)
    except ValueError as problem:
        raise DataError(f"{source}: what it says about itself is not valid JSON ({problem})") from None
    return DataInfo.from_dict(source, stored)


def frame_log(frame: Any, settings: TableFields, source: str, target: Target | None = None) -> EpisodeLog:
    """The log that a frame holds."""
    table = FrameRows(as_arrow(frame))
    log = read_rows(
        [(source, table)],
        settings,
        target or Target(),
        source=source,
        capacity=table.rows,
        info=DataInfo(source),
    )
    return with_history(log, settings.history, settings.rate)


def as_arrow(frame: Any) -> Any:
    """An Arrow table of a frame, through the Arrow protocol; mappings of columns are welcome too."""
    pa = import_pyarrow()
    if isinstance(frame, pa.Table):
        return frame
    if isinstance(frame, pa.RecordBatch):
        return pa.Table.from_batches([frame])
    try:
        if isinstance(frame, Mapping):
            return pa.table({name: _column(pa, values) for name, values in frame.items()})
        if hasattr(frame, "collect") and not hasattr(frame, "__arrow_c_stream__"):
            frame = frame.collect()  # a frame of polars whose computation was put off
        if hasattr(frame, "__arrow_c_stream__"):
            return pa.table(frame)
        if hasattr(frame, "__dataframe__"):
            from pyarrow.interchange import from_dataframe

            return from_dataframe(frame)
    except (pa.ArrowException, TypeError, ValueError) as problem:
        text = " ".join(str(problem).split())
        raise DataError(f"the frame cannot be read as an Arrow table: {text}") from None
    raise DataError(
        "a frame must be a pandas, polars or Arrow table, or a mapping of columns, got "
        f"{type(frame).__name__}"
    )


def _column(pa: Any, values: Any) -> Any:
    if isinstance(values, np.ndarray) and values.ndim == 2:
        return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])
    return pa.array(values)


def has_named_columns(path: Path, names: Sequence[str]) -> bool:
    """Whether a file, folder or pattern is a table with these columns, and not bare numbers.

    One whose columns are all called otherwise is refused: which of them means what is anybody's guess.
    """
    if not names or not holds_tables(path):
        return False
    try:
        table = open_table(files_of(path)[0], TableFields())
    except DataError:  # a file of bare numbers has no line of names
        return False
    if not set(names).isdisjoint(table.names):
        return True
    if any(import_pyarrow().types.is_nested(kind) for kind in table.types.values()):
        return False  # whole observations in one column
    raise DataError(
        f"{table.path}: the policy observes {', '.join(names)}; none of them is among its columns "
        f"{', '.join(table.names)}; rename these, or give bare numbers in the policy's order"
    )


def named_rows(
    path: Path, names: Sequence[str], *, hold: bool = False, gaps: bool = False
) -> Iterator[tuple[Array, float]]:
    """Matrices with one column per name, and the share of the rows that is read with each.

    With `hold`, an empty cell takes the last value of its column in the same file. One that stays empty is
    NaN with `gaps`, and else refused.
    """
    fields = TableFields()
    tables = [open_table(file, fields) for file in files_of(path)]
    total, done = max(1, sum(table.rows for table in tables)), 0
    for table in tables:
        for name in names:
            if name not in table.names:
                raise missing_column(name, table.names, str(table.path), "which the policy observes")
        first, last = 0, np.full(len(names), np.nan)
        for batch in table.batches(dict.fromkeys(names, "number")):
            columns = [
                cells.numbers(batch.column(index), name, str(table.path), first)
                for index, name in enumerate(names)
            ]
            rows = np.stack(columns, axis=1).astype(np.float64, copy=False)
            if hold:
                rows = _held(rows, last)
            if not gaps:
                _refuse_empty(rows, names, str(table.path), first)
            last = rows[-1]
            first += len(rows)
            done += len(rows)
            yield rows, min(1.0, done / total)


def _held(rows: Array, last: Array) -> Array:
    """Empty cells filled from the row above; `last` is the row before the first."""
    above = np.vstack([last, rows])
    places = np.where(np.isnan(above), 0, np.arange(len(above))[:, None])
    filled: Array = np.take_along_axis(above, np.maximum.accumulate(places, axis=0), axis=0)[1:]
    return filled


def _refuse_empty(rows: Array, names: Sequence[str], where: str, first: int) -> None:
    empty = np.argwhere(np.isnan(rows))
    if len(empty):
        row, index = empty[0]
        raise DataError(
            f"{where}: row {first + int(row)} has no value in column {names[index]!r}, which the policy "
            "observes; fill it, leave the row out, or take the value before it (--missing-values hold)"
        )
