"""Progress at a terminal: a bar that is redrawn in place."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task
from rich.table import Column, Table
from rich.text import Text

from rl_training.runtime.progress_lines import Progression, told_numbers, told_time

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
