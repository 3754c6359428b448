"""Cells of a table as arrays: numbers with NaN where nothing stands, flags, episode codes, dates, times."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from rl_training.core.errors import DataError
from rl_training.core.spaces import Choice
from rl_training.core.types import Array
from rl_training.data.tables.files import import_pyarrow

_DATE = r"^(?P<one>\d{1,2})(?P<sign>[./-])(?P<two>\d{1,2})[./-](?P<year>\d{4}|\d{2})(?:$|[ T]+)(?P<clock>.*)$"
_DATED = re.compile(_DATE)
_ZONED = r"^(?P<clock>.*\d) ?(?P<zone>[A-Z]{3,4}|[A-Z][A-Za-z]+/[A-Za-z_/]+)$"
_CLOCK = (
    r"^(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2}))?(?:[.,](?P<part>\d{1,6})\d*)? ?"
    r"(?P<half>[AaPp][Mm])?$"
)
_HOURS = {
    **{"UTC": 0, "GMT": 0, "WET": 0, "BST": 1, "WEST": 1, "CET": 1, "CEST": 2, "MEZ": 1, "MESZ": 2, "EET": 2},
    **{"EEST": 3, "EST": -5, "EDT": -4, "CST": -6, "CDT": -5, "MST": -7, "MDT": -6, "PST": -8, "PDT": -7},
}
"""Hours before UTC of zones that have letters."""


def parsed_dates(column: Any, name: str, where: str, start: int, order: str | None) -> Any:
    """Timestamps of text with a day or month first or a named zone; None for text of another kind."""
    pa = import_pyarrow()
    texts = column.drop_null()
    if not len(texts):
        return None
    zone = None
    if re.match(_ZONED, texts[0].as_py()):
        column, zone = _without_zone(column, name, where, start)
    elif _DATED.match(texts[0].as_py()) is None:
        return None
    if _DATED.match(column.drop_null()[0].as_py()):
        column = _iso(column, name, where, start, order)
    try:
        stamps = column.cast(pa.timestamp("us"))
    except pa.ArrowException:
        row, text = _first_wrong(column)
        raise _no_time(where, start + row, name, text) from None
    if zone is None:
        return stamps
    if zone in _HOURS:
        return pa.compute.subtract(stamps, pa.scalar(3_600_000_000 * _HOURS[zone], pa.duration("us")))
    try:
        return pa.compute.assume_timezone(stamps, zone, ambiguous="earliest", nonexistent="latest")
    except pa.ArrowException:
        raise DataError(
            f"{where}: the times of column {name!r} are in the zone {zone!r}, which is not known; write them "
            "in UTC, or leave the zone out and set time_zone"
        ) from None


def _without_zone(column: Any, name: str, where: str, start: int) -> tuple[Any, str]:
    """The column without the zone behind its times; letters such as CET and CEST may change between rows."""
    pa = import_pyarrow()
    parts = _parts(column, _ZONED, name, where, start)
    clock, zones = pa.compute.struct_field(parts, "clock"), pa.compute.struct_field(parts, "zone")
    found = zones.unique().drop_null().to_pylist()
    if len(found) == 1:
        return clock, str(found[0])
    if set(found) <= _HOURS.keys():
        offsets = pa.array(
            [None if zone is None else f"{_HOURS[zone]:+03d}:00" for zone in zones.to_pylist()]
        )
        stamps = pa.compute.binary_join_element_wise(clock, offsets, "").cast(pa.timestamp("us", tz="UTC"))
        return stamps.cast(pa.timestamp("us")).cast(pa.string()), "UTC"
    raise DataError(f"{where}: the time column {name!r} mixes the zones {', '.join(map(str, found[:4]))}")


def _iso(column: Any, name: str, where: str, start: int, order: str | None) -> Any:
    """Dates with the day or the month first, as year-month-day."""
    pa = import_pyarrow()
    compute = pa.compute
    parts = _parts(column, _DATE, name, where, start)
    one, two, year, clock = (compute.struct_field(parts, part) for part in ("one", "two", "year", "clock"))
    first = _order(one, two, compute.struct_field(parts, "sign"), name, where, order)
    day, month = (one, two) if first == "day" else (two, one)
    year = compute.if_else(
        compute.equal(compute.utf8_length(year), 2), compute.binary_join_element_wise("20", year, ""), year
    )
    two_digits = [compute.utf8_lpad(each, 2, "0") for each in (month, day)]
    dates = compute.binary_join_element_wise(year, *two_digits, "-")
    clock = compute.if_else(compute.equal(clock, ""), "0:00", clock)
    return compute.binary_join_element_wise(dates, _of_day(_parts(clock, _CLOCK, name, where, start)), " ")


def _parts(column: Any, pattern: str, name: str, where: str, start: int) -> Any:
    """The groups of a pattern that every cell must have, but for empty ones."""
    parts = import_pyarrow().compute.extract_regex(column, pattern)
    missing = parts.is_null().to_numpy(zero_copy_only=False) & column.is_valid().to_numpy(
        zero_copy_only=False
    )
    if missing.any():
        row = int(missing.argmax())
        raise _no_time(where, start + row, name, str(column[row].as_py()))
    return parts


def _order(one: Any, two: Any, signs: Any, name: str, where: str, order: str | None) -> str:
    """Whether the day or the month stands first: as told, by the dots of most of the world, or by a 13th."""
    compute = import_pyarrow().compute
    if order is not None:
        return order
    days = [compute.max(each.cast("int8")).as_py() or 0 for each in (one, two)]
    if signs.drop_null()[0].as_py() == "." or (days[0] > 12 >= days[1]):
        return "day"
    if days[1] > 12 >= days[0]:
        return "month"
    raise DataError(
        f"{where}: dates such as {one[0]}/{two[0]} in column {name!r} may begin with the day or the month; "
        "set date_order to day or month"
    )


def _of_day(parts: Any) -> Any:
    """Times of the day with two digits, seconds, and no AM or PM."""
    pa = import_pyarrow()
    compute = pa.compute
    hour = compute.struct_field(parts, "hour").cast(pa.int8())
    half = compute.utf8_lower(compute.struct_field(parts, "half"))
    afternoon = compute.and_(compute.equal(half, "pm"), compute.less(hour, 12))
    hour = compute.if_else(afternoon, compute.add(hour, pa.scalar(12, pa.int8())), hour)
    midnight = compute.and_(compute.equal(half, "am"), compute.equal(hour, 12))
    hour = compute.if_else(midnight, pa.scalar(0, pa.int8()), hour)
    second, fraction = (
        compute.if_else(compute.equal(given, ""), "0", given)
        for given in (compute.struct_field(parts, "second"), compute.struct_field(parts, "part"))
    )
    pieces = [hour.cast(pa.string()), compute.struct_field(parts, "minute"), second]
    clock = compute.binary_join_element_wise(*(compute.utf8_lpad(each, 2, "0") for each in pieces), ":")
    return compute.binary_join_element_wise(clock, fraction, ".")


def _first_wrong(column: Any) -> tuple[int, str]:
    pa = import_pyarrow()
    for row, text in enumerate(column.to_pylist()):
        try:
            pa.array([text]).cast(pa.timestamp("us"))
        except pa.ArrowException:
            return row, str(text)
    return 0, str(column[0])


def _no_time(where: str, row: int, name: str, text: str) -> DataError:
    return DataError(
        f"{where}: row {row} has {text!r} in the time column {name!r}, which is no date like the others"
    )


FLAG_WORDS = {
    **dict.fromkeys(("1", "true", "t", "yes", "y", "on", "ja", "ein", "wahr", "running", "open"), 1),
    **dict.fromkeys(("0", "false", "f", "no", "n", "off", "nein", "aus", "falsch", "stopped", "closed"), 0),
}
NO_FLAG = 2
"""Code of a flag cell that is empty."""

NO_EPISODE = -1
"""Code of an episode cell that is empty."""


_MARKED = re.compile(r"[+-]?\d{1,3}([., '\u00a0]\d{3})+([.,]\d+)?")


def numbers(column: Any, name: str, where: str, start: int = 0, *, words: bool = False) -> Array:
    """A column of numbers, or of lists of equally many; an empty cell is NaN. `start` is its first row.

    With `words`, on and off and the like are 1 and 0.
    """
    pa = import_pyarrow()
    column = plain(column)
    kind = column.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _lists(column, name, where, start)
    if _is_text(column):
        column = _parsed_numbers(column, name, where, start, words)
    elif pa.types.is_null(kind) or pa.types.is_boolean(kind) or pa.types.is_decimal(kind):
        column = column.cast(pa.float64()) if not pa.types.is_boolean(kind) else column.cast(pa.uint8())
    elif not (pa.types.is_floating(kind) or pa.types.is_integer(kind)):
        raise DataError(f"{where}: {name} must hold numbers, but holds values of type {kind}")
    values: Array = column.to_numpy(zero_copy_only=False)
    return values


def levels(column: Any, choice: Choice, name: str, where: str, start: int) -> Array:
    """The number of each cell's level; an empty cell is NaN, another word is refused."""
    column = plain(column)
    refuse_nested(column, name, where)
    encoded = column.dictionary_encode()
    words = encoded.dictionary.to_pylist()
    places = [choice.place(word) for word in words]
    indices = encoded.indices.fill_null(len(words)).to_numpy(zero_copy_only=False)
    wrong = [index for index, place in enumerate(places) if place < 0]
    if wrong and np.isin(indices, wrong).any():
        row = start + int(np.flatnonzero(np.isin(indices, wrong))[0])
        raise DataError(
            f"{where}: row {row} has {words[int(indices[row - start])]!r} in {name!r}, which is {choice}; "
            f"give every level as the log writes it: {name}{{…}}"
        )
    table = np.array([*(choice.numbers[place] for place in places), np.nan], dtype=np.float64)
    values: Array = table[indices]
    return values


