"""Batches from logged data and from what is collected, together."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_training.config.run_fields import Share
from rl_training.core.errors import ConfigError
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.runtime.sources.rows import Rows, RowStore, by_part, drawn

HALF: Share = 0.5
"""The share of Cal-QL and RLPD, where none is given."""


def share_at(share: Share, step: int) -> float:
    """The share at a step: a number, or a line from a to b over n steps that ends in b."""
    if not isinstance(share, tuple):
        return share
    start, end, steps = share
    return start + (end - start) * min(1.0, step / steps)


def rows_of_share(share: float, batch_size: int) -> int:
    """Rows of a batch that a share stands for: to the nearest whole row, halves upwards."""
    return int(share * batch_size + 0.5)


class MixedRows:
    """A share of every batch from the data, the rest from the collection; both hold the same fields.

    The share is exact in each batch: its rows are counted, not drawn by lot. As long as nothing collected can
    be drawn, all rows come from the data. Without a share (none), data and collected rows are one set.
    """

    def __init__(self, data: TransitionDataset, store: RowStore, share: Share | None) -> None:
        refuse_unknown_units(data)
        common = [name for name in data.fields if name in store.fields]
        self.data, self.store, self.share = data.with_fields(common), store, share

    def __len__(self) -> int:
        return len(self.data)

    def draw(self, unit: Tensor, step: int) -> dict[str, Tensor]:
        return by_part(self.store.parts, unit, lambda part, unit: self._batch(unit, part, step))

    def _batch(self, unit: Tensor, collected: Rows, step: int) -> dict[str, Tensor]:
        if not len(collected):
            return drawn(self.data, unit)
        if self.share is None:
            return self._united(unit, collected)
        size = unit.shape[-1]
        count = rows_of_share(share_at(self.share, step), size)
        if count in (0, size):
            return drawn(self.data if count else collected, unit)
        data, fresh = drawn(self.data, unit[..., :count]), drawn(collected, unit[..., count:])
        axis = unit.ndim - 1
        return {name: torch.cat([values, fresh[name]], axis) for name, values in data.items()}

    def _united(self, unit: Tensor, collected: Rows) -> dict[str, Tensor]:
        """Uniform over the data and then the collected rows, as if they lay in one buffer.

        Both are read for every place of the batch: no number of rows has to come back from the device.
        """
        logged = len(self.data)
        place = (unit * (logged + len(collected))).long()
        is_fresh = place >= logged
        data = self.data.gather(place.clamp(max=logged - 1))
        fresh = collected.gather((place - logged).clamp(min=0))
        return {
            name: torch.where(is_fresh.view(*is_fresh.shape, *[1] * (old.ndim - unit.ndim)), fresh[name], old)
            for name, old in data.items()
        }


def refuse_unknown_units(data: TransitionDataset) -> None:
    if "discounts" in data.fields:
        raise ConfigError(
            "algo_kwargs.n_step must be 1 and discount_by_time false where data and collected transitions "
            "are learned from together: what is collected is one step long"
        )
