"""Line charts as inline SVG. The page's style sheet colours them, so that a drawing suits light and dark."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

Points = Sequence[tuple[float, float]]
Band = Sequence[tuple[float, float, float]]
"""(x, low, high)"""

COLORS = 8
"""Colours of the style sheet; further series repeat them with dashes."""

SIZES = {"wide": (760, 340), "narrow": (360, 290)}
"""Drawn for a desktop and for a phone: scaling one drawing would make its text unreadable on the other."""

LEFT, RIGHT, TOP, BOTTOM = 62, 26, 12, 44


@dataclass(frozen=True)
class Series:
    """A line with an optional band around it, and thin lines of the single runs behind it."""

    label: str
    color: int
    line: Points
    band: Band = ()
    single: Sequence[Points] = ()
    estimated: bool = False
    """Drawn with open diamonds and dashes, and with a bar where there is one interval only."""

    @property
    def style(self) -> str:
        """Style-sheet classes of its colour and dashes."""
        told = " estimated" if self.estimated else ""
        return f"c{self.color % COLORS} d{min(self.color // COLORS, 2)}{told}"


@dataclass(frozen=True)
class Level:
    """A value to compare with, drawn as a dashed line across the chart."""

    label: str
    value: float


@dataclass(frozen=True)
class Mark:
    """A place on the horizontal axis at which something begins: a dotted line with its name."""

    label: str
    x: float


@dataclass(frozen=True)
class Chart:
    """What a chart shows; `title` is what a screen reader says."""

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    note: str = ""
    levels: tuple[Level, ...] = ()
    small: bool = False
    """Two beside each other where there is room, in place of one across the page."""
    marks: tuple[Mark, ...] = ()

    def svg(self) -> str:
        """The drawing, for every width that it is shown at."""
        return self._drawing("narrow") if self.small else "".join(map(self._drawing, SIZES))

    def _drawing(self, size: str) -> str:
        """The drawing in one of `SIZES`."""
        width, height = SIZES[size]
        frame = _Frame.around(self.series, self.levels, width, height)
        parts = [*_axes(frame, self.x_label, self.y_label)]
        for level in self.levels:
            parts.append(f'<path class="level" d="M{LEFT} {frame.y(level.value):.1f}H{width - RIGHT}"/>')
        parts += [part for row, mark in enumerate(self.marks) for part in _marked(mark, row, frame)]
        for series in self.series:
            parts += [_path("thin", series.style, frame, line) for line in series.single if len(line) > 1]
        for series in self.series:
            parts += _drawn(series, frame)
        size = "small" if self.small else size
        shape = f'viewBox="0 0 {width} {height}" role="img" aria-label="{escape(self.title)}"'
        return f'<svg class="{size}" {shape}>{"".join(parts)}</svg>'


@dataclass(frozen=True)
class _Frame:
    """Where a value lies on the drawing."""

    x_range: tuple[float, float]
    y_range: tuple[float, float]
    width: int
    height: int

    @classmethod
    def around(cls, series: Iterable[Series], levels: Iterable[Level], width: int, height: int) -> _Frame:
        xs, ys = list[float](), [level.value for level in levels]
        for each in series:
            for line in (each.line, *each.single):
                xs += [x for x, _ in line]
                ys += [y for _, y in line]
            ys += [y for _, low, high in each.band for y in (low, high)]
        return cls(_span(xs), _span(ys, margin=0.04), width, height)

    def x(self, value: float) -> float:
        low, high = self.x_range
        return LEFT + (value - low) / (high - low) * (self.width - LEFT - RIGHT)

    def y(self, value: float) -> float:
        low, high = self.y_range
        return self.height - BOTTOM - (value - low) / (high - low) * (self.height - TOP - BOTTOM)

    def place(self, point: tuple[float, float]) -> str:
        return f"{self.x(point[0]):.1f},{self.y(point[1]):.1f}"


def ticks(low: float, high: float, count: int) -> list[float]:
    """About `count` round numbers from `low` to `high`: steps of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / max(1, count)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough / 1.5)
    first = math.ceil(low / step - 1e-9)
    return [index * step for index in range(first, math.floor(high / step + 1e-9) + 1)]


