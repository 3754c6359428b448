"""The progress bar of a run: shown to a person at a terminal, silent everywhere else."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task
from rich.table import Column
from rich.text import Text

# Evaluations and compilation interrupt the steps for a while; a longer memory keeps the time left steady.
SPEED_MEMORY_SECONDS = 120.0


class ProgressDisplay:
    """A bar with steps, updates per second, last return, elapsed time and time left.

    It is drawn on standard error, so that standard output holds results only. Nothing is drawn when either of
    the two is not a terminal.
    """

    def __init__(self, *, quiet: bool = False, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        at_terminal = console is not None or sys.stdout.isatty()
        self._visible = not quiet and at_terminal and self._console.is_terminal
        self._progress: Progress | None = None

    def start(self, total: int, description: str, completed: int = 0) -> None:
        """Show the bar; a resumed run begins at `completed` and estimates its time from new steps only."""
        if not self._visible or self._progress is not None:
            return
        self._progress = Progress(
            BarColumn(bar_width=None, table_column=Column(ratio=1, min_width=4)),
            _Numbers(table_column=Column(no_wrap=True)),
            console=self._console,
            expand=True,
            refresh_per_second=4,
            speed_estimate_period=SPEED_MEMORY_SECONDS,
        )
        # On a line of its own: eighty columns have no room for it beside the numbers.
        self._console.print(Text(description, style="bold"))
        self._progress.add_task(
            description, total=total, completed=completed, updates_per_second=None, last_return=None
        )
        self._progress.start()

    def update(
        self, step: int, *, updates_per_second: float | None = None, last_return: float | None = None
    ) -> None:
        """Move the bar to `step`; a number that is not known is left out."""
        if self._progress is not None:
            self._progress.update(
                self._progress.task_ids[0],
                completed=step,
                updates_per_second=updates_per_second,
                last_return=last_return,
            )

    def message(self, text: str) -> None:
        """Print a line above the bar."""
        if self._visible:
            self._console.print(text, markup=False, highlight=False)

    def stop(self) -> None:
        """Leave the bar as it is and give the terminal back; may be called twice."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


class _Numbers(ProgressColumn):
    """Everything to the right of the bar, as few characters as can be read."""

    max_refresh = 0.25

    def render(self, task: Task) -> Text:
        speed, last_return = task.fields["updates_per_second"], task.fields["last_return"]
        parts = [f"{int(task.completed):,}/{int(task.total or 0):,}"]
        if speed is not None:
            parts.append(f"{speed:,.0f} updates/s")
        if last_return is not None:
            parts.append(f"return {last_return:,.{0 if abs(last_return) >= 1000 else 1}f}")
        parts += [_clock(task.elapsed), f"{_clock(task.time_remaining)} left"]
        return Text(" · ".join(parts), no_wrap=True)


def _clock(seconds: float | None) -> str:
    if seconds is None:
        return "-:--"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
