"""How far a run is: a bar at a terminal, a live line in a notebook, a line now and then in a log file."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

from rich.console import Console

from rl_training.runtime.progress_bar import TerminalBar
from rl_training.runtime.progress_lines import LogLines, Losses, NotebookLine, Progression, Stage


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
        losses: Losses = dict,
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


def _notebook_display() -> Callable[..., Any] | None:
    """IPython's `display` if this is a notebook's kernel; IPython is never imported for the question."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if getattr(shell, "kernel", None) is None:
        return None
    show: Callable[..., Any] = importlib.import_module("IPython.display").display
    return show
