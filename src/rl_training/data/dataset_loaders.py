"""One way to read every kind of data; formats are found by name, or recognised."""

from __future__ import annotations

import os
from pathlib import Path

from rl_training.config.data_fields import DatasetSource
from rl_training.config.data_kinds import AUTO
from rl_training.core.errors import DataError
from rl_training.data.episode_log import EpisodeLog
from rl_training.data.formats import FORMATS, recognised_format
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.reading import Target


def resolve_kind(kind: str, source: DatasetSource) -> str:
    """`kind`, or the format that is recognised at the place of `source`."""
    if kind != AUTO:
        return kind
    if source.dataset_id is not None:
        return "minari"
    if source.dataset_path is None:
        raise DataError("dataset_path (or dataset_id) is required by dataset_kind 'auto'")
    return recognised_format(Path(source.dataset_path))


def read_log(kind: str, source: DatasetSource, target: Target | None = None) -> EpisodeLog:
    """Read and check every row of a dataset, before any is dropped."""
    kind = resolve_kind(kind, source)
    format = FORMATS.get(kind)
    if kind != "minari" and source.dataset_path is None:
        raise DataError(f"dataset_path is required by dataset_kind '{kind}'")
    return format.read(source, target or Target())


def load_transition_dataset(
    kind: str = AUTO,
    *,
    dataset_path: str | os.PathLike[str] | None = None,
    dataset_id: str | None = None,
    in_memory: bool = True,
    **fields: object,
) -> TransitionDataset:
    """Read a dataset of transitions in its own units; `in_memory=False` maps it from a cache on disk.

    Further keywords are dataset fields of a config: `columns={"observations": ["T", "level"], …}`,
    `missing_values="hold"` and so on.
    """
    path = None if dataset_path is None else os.fspath(dataset_path)
    source = DatasetSource.build({**fields, "dataset_path": path, "dataset_id": dataset_id})
    return load_source(kind, source, in_memory=in_memory)


def load_source(kind: str, source: DatasetSource, *, in_memory: bool = True) -> TransitionDataset:
    """The transitions that dataset fields describe."""
    if in_memory:
        return read_log(kind, source).to_dataset()
    from rl_training.data.disk_cache import cached_log

    return cached_log(kind, source).to_dataset()
