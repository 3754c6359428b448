"""Datasets by the fields of a config: rows of any format as transitions, in memory or mapped from a cache."""

from __future__ import annotations

import os

from rl_training.config.data import AUTO, DatasetSource, source_kinds
from rl_training.core.errors import WrongTypeError
from rl_training.data.disk import cached_log
from rl_training.data.formats import read_source
from rl_training.data.offline_dataset import TransitionDataset


def load_transition_dataset(
    kind: str | os.PathLike[str] = AUTO,
    *,
    dataset_path: str | os.PathLike[str] | None = None,
    dataset_id: str | None = None,
    in_memory: bool = True,
    **fields: object,
) -> TransitionDataset:
    """Read a dataset of transitions in its own units; `in_memory=False` maps it from a cache on disk.

    `load_transition_dataset("log.csv")` recognises the format, `load_transition_dataset("hdf5",
    dataset_path=…)` names it.

    Further keywords are dataset fields of a config: `columns={"observations": ["T", "level"], …}`,
    `missing_values="hold"` and so on.
    """
    if not isinstance(kind, str | os.PathLike):
        raise WrongTypeError(f"kind must be a dataset_kind or the path of a log, got {type(kind).__name__}")
    kind = os.fspath(kind)
    named = dataset_path is not None or dataset_id is not None or kind in source_kinds()
    if not named and (os.path.exists(kind) or any(sign in kind for sign in "./\\*?[")):
        kind, dataset_path = AUTO, kind  # where a log lies, and no misspelled kind
    path = None if dataset_path is None else os.fspath(dataset_path)
    source = DatasetSource.build({**fields, "dataset_path": path, "dataset_id": dataset_id})
    return load_source(kind, source, in_memory=in_memory)


def load_source(kind: str, source: DatasetSource, *, in_memory: bool = True) -> TransitionDataset:
    """The transitions that dataset fields describe."""
    return TransitionDataset.from_log((read_source if in_memory else cached_log)(kind, source))
