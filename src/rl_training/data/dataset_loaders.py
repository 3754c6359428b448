"""One way to read every kind of file; kinds are import strings, so that only what is used is imported."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import Any

from rl_training.core.errors import DataError
from rl_training.data.episode_log import EpisodeLog
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.reading import Target

FILE_READERS = {
    "hdf5": "rl_training.data.formats.hdf5:read_hdf5",
    "npz": "rl_training.data.formats.npz:read_npz",
    "parquet": "rl_training.data.formats.parquet:read_parquet",
    "csv": "rl_training.data.formats.parquet:read_csv",
}
"""kind -> function (path, target) -> EpisodeLog; Minari datasets are found by id instead"""

FILE_KINDS = (*FILE_READERS, "minari")


def read_log(
    kind: str,
    *,
    dataset_path: str | os.PathLike[str] | None = None,
    dataset_id: str | None = None,
    target: Target | None = None,
) -> EpisodeLog:
    """Read and check every row of a dataset, before any is dropped."""
    where = target or Target()
    path = None if dataset_path is None else Path(dataset_path)
    if kind == "minari":
        from rl_training.data.formats.minari import read_minari

        if dataset_id is None:
            raise DataError("dataset_id is required by dataset_kind 'minari'")
        return read_minari(dataset_id, path, where)
    if kind not in FILE_READERS:
        raise DataError(f"dataset_kind must be one of {', '.join(FILE_KINDS)}, got {kind!r}")
    if path is None:
        raise DataError(f"dataset_path is required by dataset_kind '{kind}'")
    module, _, function = FILE_READERS[kind].partition(":")
    reader: Any = getattr(import_module(module), function)
    log: EpisodeLog = reader(path, where)
    return log


def load_transition_dataset(
    kind: str,
    *,
    dataset_path: str | os.PathLike[str] | None = None,
    dataset_id: str | None = None,
    in_memory: bool = True,
) -> TransitionDataset:
    """Read a dataset of transitions in its own units; `in_memory=False` maps it from a cache on disk."""
    if in_memory:
        return read_log(kind, dataset_path=dataset_path, dataset_id=dataset_id).to_dataset()
    from rl_training.data.disk_cache import cached_log

    return cached_log(kind, dataset_path=dataset_path, dataset_id=dataset_id).to_dataset()