def flags(column: Any, name: str, where: str, start: int) -> Array:
    """1, 0, or `NO_FLAG` where the cell is empty; words such as yes and no are understood."""
    column = plain(column)
    if not _is_text(column):
        return _codes(numbers(column, name, where, start), name, where, start)
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


def refuse_nested(column: Any, name: str, where: str) -> None:
    """Flags, times and ids of episodes are single values."""
    if import_pyarrow().types.is_nested(column.type):
        raise DataError(
            f"{where}: {name} must hold one value per row, a number or text, but holds values of type "
            f"{column.type}"
        )


def codes(column: Any, known: dict[object, int]) -> Array:
    """Ids, as of episodes, as whole numbers in the order in which they first appear; `known` grows."""
    runs = import_pyarrow().compute.run_end_encode(plain(column))
    values = runs.values.to_pylist()
    codes = [NO_EPISODE if value is None else known.setdefault(value, len(known)) for value in values]
    lengths = np.diff(runs.run_ends.to_numpy(), prepend=0)
    return np.repeat(np.array(codes, dtype=np.int32), lengths)


def times(column: Any, name: str, where: str, start: int, order: str | None = None) -> Array:
    """Numbers as they are, dates and times as seconds; an empty cell is NaN.

    `order` says what comes first in dates such as 03/04/2026, `day` or `month`.
    """
    pa = import_pyarrow()
    column = plain(column)
    if _is_text(column):
        column = _parsed_times(column, name, where, start, order)
    if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type) or pa.types.is_time(column.type):
        unit = pa.time64("us") if pa.types.is_time(column.type) else pa.timestamp("us")
        ticks = column.cast(unit, safe=False).cast(pa.int64())
        seconds = ticks.fill_null(0).to_numpy(zero_copy_only=False) / 1e6
        seconds[ticks.is_null().to_numpy(zero_copy_only=False)] = np.nan
        return np.asarray(seconds)
    return numbers(column, name, where, start).astype(np.float64)


