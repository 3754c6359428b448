"""A short text that changes when recorded rows change, to notice that a run is resumed on other data."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import torch

from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.stored_rows import as_array

CHUNK_ROWS = 100_000
SAMPLED_ROWS = 10_000
"""Rows that are read of data kept on disk, evenly spaced: all of it would take as long as a copy."""


def fingerprint(parts: Sequence[TransitionDataset], *, sampled: bool = False) -> str:
    """Sixteen hex digits over the rows, shapes and values of all parts (of some rows where `sampled`)."""
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        for name in sorted(part.fields):
            shape = tuple(part.store.columns[name].shape[1:])
            digest.update(f"{name} {len(part)} {shape};".encode())
            for chunk in _chunks(part, name, sampled=sampled):
                digest.update(as_array(chunk).tobytes())
    return digest.hexdigest()


def _chunks(part: TransitionDataset, name: str, *, sampled: bool) -> Iterable[torch.Tensor]:
    if not sampled or len(part) <= SAMPLED_ROWS:
        return part.store.chunks(name, CHUNK_ROWS)
    rows = torch.linspace(0, len(part) - 1, SAMPLED_ROWS, dtype=torch.float64).long()
    return [part.store.select(rows).whole(name)]
