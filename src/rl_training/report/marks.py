"""Further blocks of a page: sentences, points on a plane, estimates with their intervals side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape

from rl_training.report.svg import BOTTOM, COLORS, RIGHT, SIZES, TOP, Points, tick_label, ticks

LABELS = {"wide": 190, "narrow": 118}
"""Room to the left of intervals for what they are of."""

ROW = 26
MARGIN = 0.05


@dataclass(frozen=True)
class Cloud:
    """Points of one kind."""

    label: str
    color: int
    points: Points


@dataclass(frozen=True)
class Scatter:
    """Points on a plane; a diagonal where both axes have the same unit."""

    title: str
    x_label: str
    y_label: str
    clouds: tuple[Cloud, ...]
    note: str = ""
    diagonal: bool = False

    def figure(self) -> str:
        drawings = "".join(self._drawn(size) for size in SIZES)
        return _figure(
            self.title, self.note, drawings, [(each.label, _dot_key(each.color)) for each in self.clouds]
        )

    def _drawn(self, size: str) -> str:
        width, height = SIZES[size]
        left, right, base = 62, width - RIGHT, height - BOTTOM
        xs = [x for cloud in self.clouds for x, _ in cloud.points]
        ys = [y for cloud in self.clouds for _, y in cloud.points]
        xs, ys = (xs + ys, xs + ys) if self.diagonal else (xs, ys)
        x, y = _place(xs, left, right), _place(ys, base, TOP)
        parts = [f'<path class="axis" d="M{left} {TOP}V{base}H{right}"/>']
        for value in ticks(*_range(ys), 5):
            parts.append(f'<path class="grid" d="M{left} {y(value):.1f}H{right}"/>')
            parts.append(
                f'<text class="tick end" x="{left - 6}" y="{y(value) + 4:.1f}">{tick_label(value)}</text>'
            )
        for value in ticks(*_range(xs), 3 if width < 500 else 6):
            parts.append(
                f'<text class="tick middle" x="{x(value):.1f}" y="{base + 17}">{tick_label(value)}</text>'
            )
        if self.diagonal:
            low, high = min(xs), max(xs)
            parts.append(f'<path class="axis" d="M{x(low):.1f} {y(low):.1f}L{x(high):.1f} {y(high):.1f}"/>')
        for cloud in self.clouds:
            parts += [
                f'<circle class="dot c{cloud.color % COLORS}" cx="{x(a):.1f}" cy="{y(b):.1f}" r="2.4"/>'
                for a, b in cloud.points
            ]
        parts += _labels(self.x_label, self.y_label, left, right, base, height)
        return _svg(size, width, height, self.title, parts)


@dataclass(frozen=True)
class Bar:
    """One estimate; without bounds only a dot is drawn."""

    label: str
    value: float
    low: float | None
    high: float | None
    color: int


@dataclass(frozen=True)
class Intervals:
    """Estimates below each other on one axis, over the band of what they are compared with."""

    title: str
    x_label: str
    bars: tuple[Bar, ...]
    band: tuple[float, float]
    band_label: str
    note: str = ""

    def figure(self) -> str:
        drawings = "".join(self._drawn(size) for size in SIZES)
        return _figure(self.title, self.note, drawings, [(self.band_label, BAND_KEY)])

    def _drawn(self, size: str) -> str:
        width, left = SIZES[size][0], LABELS[size]
        height, right = TOP + ROW * len(self.bars) + BOTTOM, width - RIGHT
        base = height - BOTTOM
        x = _place(self._ends(), left, right)
        first, last = x(self.band[0]), x(self.band[1])
        parts = [
            f'<rect class="band c0" x="{first:.1f}" y="{TOP}" width="{max(1.0, last - first):.1f}" '
            f'height="{base - TOP}"/>'
        ]
        for value in ticks(*_range(self._ends()), 3 if width < 500 else 5):
            parts.append(f'<path class="grid" d="M{x(value):.1f} {TOP}V{base}"/>')
            parts.append(
                f'<text class="tick middle" x="{x(value):.1f}" y="{base + 17}">{tick_label(value)}</text>'
            )
        for index, bar in enumerate(self.bars):
            parts += self._bar(bar, TOP + ROW * (index + 0.5), x, left, right)
        parts += _labels(self.x_label, "", left, right, base, height)
        return _svg(size, width, height, self.title, parts)

    def _ends(self) -> list[float]:
        """What has bounds decides the axis: a weighted sum without any may be anywhere."""
        found = [bound for bar in self.bars for bound in (bar.low, bar.high) if bound is not None]
        return [*found, *self.band]

    def _bar(
        self, bar: Bar, y: float, x: Callable[[float], float], left: float, right: float
    ) -> Iterable[str]:
        style = f"c{bar.color % COLORS}"
        label = escape(_short(bar.label, left))
        yield f'<text class="tick end" x="{left - 8}" y="{y + 4:.1f}">{label}</text>'
        if bar.low is not None and bar.high is not None:
            yield f'<path class="line {style}" d="M{x(bar.low):.1f} {y:.1f}H{x(bar.high):.1f}"/>'
        place = x(bar.value)
        told = escape(f"{bar.label}: {bar.value:.4g}")
        if left <= place <= right:
            title = f"<title>{told}</title>"
            yield f'<circle class="dot {style}" cx="{place:.1f}" cy="{y:.1f}" r="4">{title}</circle>'
        else:
            number = tick_label(bar.value)
            edge, text = (left + 4, f"◀ {number}") if place < left else (right - 4, f"{number} ▶")
            where = "tick" if place < left else "tick end"
            yield f'<text class="{where}" x="{edge:.1f}" y="{y + 4:.1f}">{text}</text>'


def _short(text: str, room: float) -> str:
    most = max(4, int(room / 7))
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values, default=0.0), max(values, default=1.0)
    extra = MARGIN * (high - low) or 0.5 * (abs(low) or 1.0)
    return low - extra, high + extra


def _place(values: Sequence[float], first: float, last: float) -> Callable[[float], float]:
    """Where a value lies between two edges of the drawing."""
    low, high = _range(values)
    return lambda value: first + (value - low) / (high - low) * (last - first)


def _labels(x_label: str, y_label: str, left: float, right: float, base: float, height: float) -> list[str]:
    middle = f'x="{(left + right) / 2:.0f}" y="{height - 6}"'
    parts = [f'<text class="label middle" {middle}>{escape(x_label)}</text>']
    if y_label:
        turned = f'transform="translate(14 {(TOP + base) / 2:.0f}) rotate(-90)"'
        parts.append(f'<text class="label middle" {turned}>{escape(y_label)}</text>')
    return parts


def _svg(size: str, width: int, height: int, title: str, parts: Sequence[str]) -> str:
    shape = f'viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}"'
    return f'<svg class="{size}" {shape}>{"".join(parts)}</svg>'


BAND_KEY = '<rect class="band c0" x="1" y="0" width="22" height="10"/>'


def _dot_key(color: int) -> str:
    return f'<circle class="dot c{color % COLORS}" cx="12" cy="5" r="4"/>'


def _figure(title: str, note: str, drawings: str, legend: Sequence[tuple[str, str]]) -> str:
    """`legend`: labels, each with the mark it stands for."""
    keys = "".join(
        f'<li><svg class="key" viewBox="0 0 24 10" aria-hidden="true">{mark}</svg>{escape(label)}</li>'
        for label, mark in legend
    )
    caption = f'<figcaption>{escape(title)}</figcaption><p class="note">{escape(note)}</p>'
    return f'<figure>{caption}{drawings}<ul class="legend">{keys}</ul></figure>\n'
