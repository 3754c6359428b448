"""Charts as inline SVG, coloured by the page: lines, points on a plane, estimates with their intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rl_training.core.errors import html_text

Points = Sequence[tuple[float, float]]
Band = Sequence[tuple[float, float, float]]
"""(x, low, high)"""

COLORS = 8
"""Colours of the style sheet; further series repeat them with dashes."""

SIZES = {"wide": (760, 340), "narrow": (360, 290)}
"""Drawn for a desktop and for a phone: scaling one drawing would make its text unreadable on the other."""

LEFT, RIGHT, TOP, BOTTOM = 62, 26, 12, 44
LABELS = {"wide": 190, "narrow": 118}
"""Room to the left of intervals for what they are of."""

ROW = 26
DENSITY_HEIGHT = 0.35
"""Of a drawing, where a density is highest."""


class Figure:
    """What all charts share; `title` is also what a screen reader says."""

    title: str
    note: str
    small: bool = False
    """Two beside each other where there is room, in place of one across the page."""

    def figure(self) -> str:
        """The chart in HTML, drawn for every width that it is shown at, with caption and legend."""
        note = f'<p class="note">{html_text(self.note)}</p>' if self.note else ""
        caption = f"<figcaption>{html_text(self.title)}</figcaption>{note}"
        if self.small:  # the caption says what the one line is
            return f'<figure class="small">{caption}{self._svg("narrow", "small")}</figure>\n'
        keys = "".join(
            f'<li><svg class="key" viewBox="0 0 24 10" aria-hidden="true">{mark}</svg>{html_text(label)}</li>'
            for label, mark in self.legend()
        )
        drawings = "".join(self._svg(size, size) for size in SIZES)
        return f'<figure>{caption}{drawings}<ul class="legend">{keys}</ul></figure>\n'

    def legend(self) -> list[tuple[str, str]]:
        """Labels, each with the mark it stands for."""
        raise NotImplementedError

    def frame(self, size: str) -> Frame:
        """The plane of the drawing in one of `SIZES`."""
        raise NotImplementedError

    def drawn(self, frame: Frame) -> Iterable[str]:
        raise NotImplementedError

    def _svg(self, size: str, style: str) -> str:
        frame = self.frame(size)
        shape = f'viewBox="0 0 {frame.width} {frame.height}" role="img" aria-label="{html_text(self.title)}"'
        return f'<svg class="{style}" {shape}>{"".join(self.drawn(frame))}</svg>'


@dataclass(frozen=True)
class Frame:
    """Where a value lies on a drawing."""

    x_range: tuple[float, float]
    y_range: tuple[float, float]
    width: int
    height: int
    left: int = LEFT

    @property
    def right(self) -> int:
        return self.width - RIGHT

    @property
    def base(self) -> int:
        return self.height - BOTTOM

    def x(self, value: float) -> float:
        low, high = self.x_range
        return self.left + (value - low) / (high - low) * (self.right - self.left)

    def y(self, value: float) -> float:
        low, high = self.y_range
        return self.base - (value - low) / (high - low) * (self.base - TOP)

    def points(self, points: Points) -> str:
        return " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)

    def axes(self, x_label: str, y_label: str) -> Iterable[str]:
        for value in ticks(*self.y_range, 5):
            y = self.y(value)
            yield f'<path class="grid" d="M{self.left} {y:.1f}H{self.right}"/>'
            yield f'<text class="tick end" x="{self.left - 6}" y="{y + 4:.1f}">{tick_label(value)}</text>'
        yield from self.x_axis(x_label, 6)
        yield f'<path class="axis" d="M{self.left} {TOP}V{self.base}H{self.right}"/>'
        if y_label:
            turned = f'transform="translate(14 {(TOP + self.base) / 2:.0f}) rotate(-90)"'
            yield f'<text class="label middle" {turned}>{html_text(y_label)}</text>'

    def x_axis(self, label: str, count: int, *, grid: bool = False) -> Iterable[str]:
        """Numbers below the drawing, fewer on a phone, and what they are."""
        for value in ticks(*self.x_range, 3 if self.width < 500 else count):
            x = f"{self.x(value):.1f}"
            if grid:
                yield f'<path class="grid" d="M{x} {TOP}V{self.base}"/>'
            yield f'<text class="tick middle" x="{x}" y="{self.base + 17}">{tick_label(value)}</text>'
        middle = f'x="{(self.left + self.right) / 2:.0f}" y="{self.height - 6}"'
        yield f'<text class="label middle" {middle}>{html_text(label)}</text>'


def span(values: Sequence[float], margin: float = 0.0) -> tuple[float, float]:
    """From the smallest to the largest value and a little beyond; never empty."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    if low == high:
        low, high = low - 0.5 * (abs(low) or 1.0), high + 0.5 * (abs(high) or 1.0)
    extra = margin * (high - low)
    return low - extra, high + extra


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

    @property
    def key(self) -> str:
        line = f'<path class="line {self.style}" d="M1 5H23"/>'
        return line + (f'<path class="diamond {self.style}" d="M12 1l4 4l-4 4l-4 -4Z"/>' * self.estimated)

    def polyline(self, kind: str, frame: Frame, line: Points) -> str:
        return f'<polyline class="{kind} {self.style}" points="{frame.points(line)}"/>'

    def drawn(self, frame: Frame) -> Iterable[str]:
        if len(self.band) > 1:
            around = [(x, low) for x, low, _ in self.band] + [(x, high) for x, _, high in self.band[::-1]]
            yield f'<polygon class="band {self.style}" points="{frame.points(around)}"/>'
        elif self.estimated:
            for x, low, high in self.band:
                bar = f"M{frame.x(x):.1f} {frame.y(low):.1f}V{frame.y(high):.1f}"
                yield f'<path class="bar {self.style}" d="{bar}"/>'
        if len(self.line) > 1:
            yield self.polyline("line", frame, self.line)
        if len(self.line) > 60:
            return  # dots so close would hide the line
        bounds = {x: f" [{low:.4g}, {high:.4g}]" for x, low, high in self.band}
        for value, height in self.line:
            told = html_text(f"{self.label}: {height:.4g}{bounds.get(value, '')} at {value:,.6g}")
            x, y = frame.x(value), frame.y(height)
            if self.estimated:
                place, title = f"M{x:.1f} {y - 6:.1f}l6 6l-6 6l-6 -6Z", f"{told} (estimated)"
                yield f'<path class="diamond {self.style}" d="{place}"><title>{title}</title></path>'
            else:
                place = f'cx="{x:.1f}" cy="{y:.1f}" r="2.6"'
                yield f'<circle class="dot {self.style}" {place}><title>{told}</title></circle>'


