"""What a page is made of, whatever it is written as: sections of tables and figures, and numbers in words."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from rl_training.report.charts import Figure
from rl_training.report.statistics import Estimate

MARK = "◇ estimated"
"""Beside every number that nobody has measured."""


LARGE = 1e9
"""Products of weights run away: how far is all that matters of such a number."""


@dataclass(frozen=True)
class Link:
    """Text that leads to a file beside the report."""

    text: str
    target: str


Cell = str | float | Link | Estimate | None
"""Numbers are worded where the page is written; None is a number that nobody has."""


@dataclass(frozen=True)
class Table:
    """Rows under a header; the note says how to read them."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""


@dataclass(frozen=True)
class Section:
    title: str
    blocks: tuple[Table | Figure, ...]


@dataclass(frozen=True)
class Page:
    """Title, verdict and facts, which stand above the first section, and the sections."""

    title: str
    verdict: tuple[str, ...]
    facts: tuple[str, ...]
    sections: tuple[Section, ...]
    tones: tuple[str, ...] = ()
    """for each sentence of the verdict the judge's word for it, which its box has the colour of"""


class Bounded(Protocol):
    """A number with an interval; None or NaN where it has none."""

    @property
    def value(self) -> float: ...
    @property
    def low(self) -> float | None: ...
    @property
    def high(self) -> float | None: ...


def plain_number(value: float) -> str:
    """Four digits or so, never an exponent for everyday sizes."""
    size = abs(value)
    if size >= LARGE:
        return f"{value:.1e}"
    if size >= 1000 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 100 else f"{value:.2f}" if size >= 1 else f"{value:.3g}"


def bounds(result: Estimate) -> str:
    """The interval in brackets, or why there is none."""
    if not result.has_interval:
        return "(no interval)"
    return f"[{plain_number(result.low)}, {plain_number(result.high)}]"


def with_interval(result: Bounded) -> str:
    """A number with its interval, where it has one."""
    low, high = result.low, result.high
    if low is None or high is None or math.isnan(low) or math.isnan(high):
        return plain_number(result.value)
    return f"{plain_number(result.value)} [{plain_number(low)}, {plain_number(high)}]"


def duration(seconds: float) -> str:
    """Seconds up to two minutes, then minutes, then hours."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def count(number: int, noun: str) -> str:
    """`1 run`, `2 runs`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