def plain(column: Any) -> Any:
    """The same cells without the ways to store them that Arrow computes little with (categories, views)."""
    pa = import_pyarrow()
    if pa.types.is_dictionary(column.type):
        column = plain(column.dictionary).take(column.indices)
    return column.cast(pa.large_string()) if pa.types.is_string_view(column.type) else column


def _is_text(column: Any) -> bool:
    pa = import_pyarrow()
    return bool(pa.types.is_string(column.type) or pa.types.is_large_string(column.type))


def _parsed_times(column: Any, name: str, where: str, start: int, order: str | None) -> Any:
    """Text as numbers, as dates and times with or without a zone, or as times of the day."""
    pa = import_pyarrow()
    column = pa.compute.utf8_trim_whitespace(column)
    if (dates := parsed_dates(column, name, where, start, order)) is not None:
        return dates
    for way in _TIME_WAYS:
        try:
            return way(pa, column)
        except pa.ArrowException:
            continue
    for row, text in enumerate(column.to_pylist()):
        if text is not None and not any(_reads(pa, way, text) for way in _TIME_WAYS):
            raise DataError(
                f"{where}: row {start + row} has {text!r} in the time column {name!r}; times are numbers "
                "or dates and times such as 2026-03-01T06:00:30 or 01.03.2026 06:00"
            )
    raise DataError(f"{where}: the time column {name!r} mixes several ways to write times")


