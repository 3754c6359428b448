"""Rows by name: columns in memory or on disk, batches drawn from them, and a ring of them for replay."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from rl_training.core.errors import DataError
from rl_training.core.transforms import Transform
from rl_training.core.types import STANDARD_FIELDS, Array, Facts, State
from rl_training.data.fields import FIELDS


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


def as_array(values: Tensor) -> Any:
    """The same memory for numpy, where the dataset lies on the CPU."""
    return values.detach().cpu().numpy()


Rows = Array | Tensor


class ReplayBuffer:
    """A ring of the newest `capacity` transitions, in float32; `dones` means terminated, never truncated.

    `extra` names further fields. With `lanes` every array has that leading axis: lane
    i is the ring of seed i, and all rings are equally full. A row keeps its place in memory until it is
    overwritten, and the place is saved, so that a stream of row indices picks the same transitions after a
    restore as without one.
    """

    def __init__(
        self,
        capacity: int,
        obs_dim: int,
        action_dim: int,
        *,
        lanes: int | None = None,
        extra: Sequence[str] = (),
        device: str | torch.device = "cpu",
    ) -> None:
        sizes = {"capacity": capacity, "obs_dim": obs_dim, "action_dim": action_dim, "lanes": lanes}
        for name, size in sizes.items():
            if size is not None and size < 1:
                raise ValueError(f"{name} must be >= 1, got {size}")
        self.capacity = capacity
        self.lanes = lanes
        self.device = torch.device(device)
        self._row_shapes: dict[str, tuple[int, ...]] = {
            "obs": (obs_dim,),
            "actions": (action_dim,),
            "rewards": (),
            "next_obs": (obs_dim,),
            "dones": (),
            **{name: FIELDS.get(name).row_shape for name in extra},
        }
        # Always with a lane axis inside, of length 1 when the caller has none.
        self._rings = {
            name: torch.empty((lanes or 1, capacity, *shape), dtype=torch.float32, device=self.device)
            for name, shape in self._row_shapes.items()
        }
        # The same memory as one long table: a batch of all lanes is then one index_select per field.
        self._tables = {name: ring.flatten(0, 1) for name, ring in self._rings.items()}
        # The same memory for numpy, which writes a few rows faster than torch does.
        on_cpu = self.device.type == "cpu"
        self._arrays = {name: ring.numpy() for name, ring in self._rings.items()} if on_cpu else None
        self._lane_starts = torch.arange(lanes or 1, device=self.device).unsqueeze(-1) * capacity
        self._size = 0
        self._position = 0

    def __len__(self) -> int:
        """Rows filled, per lane."""
        return self._size

    def add(
        self, obs: Rows, actions: Rows, rewards: Rows, next_obs: Rows, dones: Rows, **extra: Rows
    ) -> None:
        """Append n rows (`[n, ...]`, or `[lanes, n, ...]`), overwriting the oldest when the ring is full."""
        given = {"obs": obs, "actions": actions, "rewards": rewards, "next_obs": next_obs, "dones": dones}
        given |= extra
        if missing := self._rings.keys() - given.keys():
            raise ValueError(f"a row needs the field {min(missing)}, got {', '.join(given)}")
        count = self._check_shapes(given)
        skipped = max(0, count - self.capacity)
        start = (self._position + skipped) % self.capacity
        until_end = skipped + min(count - skipped, self.capacity - start)
        for name, rows in given.items():
            laned = rows[None] if self.lanes is None else rows
            self._write(name, start, laned[:, skipped:until_end])
            if until_end < count:
                self._write(name, 0, laned[:, until_end:])
        self._position = (self._position + count) % self.capacity
        self._size = min(self._size + count, self.capacity)

    def gather(self, indices: Tensor) -> dict[str, Tensor]:
        """The rows at `indices`: `[B]`, or `[lanes, B]` with indices of each lane; 0 <= index < len(self)."""
        if not self._size:
            raise ValueError("cannot read from an empty replay buffer: add transitions first")
        shape = tuple(indices.shape)
        lead = () if self.lanes is None else (self.lanes,)
        if len(shape) != len(lead) + 1 or shape[:-1] != lead:
            wanted = "[B]" if self.lanes is None else f"[{self.lanes}, B]"
            raise ValueError(f"indices must have shape {wanted}, got {list(shape)}")
        places = indices.to(self.device)
        if self.lanes is not None:
            places = (places + self._lane_starts).view(-1)
        return {
            name: table.index_select(0, places).view(*shape, *self._row_shapes[name])
            for name, table in self._tables.items()
        }

    def sample(self, batch_size: int, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """`batch_size` rows per lane, uniformly with replacement."""
        if not self._size:
            raise ValueError("cannot sample from an empty replay buffer: add transitions first")
        shape = (batch_size,) if self.lanes is None else (self.lanes, batch_size)
        device = self.device if generator is None else generator.device
        return self.gather(torch.randint(self._size, shape, generator=generator, device=device))

    def state_dict(self, lane: int | None = None) -> State:
        """The filled rows in their places, as copies: later `add` calls do not change what is being saved.

        With `lane` given, what a buffer of that lane alone needs.
        """
        filled = {name: ring[:, : self._size] for name, ring in self._rings.items()}
        if lane is not None or self.lanes is None:
            rows = {name: rows[lane or 0] for name, rows in filled.items()}
        else:
            rows = filled
        copies = {name: row.clone(memory_format=torch.contiguous_format) for name, row in rows.items()}
        return {"capacity": self.capacity, "position": self._position, **copies}

    def load_state_dict(self, state: Facts) -> None:
        """Take over the rows of `state_dict()`; the next `add` goes where it would have gone."""
        saved_capacity = int(state["capacity"])
        if saved_capacity != self.capacity:
            raise ValueError(
                f"capacity must be {saved_capacity} as in the saved replay buffer, got {self.capacity}"
            )
        given = {name: state[name] for name in self._rings}
        size = self._check_shapes(given)
        if size > self.capacity:
            raise ValueError(f"saved replay rows must be <= capacity ({self.capacity}), got {size}")
        for name, rows in given.items():
            self._write(name, 0, rows[None] if self.lanes is None else rows)
        self._size = size
        self._position = int(state["position"])

    def keep(self, lanes: Sequence[int]) -> ReplayBuffer:
        """A buffer of some of the lanes; of one lane alone, without a lane axis."""
        smaller = ReplayBuffer(
            self.capacity,
            *self._row_shapes["obs"],
            *self._row_shapes["actions"],
            lanes=None if len(lanes) == 1 else len(lanes),
            extra=[name for name in self._row_shapes if name not in STANDARD_FIELDS],
            device=self.device,
        )
        states = [self.state_dict(lane) for lane in lanes]
        rows = {name: torch.stack([state[name] for state in states]) for name in self._rings}
        if len(lanes) == 1:
            rows = {name: values[0] for name, values in rows.items()}
        smaller.load_state_dict({**states[0], **rows})
        return smaller

    def _check_shapes(self, given: Mapping[str, Rows]) -> int:
        """The number of rows per lane, once every shape has been compared with what the buffer holds."""
        lead = () if self.lanes is None else (self.lanes,)
        obs_shape = tuple(given["obs"].shape)
        count = obs_shape[len(lead)] if len(obs_shape) == len(lead) + 2 else -1
        for name, rows in given.items():
            if tuple(rows.shape) != (*lead, count, *self._row_shapes[name]):
                wanted = [*lead, "n" if count < 0 else count, *self._row_shapes[name]]
                shown = ", ".join(map(str, wanted))
                raise ValueError(f"{name} must have shape [{shown}], got {list(rows.shape)}")
        return count

    def _write(self, name: str, start: int, rows: Rows) -> None:
        stop = start + rows.shape[1]
        if self._arrays is not None:
            self._arrays[name][:, start:stop] = rows.detach().cpu() if isinstance(rows, Tensor) else rows
        else:
            self._rings[name][:, start:stop] = torch.as_tensor(rows, device=self.device)
