"""Several datasets as one: how many rows each part gives, which ones, and their union."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from rl_training.core.errors import DataError
from rl_training.core.streams import derive_seed
from rl_training.core.types import STANDARD_FIELDS
from rl_training.data.info import DataInfo
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.reading import DataWarning
from rl_training.data.rows import ColumnStore

Concatenate = Callable[[list[ColumnStore], list[str]], dict[str, Tensor]]
"""Puts the wide columns of all parts one after another, in memory or on disk."""


def mix_transition_datasets(
    datasets: Sequence[TransitionDataset],
    *,
    weights: Sequence[float] | None = None,
    rows: Sequence[int] | None = None,
    total_size: int | None = None,
    seed: int = 0,
    concatenate: Concatenate | None = None,
) -> TransitionDataset:
    """The union of parts; all of their rows, or `rows` of each, or shares by `weights` of `total_size` rows.

    Rows are drawn without replacement, the same ones for the same seed; a part that must give more rows than
    it has repeats them evenly. Without `total_size`, weights give the largest mix that repeats nothing. A
    row's fields stay together; an optional field survives if every part has it. The result is not in time
    order.
    """
    if not datasets:
        raise DataError("a mix needs at least one part")
    check_same_dimensions(datasets)
    counts = mix_counts([len(part) for part in datasets], weights, rows, total_size)
    chosen = [
        part.select_rows(_draw(len(part), count, derive_seed(seed, "mix", index)))
        for index, (part, count) in enumerate(zip(datasets, counts, strict=True))
    ]
    fields = _shared_fields(datasets)
    stores = [part.store.only(fields) for part in chosen]
    wide = [name for name in fields if stores[0].columns[name].ndim > 1]
    columns = (concatenate or in_memory)(stores, wide)
    for name in fields:
        if name not in wide:
            columns[name] = torch.cat([store.whole(name) for store in stores])
    store = ColumnStore({name: columns[name] for name in fields})
    return TransitionDataset.from_store(store, ordered=False, info=_shared_info(datasets))


def mix_counts(
    lengths: Sequence[int],
    weights: Sequence[float] | None = None,
    rows: Sequence[int] | None = None,
    total_size: int | None = None,
) -> list[int]:
    """Rows that each part gives; shares are rounded so that they add up to the total."""
    if rows is not None:
        return list(rows)
    if weights is None:
        return list(lengths)
    shares = np.asarray(weights, dtype=np.float64) / float(np.sum(weights))
    total = int(np.min(np.asarray(lengths) / shares)) if total_size is None else total_size
    counts = np.floor(shares * total).astype(int)
    largest_remainder = np.argsort(counts - shares * total, kind="stable")
    counts[largest_remainder[: total - counts.sum()]] += 1
    return [int(count) for count in counts]


def in_memory(stores: list[ColumnStore], names: list[str]) -> dict[str, Tensor]:
    """Concatenate columns in memory."""
    return {name: torch.cat([store.whole(name) for store in stores]) for name in names}


def _draw(length: int, count: int, seed: int) -> Tensor:
    if not length:
        raise DataError("a part of the mix is empty")
    rounds, rest = divmod(count, length)
    extra = np.sort(np.random.default_rng(seed).choice(length, size=rest, replace=False))
    return torch.from_numpy(np.concatenate([*[np.arange(length)] * rounds, extra]).astype(np.int64))


def check_same_dimensions(datasets: Sequence[TransitionDataset]) -> None:
    """Parts of a mix have observations and actions of one size each."""
    first = datasets[0]
    for part in datasets[1:]:
        for name in ("obs", "actions"):
            here, there = (tuple(one.store.columns[name].shape[1:]) for one in (part, first))
            if here != there:
                raise DataError(
                    f"parts of a mix must have the same dimensions: {name} are {here} in {part.info.source} "
                    f"but {there} in {first.info.source}"
                )
        if part.info.choices != first.info.choices:
            raise DataError(
                "parts of a mix must have the same actions: their levels differ in "
                f"{part.info.source} and {first.info.source} (columns.levels)"
            )
    check_same_costs(datasets)


def check_same_costs(datasets: Sequence[TransitionDataset]) -> None:
    """Numbers of one column mean one thing."""
    first = datasets[0]
    for part in datasets[1:]:
        if part.cost_names and first.cost_names and part.cost_names != first.cost_names:
            raise DataError(
                f"parts of a mix must have the same costs: {part.info.source} has "
                f"{', '.join(part.cost_names)}, {first.info.source} has {', '.join(first.cost_names)}"
            )


def _shared_fields(datasets: Sequence[TransitionDataset]) -> list[str]:
    shared = [name for name in datasets[0].fields if all(name in part.fields for part in datasets)]
    lost = sorted({name for part in datasets for name in part.fields} - set(shared))
    if lost:
        warnings.warn(
            f"not every part of the mix has {', '.join(lost)}: left out of the mix", DataWarning, stacklevel=3
        )
    return [*STANDARD_FIELDS, *(name for name in shared if name not in STANDARD_FIELDS)]


def _shared_info(datasets: Sequence[TransitionDataset]) -> DataInfo:
    """What the parts agree on."""
    first = datasets[0].info
    agreed = {
        name: getattr(first, name)
        for name in (
            *("spaces", "env_id", "reference", "observation_names", "action_names", "choices", "units"),
            *("signals", "cost_names"),
        )
        if all(getattr(part.info, name) == getattr(first, name) for part in datasets)
    }
    names = " + ".join(part.info.source for part in datasets)
    known = all(part.info.rewards_known for part in datasets)
    return replace(DataInfo(source=f"mix of {names}", rewards_known=known), **agreed)
