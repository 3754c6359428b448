"""Stored transitions as they are read: whole fields, chosen rows, random batches."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rl_training.core.errors import DataError
from rl_training.data.columns import ColumnStore
from rl_training.data.data_info import DataInfo


class StoredRows:
    """Named fields with one entry per row."""

    store: ColumnStore
    info: DataInfo

    def __len__(self) -> int:
        return self.store.length("rewards")

    def __repr__(self) -> str:
        return f"TransitionDataset({len(self)} rows, fields {', '.join(self.fields)}, {self.info.source})"

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields that a batch holds."""
        return tuple(self.store.columns)

    @property
    def device(self) -> torch.device:
        return self.store.columns["rewards"].device

    @property
    def obs(self) -> Tensor:
        return self.store.whole("obs")

    @property
    def actions(self) -> Tensor:
        return self.store.whole("actions")

    @property
    def rewards(self) -> Tensor:
        return self.store.whole("rewards")

    @property
    def next_obs(self) -> Tensor:
        return self.store.whole("next_obs")

    @property
    def dones(self) -> Tensor:
        return self.store.whole("dones")

    @property
    def truncations(self) -> Tensor | None:
        return self.optional("truncations")

    @property
    def next_actions(self) -> Tensor | None:
        return self.optional("next_actions")

    @property
    def returns_to_go(self) -> Tensor | None:
        return self.optional("returns_to_go")

    @property
    def discounts(self) -> Tensor | None:
        """Bootstrap factor per row, present after `with_n_step`."""
        return self.optional("discounts")

    def gather(self, indices: Tensor) -> dict[str, Tensor]:
        """The rows `indices` (`[B]` or `[S, B]`, on the dataset's device) of every field."""
        if indices.ndim == 1:
            return self.store.gather(indices)
        batch = self.store.gather(indices.reshape(-1))
        return {name: values.view(*indices.shape, *values.shape[1:]) for name, values in batch.items()}

    def sample(
        self,
        batch_size: int,
        device: torch.device | str | None = None,
        generator: torch.Generator | None = None,
    ) -> dict[str, Tensor]:
        """Rows drawn uniformly with replacement from `generator` (torch's own when none is given)."""
        if not len(self):
            raise DataError("cannot sample: the dataset is empty")
        source = self.device if generator is None else generator.device
        indices = torch.randint(len(self), (batch_size,), generator=generator, device=source)
        batch = self.gather(indices.to(self.device))
        return batch if device is None else {name: values.to(device) for name, values in batch.items()}

    def optional(self, name: str) -> Tensor | None:
        """A whole field, or None where the rows do not have it."""
        return self.store.whole(name) if name in self.store.columns else None


def as_array(values: Tensor) -> Any:
    """The same memory for numpy, where the dataset lies on the CPU."""
    return values.detach().cpu().numpy()
