"""One table of all runs: live at a terminal, a line per change elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rl_training.sweeps.plan import SweepRun
from rl_training.sweeps.status import Status, run_status

REFRESH_SECONDS = 1.0
COLOURS = {"running": "cyan", "done": "green", "crashed": "red", "interrupted": "yellow", "waiting": "dim"}
FIRST_SHOWN = ("running", "crashed", "interrupted", "waiting", "done")
LINES_AROUND = 6


class SweepTable:
    """Shows what the run directories say; it holds no state of the sweep itself."""

    def __init__(
        self, runs: Sequence[SweepRun], *, quiet: bool = False, console: Console | None = None
    ) -> None:
        self.runs = runs
        self.console = console or Console(stderr=True, highlight=False)
        self.quiet = quiet
        self._done: dict[str, Status] = {}
        self._told: dict[str, str] = {}
        self._read_at = 0.0
        self._live: Live | None = None

    def __enter__(self) -> SweepTable:
        if self.console.is_terminal and not self.quiet:
            self._live = Live(console=self.console, auto_refresh=False)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def watch(self, running: set[str]) -> None:
        """Called often; looks at the disk about once a second, and always when everything has ended."""
        now = time.monotonic()
        if self.quiet or (running and now - self._read_at < REFRESH_SECONDS):
            return
        self._read_at = now
        rows = self.rows(running)
        if self._live is not None:
            self._live.update(self.render(rows), refresh=True)
            return
        for run, word, status in rows:
            if self._told.get(run.name, "waiting") != word:
                self.console.print(Text(_sentence(run, word, status)), soft_wrap=True)
            self._told[run.name] = word

    def rows(self, running: set[str]) -> list[tuple[SweepRun, str, Status]]:
        """Every run with its state in words; a run that is done is not read again."""
        found: list[tuple[SweepRun, str, Status]] = []
        for run in self.runs:
            status = self._done.get(run.name) or run_status(run.run_dir)
            if status.state == "done":
                self._done[run.name] = status
            going = run.name in running and status.state != "done"
            word = "running" if going else "waiting" if status.state == "new" else status.state
            found.append((run, word, status))
        return found

    def render(self, rows: Sequence[tuple[SweepRun, str, Status]]) -> Table:
        """What matters first; what does not fit on the screen is counted."""
        words = [word for _, word, _ in rows]
        counts = ", ".join(f"{words.count(word)} {word}" for word in FIRST_SHOWN if word in words)
        table = Table("run", "state", "steps", "return", box=box.SIMPLE, title=f"{len(rows)} runs: {counts}")
        ordered = sorted(rows, key=lambda row: FIRST_SHOWN.index(row[1]))
        room = max(1, self.console.height - LINES_AROUND)
        for run, word, status in ordered[:room]:
            steps = f"{status.step:,}/{run.config.total_timesteps:,}"
            table.add_row(Text(run.name), Text(word, style=COLOURS[word]), steps, shown_return(status))
        if len(ordered) > room:
            table.add_row(f"… and {len(ordered) - room} more", "", "", "")
        return table


def shown_return(status: Status) -> str:
    if status.eval_return is None and status.estimate is not None:
        return f"{status.estimate:,.4g} estimated"
    return "" if status.eval_return is None else f"{status.eval_return:,.1f}"


def _sentence(run: SweepRun, word: str, status: Status) -> str:
    parts = [f"{run.name}: {word}"]
    if word == "done" and shown_return(status):
        parts.append(f"{'value' if status.eval_return is None else 'return'} {shown_return(status)}")
    if word == "crashed":
        parts.append(str(status.problem))
    return ", ".join(parts)
