"""How far a run is: a bar at a terminal, a live line in a notebook, a line now and then in a log file."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from html import escape
from typing import IO, Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task
from rich.table import Column, Table
from rich.text import Text

# In log files the first line comes soon, then one each half minute, and one at evaluations that are not too
# frequent.
FIRST_LINE_SECONDS = 2.0
LINE_SECONDS = 30.0
EVALUATION_LINE_SECONDS = 5.0

NOTEBOOK_SECONDS = 0.5

LatestMetrics = Callable[[], Mapping[str, float]]
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
    losses: LatestMetrics = dict
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

    def __init__(self, show: Callable[..., object], clock: Callable[[], float]) -> None:
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


# Evaluations and compilation interrupt the steps for a while; a longer memory keeps the time left steady.
SPEED_MEMORY_SECONDS = 120.0

FREE_COLUMNS = 3
"""A terminal writes `^C` where the bar ends; on a full line that begins a new one, and a second bar."""


class TerminalBar:
    """A bar that is redrawn in place."""

    def __init__(self, console: Console, clock: Callable[[], float]) -> None:
        self.console, self.clock = console, clock
        self.progress: Progress | None = None

    def start(self, state: Progression) -> None:
        self.progress = _RoomForInterrupt(
            BarColumn(bar_width=None, table_column=Column(ratio=1, min_width=4)),
            _Numbers(table_column=Column(no_wrap=True)),
            console=self.console,
            refresh_per_second=4,
            speed_estimate_period=SPEED_MEMORY_SECONDS,
        )
        # On a line of its own: eighty columns have no room for it beside the numbers.
        self.console.print(Text(state.description, style="bold"))
        self.progress.add_task("", total=state.total, completed=state.first, **self.fields(state))
        self.progress.start()

    def update(self, state: Progression, evaluated: bool) -> None:
        if self.progress is not None:
            done, total = state.shown
            self.progress.update(self.progress.task_ids[0], completed=done, total=total, **self.fields(state))

    def fields(self, state: Progression) -> dict[str, Any]:
        stage = None if state.stage is None else state.stage.line(self.clock())
        return {"speed": state.updates_per_second, "last_return": state.last_return, "stage": stage}

    def stop(self, state: Progression) -> None:
        if self.progress is not None:
            self.progress.stop()
            self.progress = None


class _RoomForInterrupt(Progress):
    """Leaves the last columns of the line free."""

    def make_tasks_table(self, tasks: Iterable[Task]) -> Table:
        table = super().make_tasks_table(tasks)
        if self.task_ids:  # the first call comes from the base class, before there is a console
            table.width = max(20, self.console.width - FREE_COLUMNS)
        return table


class _Numbers(ProgressColumn):
    """Everything to the right of the bar, as few characters as can be read."""

    max_refresh = 0.25

    def render(self, task: Task) -> Text:
        if task.fields["stage"] is not None:
            return Text(task.fields["stage"], no_wrap=True)
        parts = [f"{int(task.completed):,}/{int(task.total or 0):,}"]
        parts += told_numbers(task.fields["speed"], task.fields["last_return"])
        parts += [told_time(task.elapsed), f"{told_time(task.time_remaining)} left"]
        return Text(" · ".join(parts), no_wrap=True)


class Display(Protocol):
    """One way of showing."""

    def start(self, state: Progression) -> None: ...

    def update(self, state: Progression, evaluated: bool) -> None: ...

    def stop(self, state: Progression) -> None: ...


class ProgressDisplay:
    """Steps, updates per second, last return, time left and, where there is room, losses.

    All but the notebook's goes to standard error, so that standard output holds results only.
    """

    def __init__(
        self,
        *,
        quiet: bool = False,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._display = None if quiet else _suitable(console, clock)
        self._state: Progression | None = None

    def start(self, total: int, description: str, completed: int = 0) -> None:
        """Begin to show; a resumed run begins at `completed` and estimates its time from new steps only."""
        if self._display is not None and self._state is None:
            self._state = Progression(description, total, completed, self._clock(), completed)
            self._display.start(self._state)

    def update(
        self,
        step: int,
        *,
        updates_per_second: float | None = None,
        last_return: float | None = None,
        losses: LatestMetrics = dict,
        evaluated: bool = False,
    ) -> None:
        """Move on to `step`; a number that is not known is left out. `evaluated`: the return is new."""
        state = self._state
        if self._display is not None and state is not None:
            state.step, state.updates_per_second, state.last_return = step, updates_per_second, last_return
            state.losses, state.stage = losses, None
            self._display.update(state, evaluated)

    def stage(self, name: str, done: int, total: int) -> None:
        """Show, in place of the steps, how far something else is; the next `update` shows the steps again."""
        state = self._state
        if self._display is not None and state is not None:
            stage = state.stage
            new = stage is None or stage.name != name
            if stage is None or new:
                state.stage = stage = Stage(name, total, self._clock())
            stage.done = done
            self._display.update(state, evaluated=new)

    def stop(self) -> None:
        """Leave what is shown as it is; may be called twice."""
        if self._display is not None and self._state is not None:
            self._display.stop(self._state)
            self._state = None


def _suitable(console: Console | None, clock: Callable[[], float]) -> Display:
    if console is None and (show := _notebook_display()) is not None:
        return NotebookLine(show, clock)
    at_terminal = console is not None or sys.stdout.isatty()
    console = console or Console(stderr=True)
    return (
        TerminalBar(console, clock) if at_terminal and console.is_terminal else LogLines(console.file, clock)
    )


def _notebook_display() -> Callable[..., object] | None:
    """IPython's `display` if this is a notebook's kernel; IPython is never imported for the question."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if getattr(shell, "kernel", None) is None:
        return None
    show: Callable[..., Any] = importlib.import_module("IPython.display").display
    return show
