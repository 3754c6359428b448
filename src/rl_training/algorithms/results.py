"""What an update returns. Metrics stay tensors until read: an update never waits for the device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import cast

from torch import Tensor


class Metrics(Mapping[str, float]):
    """Name -> float, converted when read; a list with one float per seed when learners are stacked."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.tensors = dict(tensors)

    def __getitem__(self, name: str) -> float:
        return cast(float, self.tensors[name].tolist())

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def __repr__(self) -> str:
        return f"Metrics({dict(self)})"


@dataclass(frozen=True)
class UpdateResult:
    """One call of `update`: how many gradient steps it made, and its metrics."""

    num_gradient_steps: int
    metrics: Metrics
