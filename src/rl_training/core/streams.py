"""Named random streams: explicit, saved with the run, equal for a seed alone or stacked with others."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from rl_training.core.types import State

Kind = Literal["normal", "uniform", "unit64"]

BLOCK_VALUES = 1 << 17
"""Numbers drawn ahead per seed: few generator calls, yet small enough to stay in the cache."""


def derive_seed(seed: int, *names: str | int) -> int:
    """A seed for the stream called `names` of a run with `seed`; stable across machines and versions."""
    keys = [zlib.crc32(name.encode()) if isinstance(name, str) else name for name in names]
    state = np.random.SeedSequence([seed, *keys]).generate_state(2, dtype=np.uint32)
    return int(state[0]) << 31 | int(state[1]) >> 1


def torch_generator(seed: int, *names: str | int, device: str | torch.device = "cpu") -> torch.Generator:
    """A generator for one named purpose of a run."""
    return torch.Generator(device=device).manual_seed(derive_seed(seed, *names))


class RandomStream:
    """Draws `[*seeds, count]` numbers a call, one generator per seed.

    `normal` is N(0, 1), `uniform` is U[-1, 1), `unit64` is U[0, 1) in double precision (for row indices).
    Numbers are drawn in blocks; the state saved is that of the block's start and how much of it was used, so
    a restored stream goes on with the very next number.
    """

    def __init__(self, generators: Sequence[torch.Generator], kind: Kind) -> None:
        self.kind: Kind = kind
        self.generators = list(generators)
        self._block_states = [g.get_state() for g in self.generators]
        self._block: Tensor | None = None
        self._count = 0
        self._cursor = 0

    def next(self, count: int) -> Tensor:
        """The next `count` numbers of every seed; a changed `count` starts a new block."""
        block = self._block
        if block is None or count != self._count or self._cursor == block.shape[0]:
            block = self._draw(count)
        values = block[self._cursor]
        self._cursor += 1
        return values

    def give_back(self) -> None:
        """Take back the last `next`: what it was drawn for did not happen."""
        self._cursor -= 1

    def _draw(self, count: int) -> Tensor:
        self._block_states = [g.get_state() for g in self.generators]
        self._count, self._cursor = count, 0
        rows = max(1, BLOCK_VALUES // max(1, count))
        drawn = [self._values(rows, count, generator) for generator in self.generators]
        self._block = drawn[0] if len(drawn) == 1 else torch.stack(drawn, dim=1)
        return self._block

    def _values(self, rows: int, count: int, generator: torch.Generator) -> Tensor:
        shape, device = (rows, count), generator.device
        if self.kind == "normal":
            return torch.randn(shape, generator=generator, device=device)
        if self.kind == "uniform":
            return torch.rand(shape, generator=generator, device=device).mul_(2.0).sub_(1.0)
        return torch.rand(shape, generator=generator, device=device, dtype=torch.float64)

    def state_dict(self) -> State:
        return {
            "block_states": torch.stack([state.cpu() for state in self._block_states]),
            "count": self._count,
            "cursor": self._cursor,
        }

    def load_state_dict(self, state: State) -> None:
        for generator, saved in zip(self.generators, state["block_states"], strict=True):
            generator.set_state(saved.cpu().clone())  # set_state reads a view from its storage's start
        self._block, self._count, self._cursor = None, 0, 0
        self._block_states = [g.get_state() for g in self.generators]
        if state["count"]:
            self._draw(int(state["count"]))
            self._cursor = int(state["cursor"])

    def member(self, index: int) -> State:
        """The state that a single-seed stream needs to go on as seed `index` of this stack."""
        state = self.state_dict()
        return {**state, "block_states": state["block_states"][index : index + 1]}

    def keep(self, members: Sequence[int]) -> RandomStream:
        """A stream of some of the seeds, going on where this one is."""
        return join_streams([self.member(index) for index in members], self.kind, self.generators[0].device)


def join_streams(states: Sequence[State], kind: Kind, device: str | torch.device) -> RandomStream:
    """One stream over several seeds from the states of single ones, which must be equally far on."""
    positions = {(state["count"], state["cursor"]) for state in states}
    if len(positions) != 1:
        raise ValueError(f"random streams can be stacked only at the same position, got {sorted(positions)}")
    joined = RandomStream([torch.Generator(device=device) for _ in states], kind)
    joined.load_state_dict(
        {**states[0], "block_states": torch.cat([state["block_states"] for state in states])}
    )
    return joined