_TIME_WAYS: tuple[Callable[[Any, Any], Any], ...] = (
    lambda pa, column: column.cast(pa.timestamp("us")),
    lambda pa, column: column.cast(pa.timestamp("us", tz="UTC")),
    lambda pa, column: column.cast(pa.float64()),
    lambda pa, column: column.cast(pa.timestamp("ns")),
    lambda pa, column: column.cast(pa.timestamp("ns", tz="UTC")),
    lambda pa, column: _of_the_day(pa, column),
    lambda pa, column: pa.compute.replace_substring(column, ",", ".").cast(pa.float64()),
)
"""How text can stand for times, in the order in which it is tried; a decimal comma comes last."""


def _of_the_day(pa: Any, column: Any) -> Any:
    return pa.compute.binary_join_element_wise("1970-01-01", column, "T").cast(pa.timestamp("us"))


def _reads(pa: Any, way: Callable[[Any, Any], Any], text: str) -> bool:
    try:
        way(pa, pa.array([text]))
    except pa.ArrowException:
        return False
    return True


def _parsed_numbers(column: Any, name: str, where: str, start: int, words: bool) -> Any:
    """Numbers that were stored as text; words such as on and off are 1 and 0."""
    pa = import_pyarrow()
    try:
        return column.cast(pa.float64())
    except pa.ArrowException:
        if words and (codes := flag_numbers(column)) is not None:
            return codes
        cells = enumerate(column.to_pylist())
        row, text = next((r, t) for r, t in cells if t is not None and not is_number(t))
        raise wrong_number(where, start + row, name, text) from None


def flag_numbers(column: Any) -> Any:
    """1 and 0 for words such as on and off, empty where nothing stands; None if there are other words."""
    encoded = column.dictionary_encode()
    words = [str(word).strip().lower() for word in encoded.dictionary.to_pylist()]
    if not words or not set(words) <= FLAG_WORDS.keys():
        return None
    pa = import_pyarrow()
    return pa.array([float(FLAG_WORDS[word]) for word in words]).take(encoded.indices)


def wrong_number(where: str, row: int, name: str, text: str, line: str = "") -> DataError:
    """Text where a number should stand."""
    marks = "set csv_thousands if it has marks between thousands, " if _MARKED.fullmatch(text.strip()) else ""
    return DataError(
        f"{where}: row {row}{line} has {text!r} in the number column {name!r}; {marks}leave the column out, "
        "repair the cell (an empty one is a missing value), or, of an action that is a choice, give its "
        f"levels: --action '{name}{{{text},…}}'"
    )


def is_number(text: str) -> bool:
    """Whether text reads as a number."""
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text


def _lists(column: Any, name: str, where: str, start: int) -> Array:
    """Lists of equally many numbers as rows of a matrix; one that is not there is a row of NaN."""
    given = column.drop_null()
    lengths = import_pyarrow().compute.list_value_length(given).to_numpy(zero_copy_only=False)
    width = int(lengths[0]) if len(lengths) else 0
    present = column.is_valid().to_numpy(zero_copy_only=False)
    other = np.flatnonzero(lengths != width)
    if len(other):
        row = start + int(np.flatnonzero(present)[other[0]])
        raise DataError(f"{where}: {name} has {lengths[other[0]]} numbers at row {row}, but {width} before")
    matrix = numbers(given.flatten(), name, where).reshape(len(given), width)
    if present.all():
        return matrix
    whole = np.full((len(column), width), np.nan, dtype=np.result_type(matrix.dtype, np.float32))
    whole[present] = matrix
    return whole


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
