"""Lengths of episodes that a continuous log is cut into: `24h`, `500 rows`, `day`, `shifts 06:00,14:00`."""

from __future__ import annotations

import re
from dataclasses import dataclass

DAY = 86_400.0
_UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": DAY, "days": DAY, "w": 7 * DAY}
_LENGTH = re.compile(r"(\d+(?:\.\d+)?)\s*(s|min|h|d|days|w|rows?)")
_CLOCK = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)")


@dataclass(frozen=True)
class EpisodeLength:
    """One of: so many rows, so many seconds, or times of the day at which an episode begins."""

    text: str
    rows: int | None = None
    seconds: float | None = None
    begins: tuple[float, ...] = ()
    """seconds since midnight, ascending"""


def parse_episode_length(text: str) -> EpisodeLength:
    """The length that a text means; a ValueError says what it may be."""
    plain = text.strip().lower()
    if plain in ("day", "1 day"):
        return EpisodeLength(text, begins=(0.0,))
    if plain.startswith("shifts"):
        clocks = [_CLOCK.fullmatch(each.strip()) for each in plain.removeprefix("shifts").split(",")]
        begins = [3600.0 * int(clock[1]) + 60.0 * int(clock[2]) for clock in clocks if clock is not None]
        if len(begins) == len(clocks) and begins == sorted(set(begins)):
            return EpisodeLength(text, begins=tuple(begins))
    match = _LENGTH.fullmatch(plain)
    if match is not None and match[2].startswith("row") and match[1].isdigit() and int(match[1]) > 1:
        return EpisodeLength(text, rows=int(match[1]))
    if match is not None and match[2] in _UNITS and float(match[1]) > 0:
        return EpisodeLength(text, seconds=float(match[1]) * _UNITS[match[2]])
    raise ValueError(
        "episode_length must be a time (24h, 90min, 7d), rows (500 rows), day, or shifts by the times "
        f"at which they begin (shifts 06:00,14:00,22:00), got {text!r}"
    )
