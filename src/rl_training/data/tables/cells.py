"""Cells of a table as arrays: numbers with NaN where nothing stands, flags, episode codes and times."""

from __future__ import annotations

from typing import Any

import numpy as np

from rl_training.core.errors import DataError
from rl_training.data.episodes import Array
from rl_training.data.tables.files import import_pyarrow

FLAG_WORDS = {
    **dict.fromkeys(("1", "true", "t", "yes", "y", "on"), 1),
    **dict.fromkeys(("0", "false", "f", "no", "n", "off"), 0),
}
NO_FLAG = 2
"""Code of a flag cell that is empty."""

NO_EPISODE = -1
"""Code of an episode cell that is empty."""


def numbers(column: Any, name: str, where: str) -> Array:
    """A column of numbers, or of lists of equally many; an empty cell is NaN."""
    pa = import_pyarrow()
    kind = column.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _lists(column, name, where)
    if pa.types.is_dictionary(kind):
        column, kind = column.dictionary_decode(), kind.value_type
    if pa.types.is_null(kind) or pa.types.is_boolean(kind) or pa.types.is_decimal(kind):
        column = column.cast(pa.float64()) if not pa.types.is_boolean(kind) else column.cast(pa.uint8())
    elif not (pa.types.is_floating(kind) or pa.types.is_integer(kind)):
        raise DataError(
            f"{where}: {name} must hold numbers, but holds values of type {kind}{_example(column)}"
        )
    values: Array = column.to_numpy(zero_copy_only=False)
    return values


def flags(column: Any, name: str, where: str, start: int) -> Array:
    """1, 0, or `NO_FLAG` where the cell is empty; words such as yes and no are understood."""
    pa = import_pyarrow()
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return _codes(numbers(column, name, where), name, where, start)
    encoded = column.dictionary_encode()
    table = [_flag_of(word) for word in encoded.dictionary.to_pylist()]
    indices = encoded.indices.fill_null(len(table)).to_numpy(zero_copy_only=False)
    values = np.array([*table, np.nan])[indices]
    wrong = [index for index, value in enumerate(table) if value not in (0.0, 1.0)]
    if wrong:
        row = start + int(np.flatnonzero(np.isin(indices, wrong))[0])
        text = encoded.dictionary[int(wrong[0])].as_py()
        raise DataError(
            f"{where}: row {row} has {text!r} in the flag column {name!r}; flags are 0/1, true/false or "
            "yes/no"
        )
    return _codes(values, name, where, start)


def episode_codes(column: Any, known: dict[object, int]) -> Array:
    """Episodes as whole numbers in the order in which they first appear; `known` grows."""
    import pyarrow.compute as compute

    runs = compute.run_end_encode(column)
    values = runs.values.to_pylist()
    codes = [NO_EPISODE if value is None else known.setdefault(value, len(known)) for value in values]
    lengths = np.diff(runs.run_ends.to_numpy(), prepend=0)
    return np.repeat(np.array(codes, dtype=np.int32), lengths)


def times(column: Any, name: str, where: str, start: int) -> Array:
    """Numbers as they are, dates and times as seconds; an empty cell is NaN."""
    pa = import_pyarrow()
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        column = _parsed_times(column, name, where, start)
    if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type) or pa.types.is_time(column.type):
        unit = pa.time64("us") if pa.types.is_time(column.type) else pa.timestamp("us")
        ticks = column.cast(unit).cast(pa.int64())
        seconds = ticks.fill_null(0).to_numpy(zero_copy_only=False) / 1e6
        seconds[ticks.is_null().to_numpy(zero_copy_only=False)] = np.nan
        return np.asarray(seconds)
    return numbers(column, name, where).astype(np.float64)


def _parsed_times(column: Any, name: str, where: str, start: int) -> Any:
    """Text as numbers, or as ISO dates and times with or without a zone."""
    pa = import_pyarrow()
    for kind in (pa.timestamp("us"), pa.timestamp("us", tz="UTC"), pa.float64()):
        try:
            return column.cast(kind)
        except pa.ArrowException:
            continue
    for row, text in enumerate(column.to_pylist()):
        try:
            if text is not None:
                pa.scalar(text).cast(pa.timestamp("us", tz="UTC" if text.endswith("Z") else None))
        except pa.ArrowException:
            raise DataError(
                f"{where}: row {start + row} has {text!r} in the time column {name!r}; times are numbers "
                "or ISO dates and times such as 2026-03-01T06:00:30"
            ) from None
    raise DataError(f"{where}: the time column {name!r} mixes several ways to write times")


def _lists(column: Any, name: str, where: str) -> Array:
    pa = import_pyarrow()
    if column.null_count:
        row = column.is_null().to_pylist().index(True)
        raise DataError(f"{where}: {name} has no value at row {row}; remove or repair such rows")
    if pa.types.is_fixed_size_list(column.type):
        width = column.type.list_size
    else:
        lengths = column.value_lengths().to_numpy(zero_copy_only=False)
        width = int(lengths[0]) if len(lengths) else 0
        other = np.flatnonzero(lengths != width)
        if len(other):
            row = int(other[0])
            raise DataError(f"{where}: {name} has {lengths[row]} numbers at row {row}, but {width} before")
    return numbers(column.flatten(), name, where).reshape(len(column), width)


def _codes(values: Array, name: str, where: str, start: int) -> Array:
    missing = np.zeros(len(values), dtype=bool) if values.dtype.kind in "biu" else np.isnan(values)
    wrong = np.flatnonzero(~missing & (values != 0) & (values != 1))
    if len(wrong):
        row = int(wrong[0])
        raise DataError(
            f"{where}: {name} must be 0 or 1 in every row, but row {start + row} is {values[row]:g}"
        )
    codes: Array = values.astype(np.uint8) if not missing.any() else np.where(missing, NO_FLAG, values)
    return codes.astype(np.uint8, copy=False)


def _flag_of(word: str) -> float:
    known = FLAG_WORDS.get(word.strip().lower())
    if known is not None:
        return float(known)
    try:
        return float(word)
    except ValueError:
        return -1.0


def _example(column: Any) -> str:
    """` such as 'abc'`, the first cell that is not empty."""
    value = next((cell for cell in column.slice(0, 1000).to_pylist() if cell is not None), None)
    return "" if value is None else f" such as {str(value)[:40]!r}"
