"""Progress in words, for places that cannot redraw a line: log files, pipes, and the cells of notebooks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html import escape
from typing import IO, Any

# In log files the first line comes soon, then one each half minute, and one at evaluations that are not too
# frequent.
FIRST_LINE_SECONDS = 2.0
LINE_SECONDS = 30.0
EVALUATION_LINE_SECONDS = 5.0

NOTEBOOK_SECONDS = 0.5

Losses = Callable[[], Mapping[str, float]]
"""Asked for only when they are shown: reading them waits for the device."""


@dataclass
class Stage:
    """Work that is no step of the run, such as judging its policy in the end."""

    name: str
    total: int
    started: float
    done: int = 0

    def line(self, now: float) -> str:
        """As `judging (values) · 0:03 · 500/2,000 · 0:09 left`."""
        elapsed = now - self.started
        left = elapsed / self.done * (self.total - self.done) if self.done else None
        return f"{self.name} · {told_time(elapsed)} · {self.done:,}/{self.total:,} · {told_time(left)} left"


@dataclass
class Progression:
    """What there is to show."""

    description: str
    total: int
    first: int
    started: float
    step: int
    updates_per_second: float | None = None
    last_return: float | None = None
    losses: Losses = dict
    stage: Stage | None = None

    @property
    def shown(self) -> tuple[int, int]:
        """How much is done of how much: of the stage, where there is one."""
        return (self.step, self.total) if self.stage is None else (self.stage.done, self.stage.total)

    def line(self, now: float) -> str:
        """Everything on one line, as `0:12 · 2,000/10,000 (20 %) · 195 updates/s · … · 0:48 left`."""
        if self.stage is not None:
            return self.stage.line(now)
        elapsed, done = now - self.started, self.step - self.first
        share = f" ({100 * self.step / self.total:.0f} %)" if self.total else ""
        # The first steps wait for compilation and tell nothing of those to come.
        left = elapsed / done * (self.total - self.step) if done > self.total / 100 else None
        parts = [told_time(elapsed), f"{self.step:,}/{self.total:,}{share}"]
        parts += told_numbers(self.updates_per_second, None)
        parts += [f"{name} {value:.3g}" for name, value in self.losses().items() if name.endswith("loss")]
        parts += told_numbers(None, self.last_return)
        return " · ".join([*parts, f"{told_time(left)} left"])


class LogLines:
    """A line now and then, each complete in itself: for files, pipes and services without a terminal."""

    def __init__(self, stream: IO[str], clock: Callable[[], float]) -> None:
        self.stream, self.clock = stream, clock
        self.last: float | None = None

    def start(self, state: Progression) -> None:
        self.last = None

    def update(self, state: Progression, evaluated: bool) -> None:
        now = self.clock()
        if self.last is None:
            due = now - state.started >= FIRST_LINE_SECONDS
        else:
            due = now - self.last >= (EVALUATION_LINE_SECONDS if evaluated else LINE_SECONDS)
        if due:
            self.last = now
            print(f"{state.description} · {state.line(now)}", file=self.stream, flush=True)

    def stop(self, state: Progression) -> None:
        """The end is told by whoever prints the result."""


class NotebookLine:
    """One output of a cell, replaced again and again."""

    def __init__(self, show: Callable[..., Any], clock: Callable[[], float]) -> None:
        self.show, self.clock = show, clock
        self.shown = 0.0
        self.handle: Any = None

    def start(self, state: Progression) -> None:
        self.shown = self.clock()
        self.handle = self.show(_Shown(state, self.shown), display_id=True)

    def update(self, state: Progression, evaluated: bool) -> None:
        now = self.clock()
        if evaluated or now - self.shown >= NOTEBOOK_SECONDS:
            self.shown = now
            self.handle.update(_Shown(state, now))

    def stop(self, state: Progression) -> None:
        self.handle.update(_Shown(state, self.clock()))


class _Shown:
    """What a notebook shows: a bar and a line, or the line alone where HTML is not drawn."""

    def __init__(self, state: Progression, now: float) -> None:
        self.name, self.line = state.description, state.line(now)
        done, total = state.shown
        self.bar = f'<progress value="{done}" max="{total}"></progress>'

    def __repr__(self) -> str:
        return f"{self.name} · {self.line}"

    def _repr_html_(self) -> str:
        return f"<div>{escape(self.name)} {self.bar} {escape(self.line)}</div>"


def told_numbers(speed: float | None, last_return: float | None) -> list[str]:
    """Those that are known, with their units."""
    parts = [] if speed is None else [f"{speed:,.0f} updates/s"]
    if last_return is not None:
        parts.append(f"return {last_return:,.{0 if abs(last_return) >= 1000 else 1}f}")
    return parts


def told_time(seconds: float | None) -> str:
    """`0:07`, `1:02:03`, or dashes where it is not known."""
    if seconds is None:
        return "-:--"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
