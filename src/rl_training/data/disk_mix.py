"""The union of datasets that stay on disk: chosen rows are written once to a flat cache of their own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from rl_training.data.columns import ColumnStore, as_tensor
from rl_training.data.disk_cache import Filled, cached_columns, fingerprint
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.offline_mixers import Concatenate
from rl_training.data.reading import Allocate
from rl_training.data.validation import CHUNK_ROWS


def disk_concatenation(parts: Sequence[TransitionDataset]) -> Concatenate:
    """How the wide columns of these parts are put one after another without holding them in memory."""
    keys = [part.info.content_key or _bytes_of(part.store) for part in parts]

    def concatenate(stores: list[ColumnStore], names: list[str]) -> dict[str, Tensor]:
        chosen = [_rows_of(store, names) for store in stores]
        key = fingerprint("mix", *names, *keys, *chosen)

        def fill(allocate: Allocate) -> Filled:
            columns = {}
            for name in names:
                rows = sum(store.length(name) for store in stores)
                shape = (rows, *stores[0].columns[name].shape[1:])
                columns[name] = allocate(name, shape, np.dtype(np.float32))
                start = 0
                for store in stores:
                    for chunk in store.chunks(name, CHUNK_ROWS):
                        columns[name][start : start + len(chunk)] = chunk.numpy()
                        start += len(chunk)
            return columns, {}

        columns, _ = cached_columns(key, fill)
        return {name: as_tensor(columns[name]) for name in names}

    return concatenate


def _rows_of(store: ColumnStore, names: list[str]) -> str:
    """Fingerprint of which stored rows were chosen."""
    return fingerprint(*(store.row_maps[name].numpy().tobytes() for name in names))


def _bytes_of(store: ColumnStore) -> str:
    """Fingerprint of rows that came from memory and not from a file."""
    return fingerprint(*(column.contiguous().numpy().tobytes() for column in store.columns.values()))