DASHES = '<path class="level" d="M1 5H23"/>'
"""The key of a level."""


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

    def drawn(self, frame: Frame, row: int) -> Iterable[str]:
        """Names stand below each other: the places of marks may be close."""
        low, high = frame.x_range
        if not low <= self.x <= high:
            return
        x, side = frame.x(self.x), "end" if self.x > low + 0.8 * (high - low) else ""
        yield f'<path class="mark" d="M{x:.1f} {TOP}V{frame.base}"/>'
        place = f'x="{x + (-4 if side else 4):.1f}" y="{TOP + 10 + 13 * row}"'
        yield f'<text class="tick {side}" {place}>{html_text(self.label)}</text>'


@dataclass(frozen=True)
class Chart(Figure):
    """Lines over one axis."""

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    note: str = ""
    levels: tuple[Level, ...] = ()
    small: bool = False
    marks: tuple[Mark, ...] = ()
    density: Sequence[float] = ()
    """heights from 0 to 1 in equal steps along the horizontal axis, shaded behind the lines"""

    def legend(self) -> list[tuple[str, str]]:
        return [(s.label, s.key) for s in self.series] + [(level.label, DASHES) for level in self.levels]

    def frame(self, size: str) -> Frame:
        lines = [line for each in self.series for line in (each.line, *each.single)]
        heights = [y for each in self.series for _, low, high in each.band for y in (low, high)]
        heights += [y for line in lines for _, y in line] + [level.value for level in self.levels]
        return Frame(span([x for line in lines for x, _ in line]), span(heights, margin=0.04), *SIZES[size])

    def drawn(self, frame: Frame) -> Iterable[str]:
        yield from self.shade(frame)
        yield from frame.axes(self.x_label, self.y_label)
        for level in self.levels:
            yield f'<path class="level" d="M{frame.left} {frame.y(level.value):.1f}H{frame.right}"/>'
        for row, mark in enumerate(self.marks):
            yield from mark.drawn(frame, row)
        for series in self.series:
            yield from (series.polyline("thin", frame, line) for line in series.single if len(line) > 1)
        for series in self.series:
            yield from series.drawn(frame)

    def shade(self, frame: Frame) -> Iterable[str]:
        if not self.density:
            return
        width = (frame.right - frame.left) / len(self.density)
        heights = (frame.base - DENSITY_HEIGHT * (frame.base - TOP) * each for each in self.density)
        steps = "".join(f"V{height:.1f}h{width:.2f}" for height in heights)
        yield f'<path class="shade" d="M{frame.left} {frame.base}{steps}V{frame.base}Z"/>'


