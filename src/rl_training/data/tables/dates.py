"""Dates as people write them: 31.12.2026 06:00, 12/31/2026 6:00 PM, with the name of a time zone behind."""

from __future__ import annotations

import re
from typing import Any

from rl_training.core.errors import DataError
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
