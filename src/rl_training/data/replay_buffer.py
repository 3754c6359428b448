"""Transitions kept for off-policy learning: a ring of rows, one ring per seed when seeds are stacked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from rl_training.core.plain import Array, Facts, State
from rl_training.data.offline_dataset import STANDARD_FIELDS

Rows = Array | Tensor


class ReplayBuffer:
    """A ring of the newest `capacity` transitions, in float32; `dones` means terminated, never truncated.

    `extra` names further fields with one number per row. With `lanes` every array has that leading axis: lane
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
            **dict.fromkeys(extra, ()),
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
