"""A sweep from its file to its last run, with one table of all runs."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rl_training.core.errors import ConfigError, UserError
from rl_training.sweeps.choice import chosen_metric, is_estimated, judged, told_ranking
from rl_training.sweeps.plan import SweepRun, expand, load_sweep_config, plan_sweep, store_groups
from rl_training.sweeps.status import Status, refuse_foreign
from rl_training.sweeps.workers import run_local, worker_count

REFRESH_SECONDS = 1.0
COLOURS = {"running": "cyan", "crashed": "red", "interrupted": "yellow", "waiting": "dim", "done": "green"}
"""States in words, what matters first."""
LINES_AROUND = 6

Backend = Literal["local", "ray"]


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
            status = self._done.get(run.name) or run.status
            if status.done:
                self._done[run.name] = status
            going = run.name in running and not status.done
            word = "running" if going else "waiting" if status.state == "new" else status.state
            found.append((run, word, status))
        return found

    def render(self, rows: Sequence[tuple[SweepRun, str, Status]]) -> Table:
        """What matters first; what does not fit on the screen is counted."""
        words, first = [word for _, word, _ in rows], list(COLOURS)
        counts = ", ".join(f"{words.count(word)} {word}" for word in first if word in words)
        table = Table("run", "state", "steps", "return", box=box.SIMPLE, title=f"{len(rows)} runs: {counts}")
        ordered = sorted(rows, key=lambda row: first.index(row[1]))
        room = max(1, self.console.height - LINES_AROUND)
        for run, word, status in ordered[:room]:
            steps = f"{status.step:,}/{run.config.total_timesteps:,}"
            table.add_row(Text(run.name), Text(word, style=COLOURS[word]), steps, status.shown_return)
        if len(ordered) > room:
            table.add_row(f"… and {len(ordered) - room} more", "", "", "")
        return table


def _sentence(run: SweepRun, word: str, status: Status) -> str:
    parts = [f"{run.name}: {word}"]
    if word == "done" and status.shown_return:
        parts.append(f"{'value' if status.eval_return is None else 'return'} {status.shown_return}")
    if word == "crashed":
        parts.append(str(status.problem))
    return ", ".join(parts)


@dataclass(frozen=True)
class SweepResult:
    """Every run of the sweep with what became of it; `signal` is set when the sweep was stopped."""

    output_dir: Path
    runs: tuple[tuple[SweepRun, Status], ...]
    signal: int | None = None
    ranking: str | None = None
    """Which configuration comes first by the sweep's metric"""

    @property
    def complete(self) -> bool:
        return all(status.done for _, status in self.runs)


def run_sweep(
    source: str | os.PathLike[str],
    *,
    output_dir: str | os.PathLike[str] | None = None,
    workers: int | None = None,
    backend: Backend = "local",
    address: str | None = None,
    quiet: bool = False,
) -> SweepResult:
    """Train every run of a sweep file that is not done yet; nothing starts if any run has a mistake."""
    sweep = load_sweep_config(source)
    folder = Path(output_dir or sweep.output_dir or Path("runs") / Path(source).stem)
    configs = expand(sweep)
    metric = chosen_metric(sweep.metric, configs, may_be_none=True)
    if is_estimated(metric):
        configs = {name: judged(config) for name, config in configs.items()}
    tasks = plan_sweep(sweep, folder, configs)
    folder = Path(os.path.abspath(folder.expanduser()))
    runs = [run for task in tasks for run in task.runs]
    _refuse_foreign_directories(runs)
    store_groups(tasks, folder)
    left = [task for task in tasks if not task.done]
    with SweepTable(runs, quiet=quiet) as table:
        if backend == "ray":
            from rl_training.sweeps.ray import run_on_ray

            stopped = run_on_ray(left, address=address, retries=sweep.retries, watch=table.watch)
        else:
            stopped = run_local(
                left,
                workers=worker_count(workers),
                retries=sweep.retries,
                watch=table.watch,
                log_dir=folder / "logs",
            )
    told = None if metric is None else told_ranking(runs, metric, folder)
    return SweepResult(folder, tuple((run, run.status) for run in runs), stopped, told)


def _refuse_foreign_directories(runs: Sequence[SweepRun]) -> None:
    mistakes = []
    for run in runs:
        try:
            refuse_foreign(run.run_dir, run.config)
        except UserError as problem:
            mistakes.append(str(problem))
    if mistakes:
        raise ConfigError("\n".join(mistakes))