def tick_label(value: float) -> str:
    """Short enough for the margin: 20k, 1.5M, -400, 0.25."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size * (10 if letter == "k" else 1):
            return f"{value / size:.4g}{letter}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _axes(frame: _Frame, x_label: str, y_label: str) -> Iterable[str]:
    right, base = frame.width - RIGHT, frame.height - BOTTOM
    for value in ticks(*frame.y_range, 5):
        y = frame.y(value)
        yield f'<path class="grid" d="M{LEFT} {y:.1f}H{right}"/>'
        yield f'<text class="tick end" x="{LEFT - 6}" y="{y + 4:.1f}">{tick_label(value)}</text>'
    for value in ticks(*frame.x_range, 3 if frame.width < 500 else 6):
        yield f'<text class="tick middle" x="{frame.x(value):.1f}" y="{base + 17}">{tick_label(value)}</text>'
    yield f'<path class="axis" d="M{LEFT} {TOP}V{base}H{right}"/>'
    middle = (LEFT + right) / 2
    yield f'<text class="label middle" x="{middle:.0f}" y="{frame.height - 6}">{escape(x_label)}</text>'
    if y_label:
        turned = f'transform="translate(14 {(TOP + base) / 2:.0f}) rotate(-90)"'
        yield f'<text class="label middle" {turned}>{escape(y_label)}</text>'


def _marked(mark: Mark, row: int, frame: _Frame) -> Iterable[str]:
    """Names stand below each other: the places of marks may be close."""
    low, high = frame.x_range
    if not low <= mark.x <= high:
        return
    x, side = frame.x(mark.x), "end" if mark.x > low + 0.8 * (high - low) else ""
    yield f'<path class="mark" d="M{x:.1f} {TOP}V{frame.height - BOTTOM}"/>'
    place = f'x="{x + (-4 if side else 4):.1f}" y="{TOP + 10 + 13 * row}"'
    yield f'<text class="tick {side}" {place}>{escape(mark.label)}</text>'


def _drawn(series: Series, frame: _Frame) -> Iterable[str]:
    if len(series.band) > 1:
        there = [frame.place((x, low)) for x, low, _ in series.band]
        back = [frame.place((x, high)) for x, _, high in reversed(series.band)]
        yield f'<polygon class="band {series.style}" points="{" ".join([*there, *back])}"/>'
    elif series.estimated:
        yield from (_bar(series.style, frame, *each) for each in series.band)
    if len(series.line) > 1:
        yield _path("line", series.style, frame, series.line)
    if len(series.line) > 60:
        return  # dots so close would hide the line
    bounds = {x: f" [{low:.4g}, {high:.4g}]" for x, low, high in series.band}
    for x, y in series.line:
        told = escape(f"{series.label}: {y:.4g}{bounds.get(x, '')} at {x:,.6g}")
        yield _dot(series, frame.x(x), frame.y(y), told)


def _dot(series: Series, x: float, y: float, told: str) -> str:
    """A filled circle, or an open diamond where the value was estimated."""
    if series.estimated:
        shape = f"M{x:.1f} {y - 6:.1f}l6 6l-6 6l-6 -6Z"
        return f'<path class="diamond {series.style}" d="{shape}"><title>{told} (estimated)</title></path>'
    return (
        f'<circle class="dot {series.style}" cx="{x:.1f}" cy="{y:.1f}" r="2.6"><title>{told}</title></circle>'
    )


def _bar(style: str, frame: _Frame, x: float, low: float, high: float) -> str:
    return f'<path class="bar {style}" d="M{frame.x(x):.1f} {frame.y(low):.1f}V{frame.y(high):.1f}"/>'


def _path(kind: str, style: str, frame: _Frame, line: Points) -> str:
    return f'<polyline class="{kind} {style}" points="{" ".join(frame.place(point) for point in line)}"/>'


def _span(values: Sequence[float], margin: float = 0.0) -> tuple[float, float]:
    low, high = min(values, default=0.0), max(values, default=1.0)
    if low == high:
        low, high = low - 0.5 * (abs(low) or 1.0), high + 0.5 * (abs(high) or 1.0)
    extra = margin * (high - low)
    return low - extra, high + extra
