"""Columns that a table has and nobody sees: they may explain what observations leave open."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from rl_training.config.data import TABLE_KINDS, TableFields
from rl_training.core.errors import UserError
from rl_training.core.types import Array, Facts
from rl_training.data.convert import source_location
from rl_training.data.fields import FORMULA_COLUMNS
from rl_training.data.formats import get_format
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.read import ArrowTable, GivenData, as_dataset
from rl_training.data.reading import DataWarning
from rl_training.data.rows import as_array
from rl_training.data.tables.build import as_arrow, map_columns

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
