"""What the times of rows are used for first: clocks on the wall, and where a long log is cut."""

from __future__ import annotations

import numpy as np

from rl_training.config.data import TableFields
from rl_training.config.limits import DAY, EpisodeLength, parse_episode_length
from rl_training.core.errors import DataError
from rl_training.core.types import Array
from rl_training.data.episodes import BoolArray, episode_starts
from rl_training.data.tables.files import import_pyarrow

SECONDS_OF_A_DAY = 86_400.0
EARLIEST_DATE, LATEST_DATE = 1e8, 1e10
"""Seconds since 1970 that are dates, from 1973 on; smaller numbers count from a start of their own, larger
ones are no seconds."""


def local_times(times: Array, zone: str, place: str) -> Array:
    """Seconds of a clock on the wall as seconds of time: an hour that comes twice is two hours.

    When the clock is set back, the rows of one hour carry the same times as those of the hour before. Of such
    rows, those after a step backwards are the later ones.
    """
    pa = import_pyarrow()
    known = np.isfinite(times)
    clock = pa.array((np.where(known, times, 0.0) * 1e6).astype(np.int64)).cast(pa.timestamp("us"))
    try:
        first, second = (
            pa.compute.assume_timezone(clock, zone, ambiguous=which, nonexistent="latest")
            .cast(pa.int64())
            .to_numpy()
            / 1e6
            for which in ("earliest", "latest")
        )
    except pa.ArrowException:
        raise DataError(f"{place}: time_zone must be a name such as Europe/Berlin, got {zone!r}") from None
    twice = known & (first != second)
    rows = np.arange(len(times))
    begins = np.maximum.accumulate(np.where(~twice, rows, -1)) + 1  # of the stretch of rows that come twice
    back = np.concatenate([[False], np.diff(times) < 0]) & twice
    stepped = np.maximum.accumulate(np.where(back, rows, -1))
    later = twice & (stepped >= begins)
    return np.where(known, np.where(later, second, first), np.nan)


def calendar_days(times: Array) -> Array | None:
    """The day of each row, counted from 1970; none where times do not say which day it was."""
    known = np.isfinite(times)
    if not known.any() or times[known].min() < EARLIEST_DATE or times[known].max() > LATEST_DATE:
        return None
    last = np.maximum.accumulate(np.where(known, np.arange(len(times)), int(known.argmax())))
    days: Array = np.floor(times[last] / SECONDS_OF_A_DAY).astype(np.int32)
    return days


def cut_ends(
    times: Array | None, ends: BoolArray, settings: TableFields, place: str, notes: list[str]
) -> BoolArray:
    """True in the last row of each part into which `episode_length` cuts episodes."""
    cut = np.zeros(len(ends), dtype=bool)
    if settings.episode_length is None:
        return cut
    length = parse_episode_length(settings.episode_length)
    if length.rows is None and times is None:
        raise DataError(
            f"{place}: episode_length {length.text!r} needs the time of steps; set columns.time, or give "
            "rows (500 rows)"
        )
    whole = ends.copy()
    whole[-1:] = True
    starts = episode_starts(whole)
    first = np.repeat(starts, np.diff(np.append(starts, len(ends))))
    parts = _parts(np.arange(len(ends)) - first, times, first, length)
    cut[:-1] = (parts[1:] != parts[:-1]) & ~ends[:-1]
    count = int(cut.sum()) + len(starts)
    notes.append(
        f"episode_length {length.text} cuts the log into {count} episodes of {len(ends) / count:.0f} rows in "
        "the mean. Each end is a time-out: what follows still counts, as far as values foresee it. Episodes "
        "that follow each other are less independent than runs that begin anew, so the judge's intervals are "
        "rather too narrow where the plant remembers longer than a small part of an episode"
    )
    return cut


def _parts(row: Array, times: Array | None, first: Array, length: EpisodeLength) -> Array:
    """A number for each row that changes where a part begins; a row without a time stays in its part."""
    if length.rows is not None:
        return row // length.rows
    assert times is not None
    known = np.maximum.accumulate(np.where(np.isfinite(times), np.arange(len(times)), 0))
    held = times[known]
    if length.seconds is not None:
        # a part begins exactly on its time, although seconds are sums of fractions
        return np.floor((held - held[first]) / length.seconds + 1e-9)
    days = np.floor(held / DAY)
    return days * len(length.begins) + np.searchsorted(length.begins, held - days * DAY, side="right")
