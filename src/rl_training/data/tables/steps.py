"""Rows become steps of episodes: clocks, where episodes end, how long steps last, empty cells."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rl_training.config.data import TableFields
from rl_training.config.limits import DAY, EpisodeLength, parse_episode_length
from rl_training.core.errors import DataError
from rl_training.core.types import Array
from rl_training.data.episodes import BoolArray, IntArray, episode_starts
from rl_training.data.fields import END_FLAGS, FIELDS, FORMULA_COLUMNS
from rl_training.data.formulas import Formulas, formula_rows
from rl_training.data.reading import row_chunks
from rl_training.data.tables.cells import NO_EPISODE, NO_FLAG
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


UNEVEN_STEP = 0.01
"""A step that differs from the median by more than this share counts as uneven."""

ADJACENT_STEPS = 10
"""Rows further apart than this many median steps are not adjacent in time."""


@dataclass
class Steps:
    """Columns of all rows as they were read, and what is needed to talk about them."""

    columns: dict[str, Array]
    fields: dict[str, list[str]]
    file_starts: list[int]
    place: Callable[[int], str]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.columns["obs"])

    def file(self, row: int) -> str:
        """The file of a row."""
        return self.place(row).rpartition(": ")[0]


def settle_steps(steps: Steps, settings: TableFields, formulas: Formulas, *, lenient: bool) -> Steps:
    """Columns that `EpisodeLog.build` understands: ends marked, times as durations, empty cells settled,
    formulas of one value computed.
    """
    notes: list[str] = []
    timed = "times" in steps.columns
    if settings.time_zone is not None:
        _use_local_clock(steps, settings.time_zone)
    ends = _id_ends(steps, settings) | _file_ends(steps, settings, notes)
    _compute_flags(steps, formulas, ends | _long_gaps(steps, settings))
    if timed:
        ends |= _gaps(steps, ends | _flag_ends(steps), settings, notes)
    elif settings.max_gap is not None or settings.discount_by_time:
        wanted = "max_gap" if settings.max_gap is not None else "discount_by_time"
        raise DataError(f"{steps.file(0)}: {wanted} needs the time of steps; set columns.time")
    ends |= cut_ends(steps.columns.get("times"), ends | _flag_ends(steps), settings, steps.file(0), notes)
    notes += _one_episode(steps, ends)
    missing = _missing_rows(steps, lenient)
    columns = {name: values for name, values in steps.columns.items() if name not in ("times", "episode_ids")}
    columns.setdefault("rewards", np.zeros(len(steps), dtype=np.float32))
    if not {"terminated", "dones"} & columns.keys():
        columns["terminated"] = np.zeros(len(steps), dtype=bool)
    if timed:
        columns["durations"] = _durations(steps.columns["times"], ends, notes)
        if (days := calendar_days(steps.columns["times"])) is not None:
            columns["days"] = days
    marked = timed or bool(ends[:-1].any()) or "episode_ids" in steps.columns
    if missing.any():
        notes.append(_missing_note(steps, missing, settings))
        ends = _without_empty(steps, columns, ends, missing, settings, lenient)
        marked = marked or settings.missing_values != "error"
    if marked:
        columns["episode_ends"] = ends
    if formulas.columns:
        notes += _compute_numbers(steps, columns, formulas, lenient)
    return Steps(columns, steps.fields, steps.file_starts, steps.place, tuple(notes))


def _use_local_clock(steps: Steps, zone: str) -> None:
    if "times" not in steps.columns:
        raise DataError(f"{steps.file(0)}: time_zone needs the time of steps; set columns.time")
    steps.columns["times"] = local_times(steps.columns["times"], zone, steps.file(0))


def _compute_flags(steps: Steps, formulas: Formulas, ends: BoolArray) -> None:
    """Flags that are formulas; where a cell is empty, a comparison does not hold."""
    rows = formula_rows(formulas, steps.columns, ends, steps.place)
    for name, values in rows.computed("flag").items():
        steps.columns[name] = (np.nan_to_num(values) != 0.0).astype(np.uint8)


def _compute_numbers(steps: Steps, columns: dict[str, Array], formulas: Formulas, lenient: bool) -> list[str]:
    """Numbers that are formulas, into `columns`; a row that needs one that never came is left out.

    The last row of an episode that was only cut stays, as what followed the row before it. A termination
    passes to the row before.
    """
    ends = np.zeros(len(columns["obs"]), dtype=bool)
    for name in END_FLAGS:
        ends |= columns[name] == 1 if name in columns else False
    ends[-1:] = True
    whole = len(ends) == len(steps)
    place = steps.place if whole else lambda row: f"{steps.file(0)}: row {row} of those that are left"
    rows = formula_rows(formulas, columns, ends, place)
    found, costs = rows.computed("number", lenient=lenient), rows.costs(lenient=lenient)
    del columns[FORMULA_COLUMNS]
    alone = rows.without_successor()
    terminated = np.asarray(columns.get("terminated", columns.get("dones"))) == 1
    lost = alone & (terminated | ("next_obs" in columns))
    for name, values in found.items():
        columns[name] = np.where(alone, 0.0, values).astype(np.float32)
    if costs:
        columns["costs"] = np.where(alone[:, None], 0.0, np.stack(costs, axis=1)).astype(np.float32)
    if not lost.any() or lenient:
        return []
    before = np.flatnonzero(lost[1:] & ~ends[:-1])
    flag = "terminated" if "terminated" in columns else "dones"
    columns[flag] = columns[flag].copy()
    columns[flag][before] = terminated[before + 1]
    columns["episode_ends"] = _drop(columns, ends, lost)
    return [
        f"next(x) is not known in the last row of {int(lost.sum())} episodes: these rows are left out, "
        "and what ended there ends a row before"
    ]


def _without_empty(
    steps: Steps,
    columns: dict[str, Array],
    ends: BoolArray,
    missing: BoolArray,
    settings: TableFields,
    lenient: bool,
) -> BoolArray:
    """Apply `missing_values` to `columns`; returns where episodes end now."""
    if settings.missing_values == "error":
        if not lenient:
            raise DataError(_missing_message(steps, int(np.flatnonzero(missing)[0])))
        flags = [name for name in columns if FIELDS.get(name).kind == "flag"]
        columns |= {name: columns[name] == 1 for name in flags}
        return ends
    if settings.missing_values == "hold":
        missing = _hold(steps, ends | _flag_ends(steps))
    ends = _drop(columns, ends, missing)
    if not len(ends):
        raise DataError(f"{steps.file(0)}: every row has an empty cell; none is left")
    return ends


def _id_ends(steps: Steps, settings: TableFields) -> BoolArray:
    """True where the next row belongs to another episode; an episode must not come back later.

    Ids count in their own file, unless `files_end_episodes: false` says that they hold for all files.
    """
    ends = np.zeros(len(steps), dtype=bool)
    codes = steps.columns.get("episode_ids")
    if codes is None:
        return ends
    ends[:-1] = codes[1:] != codes[:-1]
    starts, pieces = _pieces(steps, codes, by_file=settings.files_end_episodes is not False)
    first = np.unique(pieces, axis=0, return_index=True)[1]
    if len(first) < len(pieces) and not (codes == NO_EPISODE).any():
        again = int(np.setdiff1d(np.arange(len(pieces)), first)[0])
        row, name = int(starts[again]), steps.fields["episode_ids"][0]
        earlier = int(starts[np.flatnonzero((pieces == pieces[again]).all(axis=1))[0]])
        hint = "sort the rows by episode and time"
        if len(steps.file_starts) > 1 and settings.files_end_episodes is False:
            hint += "; if ids count anew in every file, set files_end_episodes: true"
        raise DataError(
            f"{steps.place(row)} goes back to an episode of column {name!r} that began at "
            f"{steps.place(earlier).rpartition('/')[2]} and had ended; {hint}"
        )
    return ends


def _pieces(steps: Steps, codes: Array, *, by_file: bool) -> tuple[IntArray, IntArray]:
    """First rows of the pieces with one id, and (file, id) of each; `by_file` cuts where a file ends."""
    begins = np.concatenate([[True], codes[1:] != codes[:-1]])
    if by_file:
        begins[[start for start in steps.file_starts if start < len(steps)]] = True
    starts = np.flatnonzero(begins & (codes != NO_EPISODE))
    files = np.searchsorted(steps.file_starts, starts, side="right") if by_file else np.zeros_like(starts)
    return starts, np.stack([files, codes[starts]], axis=1)


def _file_ends(steps: Steps, settings: TableFields, notes: list[str]) -> BoolArray:
    """True in the last row of a file, except where an episode goes on in the next."""
    ends = np.zeros(len(steps), dtype=bool)
    borders = np.unique([start - 1 for start in steps.file_starts if 0 < start < len(steps)]).astype(np.int64)
    if settings.files_end_episodes is False:
        return ends
    ends[borders] = True
    codes = steps.columns.get("episode_ids")
    if settings.files_end_episodes is None and codes is not None and len(borders):
        same = borders[(codes[borders] == codes[borders + 1]) & (codes[borders] != NO_EPISODE)]
        going_on = same[_adjacent(steps, settings, same)]
        ends[going_on] = False
        notes += _notes_on_files(steps, codes, len(going_on))
    return ends


def _adjacent(steps: Steps, settings: TableFields, borders: IntArray) -> BoolArray:
    """Where time says that the first row of a file is the next step after the last row of the file before."""
    if "times" not in steps.columns:
        return np.zeros(len(borders), dtype=bool)
    codes, elapsed = steps.columns["episode_ids"], np.diff(steps.columns["times"])
    inside = (codes[1:] == codes[:-1]) & (elapsed > 0)
    within_files = inside.copy()
    within_files[borders] = False
    if not inside.any():
        return np.zeros(len(borders), dtype=bool)
    step = float(np.median(elapsed[within_files if within_files.any() else inside]))
    longest = ADJACENT_STEPS * step if settings.max_gap is None else settings.max_gap
    return np.asarray(inside[borders] & (elapsed[borders] <= longest))


def _notes_on_files(steps: Steps, codes: Array, going_on: int) -> list[str]:
    """What was done where an id stands in several files."""
    name, notes = steps.fields["episode_ids"][0], []
    pieces = np.unique(_pieces(steps, codes, by_file=True)[1], axis=0)
    apart = len(pieces) - len(np.unique(pieces[:, 1])) - going_on
    if apart:
        why = "its time does not go on there" if "times" in steps.columns else "no time shows that it goes on"
        notes.append(
            f"an id of column {name!r} stands in another file again {apart} times and is taken as a new "
            f"episode each time, because {why}; set files_end_episodes: false if episodes go on from file to "
            "file"
        )
    if going_on:
        notes.append(
            f"{going_on} times an episode of column {name!r} goes on in the next file, as its time does; set "
            "files_end_episodes: true if it does not"
        )
    return notes


def _one_episode(steps: Steps, ends: BoolArray) -> list[str]:
    """Many files that make a single episode: hardly ever what was logged."""
    files = len(np.unique([start for start in steps.file_starts if start < len(steps)]))
    if files < 2 or (ends | _flag_ends(steps))[:-1].any():
        return []
    return [
        f"all {files} files together are one episode of {len(steps)} rows: is that so? Map the column that "
        "tells episodes apart, or set files_end_episodes: true"
    ]


def _flag_ends(steps: Steps) -> BoolArray:
    ends = np.zeros(len(steps), dtype=bool)
    for name in END_FLAGS:
        if name in steps.columns:
            ends |= steps.columns[name] == 1
    return ends


def _gaps(steps: Steps, ends: BoolArray, settings: TableFields, notes: list[str]) -> BoolArray:
    """True before a gap longer than `max_gap`; time inside an episode must not run backwards."""
    times, name = steps.columns["times"], steps.fields["times"][0]
    elapsed = np.diff(times)
    backwards = np.flatnonzero((elapsed < 0) & ~ends[:-1])
    if len(backwards):
        row = int(backwards[0])
        raise DataError(
            f"{steps.place(row + 1)}: time runs backwards in column {name!r} (by {-elapsed[row]:g}); sort "
            "the rows, or map the column that tells episodes apart"
        )
    found = np.zeros(len(times), dtype=bool)
    if settings.max_gap is not None:
        found = _long_gaps(steps, settings) & ~ends
        if found.any():
            notes.append(
                f"{int(found.sum())} gaps longer than max_gap ({settings.max_gap:g}) end an episode as a "
                "time-out"
            )
    return found


def _long_gaps(steps: Steps, settings: TableFields) -> BoolArray:
    """True before a gap longer than `max_gap`."""
    found = np.zeros(len(steps), dtype=bool)
    if settings.max_gap is not None and "times" in steps.columns:
        found[:-1] = np.diff(steps.columns["times"]) > settings.max_gap
    return found


def _durations(times: Array, ends: BoolArray, notes: list[str]) -> Array:
    """Time from each row to the next in units of the median step; 1 where an episode ends."""
    durations = np.ones(len(times), dtype=np.float32)
    inside = np.flatnonzero(~ends[:-1])
    elapsed = times[inside + 1] - times[inside]
    known = np.isfinite(elapsed)
    positive = elapsed[known & (elapsed > 0)]
    if not len(positive):
        return durations
    median = float(np.median(positive))
    durations[inside[known]] = elapsed[known] / median
    uneven = int((np.abs(elapsed[known] / median - 1) > UNEVEN_STEP).sum())
    if uneven:
        shortest, longest = elapsed[known].min(), elapsed[known].max()
        notes.append(
            f"{uneven} of {len(elapsed)} steps differ from the median step of {median:g} (shortest "
            f"{shortest:g}, longest {longest:g}); discount_by_time discounts by duration, max_gap splits "
            "episodes at gaps"
        )
    return durations


def _missing_rows(steps: Steps, lenient: bool) -> BoolArray:
    """Rows with an empty cell in any mapped column; infinity is refused, unless `lenient`."""
    missing = np.zeros(len(steps), dtype=bool)
    for name, values in steps.columns.items():
        for rows in row_chunks(len(steps)):
            part = values[rows]
            if FIELDS.get(name).kind not in ("id", "flag"):
                with np.errstate(over="ignore", invalid="ignore"):
                    total = part.sum()
                if np.isfinite(total):  # nothing is empty where a sum is a number
                    continue
                if not lenient:
                    _refuse_infinity(steps, name, part, rows.start)
            missing[rows] |= _empty(name, part)
    return missing


def _refuse_infinity(steps: Steps, name: str, part: Array, first: int) -> None:
    endless = np.argwhere(np.isinf(part.reshape(len(part), -1)))
    if len(endless):
        row, index = (int(number) for number in endless[0])
        group = steps.fields[name]
        column = group[index] if index < len(group) else group[0]
        raise DataError(
            f"{steps.place(first + row)} has infinity in column {column!r}; repair the cell, or leave it "
            "empty and set missing_values"
        )


def _empty(name: str, values: Array) -> BoolArray:
    """Rows in which a field has no value."""
    return np.asarray(_empty_cells(name, values).reshape(len(values), -1).any(axis=1))


def _empty_cells(name: str, values: Array) -> BoolArray:
    code = {"flag": NO_FLAG, "id": NO_EPISODE}.get(FIELDS.get(name).kind)
    return np.asarray(np.isnan(values) if code is None else values == code)


def _empty_columns(steps: Steps, rows: Array) -> dict[str, int]:
    """Column -> how many of `rows` have no value there."""
    found: dict[str, int] = {}
    for name, group in steps.fields.items():
        values = steps.columns[name][rows]
        if values.ndim > 1 and values.shape[1] == len(group):
            counts = np.isnan(values).sum(axis=0)
        else:
            counts = np.array([_empty(name, values).sum()])
        found |= {column: int(count) for column, count in zip(group, counts, strict=False) if count}
    return found


def _missing_message(steps: Steps, row: int) -> str:
    column = next(iter(_empty_columns(steps, np.array([row]))))
    return (
        f"{steps.place(row)} has no value in column {column!r}; set missing_values to drop (the step is "
        "left out and the episode split) or hold (the episode's last value stays)"
    )


def _missing_note(steps: Steps, missing: BoolArray, settings: TableFields) -> str:
    rows = np.flatnonzero(missing)
    listed = ", ".join(f"{name} {count}" for name, count in _empty_columns(steps, rows).items())
    done = {"drop": "dropped, their episodes split there", "hold": "filled with the episode's last value"}
    what = done.get(settings.missing_values, "training refuses them: set missing_values to drop or hold")
    return f"{len(rows)} of {len(steps)} rows have empty cells ({listed}): {what}"


def _hold(steps: Steps, ends: BoolArray) -> BoolArray:
    """Fill cells with the last value of their episode; returns the rows where there was none yet.

    An empty flag of an end is not set: one that is set ends its episode, so none is ever held.
    """
    rows = np.arange(len(steps))
    starts = np.maximum.accumulate(np.where(np.concatenate([[True], ends[:-1]]), rows, 0))
    left = np.zeros(len(steps), dtype=bool)
    for name, values in steps.columns.items():
        if name in END_FLAGS:
            values[values == NO_FLAG] = 0
            continue
        if name in ("times", "episode_ids"):
            lacking = np.flatnonzero(_empty(name, values))
            if len(lacking):
                column = steps.fields[name][0]
                raise DataError(
                    f"{steps.place(int(lacking[0]))} has no value in column {column!r}, which cannot be "
                    "held; set missing_values to drop"
                )
            continue
        matrix = values if values.ndim > 1 else values[:, None]
        for cells in matrix.T:
            empty = _empty_cells(name, cells)
            if empty.any():
                last = np.maximum.accumulate(np.where(empty, -1, rows))
                held = empty & (last >= starts)
                cells[held] = cells[last[held]]
                left |= empty & ~held
    return left


def _drop(columns: dict[str, Array], ends: BoolArray, missing: BoolArray) -> BoolArray:
    """Leave rows out in place, chunk by chunk; the row before a dropped one ends its episode."""
    ends = ends.copy()
    ends[:-1] |= missing[1:]
    kept = ~missing
    for name, values in columns.items():
        stop = 0
        for rows in row_chunks(len(values)):
            piece = values[rows][kept[rows]]
            values[stop : stop + len(piece)] = piece
            stop += len(piece)
        columns[name] = values[:stop]
    return ends[kept]