@dataclass(frozen=True)
class Cloud:
    """Points of one kind."""

    label: str
    color: int
    points: Points

    def dot(self, x: str, y: str, radius: float) -> str:
        return f'<circle class="dot c{self.color % COLORS}" cx="{x}" cy="{y}" r="{radius:g}"/>'


@dataclass(frozen=True)
class Scatter(Figure):
    """Points on a plane; a diagonal where both axes have the same unit."""

    title: str
    x_label: str
    y_label: str
    clouds: tuple[Cloud, ...]
    note: str = ""
    diagonal: bool = False

    def legend(self) -> list[tuple[str, str]]:
        return [(each.label, each.dot("12", "5", 4)) for each in self.clouds]

    def frame(self, size: str) -> Frame:
        xs = [x for cloud in self.clouds for x, _ in cloud.points]
        ys = [y for cloud in self.clouds for _, y in cloud.points]
        xs, ys = (xs + ys, xs + ys) if self.diagonal else (xs, ys)
        return Frame(span(xs, margin=0.05), span(ys, margin=0.05), *SIZES[size])

    def drawn(self, frame: Frame) -> Iterable[str]:
        yield from frame.axes(self.x_label, self.y_label)
        if self.diagonal:
            yield f'<path class="axis" d="M{frame.left} {frame.base}L{frame.right} {TOP}"/>'
        for cloud in self.clouds:
            for x, y in cloud.points:
                yield cloud.dot(f"{frame.x(x):.1f}", f"{frame.y(y):.1f}", 2.4)


@dataclass(frozen=True)
class Bar:
    """One estimate; without bounds only a dot is drawn."""

    label: str
    value: float
    low: float | None
    high: float | None
    color: int

    def drawn(self, frame: Frame, row: int) -> Iterable[str]:
        style, y = f"c{self.color % COLORS}", frame.y(row + 0.5)
        most = max(4, frame.left // 7)
        label = self.label if len(self.label) <= most else f"{self.label[: most - 1]}…"
        yield f'<text class="tick end" x="{frame.left - 8}" y="{y + 4:.1f}">{html_text(label)}</text>'
        if self.low is not None and self.high is not None:
            line = f"M{frame.x(self.low):.1f} {y:.1f}H{frame.x(self.high):.1f}"
            yield f'<path class="line {style}" d="{line}"/>'
        x, number = frame.x(self.value), tick_label(self.value)
        if frame.left <= x <= frame.right:
            title = f"<title>{html_text(f'{self.label}: {self.value:.4g}')}</title>"
            yield f'<circle class="dot {style}" cx="{x:.1f}" cy="{y:.1f}" r="4">{title}</circle>'
        elif x < frame.left:
            yield f'<text class="tick" x="{frame.left + 4:.1f}" y="{y + 4:.1f}">◀ {number}</text>'
        else:
            yield f'<text class="tick end" x="{frame.right - 4:.1f}" y="{y + 4:.1f}">{number} ▶</text>'


@dataclass(frozen=True)
class Intervals(Figure):
    """Estimates below each other on one axis, over the band, or the level, that they are compared with."""

    title: str
    x_label: str
    bars: tuple[Bar, ...]
    band: tuple[float, float]
    band_label: str
    note: str = ""

    def legend(self) -> list[tuple[str, str]]:
        key = '<rect class="band c0" x="1" y="0" width="22" height="10"/>'
        return [(self.band_label, key if self.band[0] < self.band[1] else DASHES)]

    def frame(self, size: str) -> Frame:
        # What has bounds decides the axis: a weighted sum without any may be anywhere.
        ends = [bound for bar in self.bars for bound in (bar.low, bar.high) if bound is not None]
        rows, x_range = len(self.bars), span([*ends, *self.band], margin=0.05)
        return Frame(x_range, (rows, 0), SIZES[size][0], TOP + ROW * rows + BOTTOM, LABELS[size])

    def drawn(self, frame: Frame) -> Iterable[str]:
        first, last = map(frame.x, self.band)
        if first < last:
            size = f'width="{max(1.0, last - first):.1f}" height="{frame.base - TOP}"'
            yield f'<rect class="band c0" x="{first:.1f}" y="{TOP}" {size}/>'
        else:
            yield f'<path class="level" d="M{first:.1f} {TOP}V{frame.base}"/>'
        yield from frame.x_axis(self.x_label, 5, grid=True)
        for row, bar in enumerate(self.bars):
            yield from bar.drawn(frame, row)
