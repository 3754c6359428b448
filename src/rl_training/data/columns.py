"""Named columns of equal length that are read by row: plain tensors, or views of memory-mapped files."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from rl_training.core.errors import DataError
from rl_training.core.plain import Array
from rl_training.core.transforms import Transform


@dataclass(frozen=True)
class ColumnStore:
    """Columns, and for some of them a row map: row i is then row `row_maps[name][i]` of the stored column.

    Row maps let rows be dropped, chosen or repeated without copying wide columns. `on_gather` holds changes
    of units that are applied to a batch, for columns that lie in a file and cannot be changed there.
    """

    columns: Mapping[str, Tensor]
    row_maps: Mapping[str, Tensor] = field(default_factory=dict)
    on_gather: Mapping[str, Transform] = field(default_factory=dict)

    def __post_init__(self) -> None:
        lengths = {name: self.length(name) for name in self.columns}
        if len(set(lengths.values())) > 1:
            listed = ", ".join(f"{name} {length}" for name, length in lengths.items())
            raise DataError(f"all fields must have the same length, got {listed}")

    def length(self, name: str) -> int:
        return len(self.row_maps.get(name, self.columns[name]))

    def gather(self, flat: Tensor) -> dict[str, Tensor]:
        """The rows `flat` `[B]` of every column: one `index_select` each."""
        if self.row_maps:
            batch = self._gather_mapped(flat)
        else:
            batch = {name: column.index_select(0, flat) for name, column in self.columns.items()}
        for name, transform in self.on_gather.items():
            batch[name] = transform.apply(batch[name])
        return batch

    def _gather_mapped(self, flat: Tensor) -> dict[str, Tensor]:
        looked_up: dict[int, Tensor] = {}
        batch = {}
        for name, column in self.columns.items():
            rows, row_map = flat, self.row_maps.get(name)
            if row_map is not None:
                if id(row_map) not in looked_up:  # columns usually share one map
                    looked_up[id(row_map)] = row_map.index_select(0, flat)
                rows = looked_up[id(row_map)]
            batch[name] = column.index_select(0, rows)
        return batch

    def whole(self, name: str) -> Tensor:
        """All rows of a column in the order of the store, as a batch would show them."""
        values = self._in_order(name)
        return self.on_gather[name].apply(values) if name in self.on_gather else values

    def _in_order(self, name: str) -> Tensor:
        column, rows = self.columns[name], self.row_maps.get(name)
        return column if rows is None else column.index_select(0, rows)

    def select(self, rows: Tensor) -> ColumnStore:
        """A view of some rows; one number per row is copied, wider columns are looked up."""
        columns, maps = dict(self.columns), dict(self.row_maps)
        shared: dict[int, Tensor] = {}
        rows = rows.to(torch.int32 if max(map(len, columns.values())) < 2**31 else torch.int64)
        for name, column in self.columns.items():
            if column.ndim == 1:
                columns[name] = self._in_order(name).index_select(0, rows)
                maps.pop(name, None)
                continue
            previous = maps.get(name)
            if id(previous) not in shared:
                shared[id(previous)] = compose(previous, rows, column)
            maps[name] = shared[id(previous)]
        return replace(self, columns=columns, row_maps=maps)

    def looked_up_through(self, rows: Tensor, names: Iterable[str]) -> ColumnStore:
        """The same columns, except that row i of `names` is now their present row `rows[i]`."""
        maps = dict(self.row_maps)
        maps |= {name: compose(maps.get(name), rows, self.columns[name]) for name in names}
        return replace(self, row_maps=maps)

    def chunks(self, name: str, rows_at_once: int) -> Iterator[Tensor]:
        """The rows of a column in order, a few at a time and without changes of units."""
        column, row_map = self.columns[name], self.row_maps.get(name)
        for start in range(0, self.length(name), rows_at_once):
            part = slice(start, start + rows_at_once)
            yield column[part] if row_map is None else column.index_select(0, row_map[part])

    def converted(
        self, names: Sequence[str], transform: Transform, *, in_place: bool, rows_at_once: int
    ) -> ColumnStore:
        """The store with `transform` applied to stored columns; fields may share one, which changes once."""
        done: dict[int, Tensor] = {}
        columns = dict(self.columns)
        for name in names:
            column = self.columns[name]
            if id(column) not in done:
                changed = column if in_place else torch.empty_like(column)
                for start in range(0, len(column), rows_at_once):
                    part = slice(start, start + rows_at_once)
                    changed[part] = transform.apply(column[part])
                done[id(column)] = changed
            columns[name] = done[id(column)]
        return replace(self, columns=columns)

    def compacted(self) -> ColumnStore:
        """The same rows without row maps; frees stored rows that nothing refers to."""
        return replace(self, columns={name: self._in_order(name) for name in self.columns}, row_maps={})

    def only(self, names: Iterable[str]) -> ColumnStore:
        """The columns in `names` that exist."""
        wanted = [name for name in names if name in self.columns]
        return ColumnStore(
            {name: self.columns[name] for name in wanted},
            {name: self.row_maps[name] for name in wanted if name in self.row_maps},
            {name: self.on_gather[name] for name in wanted if name in self.on_gather},
        )

    def updated(self, columns: Mapping[str, Tensor]) -> ColumnStore:
        """Replace or add columns, given row by row in the order of the store."""
        return ColumnStore(
            {**self.columns, **columns},
            {name: rows for name, rows in self.row_maps.items() if name not in columns},
            {name: transform for name, transform in self.on_gather.items() if name not in columns},
        )

    def to(self, device: torch.device | str) -> ColumnStore:
        moved: dict[int, Tensor] = {}  # obs and next_obs may be the same column, fields share row maps
        for tensor in (*self.columns.values(), *self.row_maps.values()):
            if id(tensor) not in moved:
                moved[id(tensor)] = tensor.to(device)
        return ColumnStore(
            {name: moved[id(column)] for name, column in self.columns.items()},
            {name: moved[id(rows)] for name, rows in self.row_maps.items()},
            {name: transform.to(device) for name, transform in self.on_gather.items()},
        )


def as_tensor(array: Array) -> Tensor:
    """The same memory as a tensor; read-only arrays are welcome, since columns on disk never change."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)


def compose(previous: Tensor | None, rows: Tensor, column: Tensor) -> Tensor:
    """Row map of `rows` seen through an earlier map; 32 bits are enough unless the column is huge."""
    composed = rows if previous is None else previous.index_select(0, rows)
    return composed.to(torch.int32 if len(column) < 2**31 else torch.int64)
