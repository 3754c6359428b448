"""Data as people have it, as a dataset: arrays by name, a data frame, a place, or the fields of a config."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from rl_training.config.data import (
    ASKED_FIELDS,
    AUTO,
    TABLE_KINDS,
    DatasetSource,
    TableFields,
    columns_among,
    source_kinds,
)
from rl_training.core.errors import ConfigError, UserError, WrongTypeError
from rl_training.core.types import Array, Facts
from rl_training.data.convert import read_location, source_location
from rl_training.data.disk import cached_log, cached_signals
from rl_training.data.fields import FORMULA_COLUMNS
from rl_training.data.formats import get_format, read_source
from rl_training.data.log import EpisodeLog
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.reading import DataWarning
from rl_training.data.rows import as_array
from rl_training.data.tables.build import as_arrow, frame_log, map_columns


@runtime_checkable
class ArrowTable(Protocol):
    """What pandas, polars and Arrow tables have in common."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


GivenData = TransitionDataset | Mapping[str, npt.ArrayLike] | ArrowTable | str | os.PathLike[str]
"""A dataset, arrays by name, a data frame (pandas, polars, Arrow), or a path"""


def read_log(
    source: str | os.PathLike[str] | ArrowTable | Mapping[str, npt.ArrayLike],
    *,
    observations: str | Sequence[str] = (),
    actions: str | Sequence[str] = (),
    reward: str | None = None,
    next_observations: str | Sequence[str] = (),
    episode: str | None = None,
    time: str | None = None,
    terminated: str | None = None,
    truncated: str | None = None,
    behavior_logprobs: str | None = None,
    operator: str | None = None,
    units: Mapping[str, str] | None = None,
    **fields: object,
) -> TransitionDataset:
    """Read a log: a file, folder, pattern or Minari id, a data frame, or arrays by name.

    Keywords name the columns of a table (`obs_*` stands for all that match); files that say themselves what
    is what need none. Further keywords are dataset fields of a config (`missing_values="hold"`, `max_gap`,
    …). Without `reward`, only behaviour cloning can train on it.
    """
    named: dict[str, object] = {"observations": observations, "actions": actions, "reward": reward}
    named |= {"next_observations": next_observations, "episode": episode, "time": time}
    named |= {"terminated": terminated, "truncated": truncated, "behavior_logprobs": behavior_logprobs}
    columns, others = columns_among({**named, "operator": operator, "units": units, **fields})
    return as_dataset(source, columns, others, name="source")


def as_dataset(
    given: GivenData, columns: Facts | None = None, fields: Facts | None = None, *, name: str = "dataset"
) -> TransitionDataset:
    """Data in whatever form it is given, as a dataset.

    `columns` and further dataset `fields` of a config say how a table is read; arrays by name are read as
    one where there are any.
    """
    columns, fields = columns or {}, fields or {}
    if isinstance(given, TransitionDataset):
        asked = TableFields.build({key: fields[key] for key in ASKED_FIELDS if key in fields})
        given = given.with_costs(asked.costs)
        return given if given.info.signals is not None else given.with_history(asked.history, asked.rate)
    if isinstance(given, str | os.PathLike):
        mapped = {**fields, "columns": columns} if columns else fields
        log = read_location(source_location(os.fspath(given)), fields=mapped)
        return TransitionDataset.from_log(log)
    if isinstance(given, Mapping) and not (columns or fields):
        return TransitionDataset.from_dict(given)
    if isinstance(given, Mapping | ArrowTable):
        for needed in ("observations", "actions"):
            if needed not in columns:
                raise ConfigError(
                    f"columns.{needed} is required with a data frame: columns={{{needed!r}: […], …}}"
                )
        settings = TableFields.build({**fields, "columns": columns})
        return TransitionDataset.from_log(frame_log(given, settings, "data frame"))
    raise WrongTypeError(
        f"{name} must be a TransitionDataset, a mapping of arrays, a data frame or a path, "
        f"got {type(given).__name__}"
    )


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
    return transitions_of(load_log(kind, source, in_memory=in_memory), in_memory=in_memory)


def load_log(kind: str, source: DatasetSource, *, in_memory: bool = True) -> EpisodeLog:
    """The log that dataset fields describe, as it was recorded."""
    return (read_source if in_memory else cached_log)(kind, source)


def transitions_of(
    log: EpisodeLog, *, in_memory: bool = True, first_action: Sequence[float] = ()
) -> TransitionDataset:
    """The transitions of a log; `first_action` fills the past where an episode begins (none: its mean)."""
    return TransitionDataset.from_log(log if in_memory else cached_signals(log, first_action), first_action)


MOST_UNUSED = 30
"""Columns that are looked at: each is read by itself."""

UNSEEN = ("operators", FORMULA_COLUMNS)
"""Roles in which a column is known and yet no observation."""


@dataclass(frozen=True)
class UnusedColumn:
    """One column, row by row of a dataset."""

    name: str
    values: Array
    """numbers; of words their places among `words`"""
    words: tuple[str, ...] = ()


def unused_columns(
    given: GivenData, columns: Facts, fields: Facts, read: TransitionDataset
) -> Iterator[UnusedColumn]:
    """What else stands in the table that `read` was read from, as far as it has a value in every row.

    Nothing for data that is no table, and nothing where reading it again does not give the same rows.
    """
    try:
        names = names_of_unused(given, columns, fields)
    except UserError:  # it was read as another kind than it looks like
        return
    for name in names[:MOST_UNUSED]:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DataWarning)  # said before
                again = as_dataset(given, {**columns, "operator": name}, fields)
        except UserError:  # empty cells, or lists
            continue
        if np.array_equal(as_array(again.rewards), as_array(read.rewards)):
            yield _as_numbers(name, as_array(again.store.whole("operators")), again.info.operator_names)


def names_of_unused(given: GivenData, columns: Facts, fields: Facts) -> list[str]:
    """Columns that are neither seen nor done nor earned, nor say where episodes end."""
    if isinstance(given, str | os.PathLike):
        place = source_location(os.fspath(given))
        list_keys = get_format(place.kind).keys
        if place.kind not in TABLE_KINDS or place.path is None or list_keys is None:
            return []
        names = list_keys(place.path)
    elif columns and isinstance(given, Mapping | ArrowTable):
        names = list(as_arrow(given).column_names)
    else:
        return []
    plain = {name: fields[name] for name in TableFields.model_fields if name in fields}
    used = map_columns(names, TableFields.build({**plain, "columns": columns}), "data")
    taken = {column for role, group in used.items() if role not in UNSEEN for column in group}
    return [name for name in names if name not in taken]


def _as_numbers(name: str, codes: Array, words: tuple[str, ...]) -> UnusedColumn:
    try:
        numbers = np.array([float(word) for word in words])
    except ValueError:
        return UnusedColumn(name, codes.astype(np.float64), words)
    return UnusedColumn(name, numbers[codes.astype(np.int64)])
