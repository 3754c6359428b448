"""What users write in few words of a log: limits of costs (`3 per episode`), lengths of episodes (`24h`)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rl_training.core.errors import ConfigError, did_you_mean, shown
from rl_training.core.types import Array

_WRITTEN = re.compile(r"\s*(\S+?)(?:\s+per\s+(step|episode))?\s*")


@dataclass(frozen=True)
class Limit:
    """The most that a cost may be: on average over steps, or over what episodes add up to."""

    name: str
    bound: float
    per: Literal["step", "episode"] = "step"

    @classmethod
    def parse(cls, name: str, value: object) -> Limit:
        """Read `0.01` (per step) or `3 per episode`."""
        match = _WRITTEN.fullmatch(value if isinstance(value, str) else f"{value}")
        try:
            bound = math.nan if match is None or isinstance(value, bool) else float(match[1])
        except ValueError:
            bound = math.nan
        if match is None or not math.isfinite(bound):
            raise ConfigError(
                f"limit of {name} must be a number per step such as 0.01, or such as 3 per episode, "
                f"got {shown(value)}"
            )
        return cls(name, bound, "episode" if match[2] == "episode" else "step")

    def of_episodes(self, totals: Array, steps: Array) -> Array:
        """What of each episode is compared with the bound: its mean over steps, or its sum."""
        return totals / steps if self.per == "step" else totals

    def __str__(self) -> str:
        return f"{self.bound:g} per {self.per}"


def parse_limits(given: Mapping[str, object]) -> tuple[Limit, ...]:
    """A mapping such as `{overheat: 0.01, shocks: 3 per episode}`."""
    return tuple(Limit.parse(name, value) for name, value in given.items())


def check_costs_named(setting: str, names: Sequence[str], costs: Sequence[str], source: str) -> None:
    """Every limit and every weight is of a cost that the data has."""
    for name in names:
        if name not in costs:
            known = f"there are {', '.join(costs)}" if costs else "no cost is declared"
            raise ConfigError(
                f"{setting} names {name!r}, which is no cost of {source}{did_you_mean(name, list(costs))}; "
                f"{known}; declare it: --cost '{name}: …', costs: {{{name}: …}}"
            )


def check_limits(
    limits: Sequence[Limit], names: Sequence[str], rows: Array, steps: Array, source: str
) -> list[str]:
    """Refuse limits of no cost, and those below 0 of what never is; say which ones nothing logged can break.

    `rows` are the costs of every step, `[n, costs]`; `steps` those of every episode.
    """
    check_costs_named("limits", [each.name for each in limits], names, source)
    told = []
    for limit in limits:
        column = rows[:, names.index(limit.name)]
        least, most = float(column.min()), float(column.max())
        if limit.bound < 0.0 <= least:
            raise ConfigError(
                f"limits.{limit.name} must be >= 0, got {limit}; no step of {source} costs less than "
                f"{least:g}"
            )
        if limit.bound >= float(limit.of_episodes(most * steps, steps).max()):
            told.append(
                f"limits.{limit.name} is {limit}, and no step costs more than {most:g}: nothing like this "
                "log can break it. 1 step of 100 is 0.01 per step."
            )
    return told


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
