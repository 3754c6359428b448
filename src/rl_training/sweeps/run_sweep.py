"""A sweep from its file to its last run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rl_training.core.errors import ConfigError, UserError
from rl_training.judging.selection import choice
from rl_training.sweeps.local import run_local
from rl_training.sweeps.plan import SweepRun, Task, plan_sweep, store_groups
from rl_training.sweeps.scoring import chosen_metric, estimate_of, is_estimated, judged
from rl_training.sweeps.status import Status, final_metrics, refuse_foreign, run_status
from rl_training.sweeps.sweep_config import expand, load_sweep_config
from rl_training.sweeps.table import SweepTable

Backend = Literal["local", "ray"]


@dataclass(frozen=True)
class SweepResult:
    """Every run of the sweep with what became of it; `signal` is set when the sweep was stopped."""

    output_dir: Path
    runs: tuple[tuple[SweepRun, Status], ...]
    signal: int | None = None
    ranking: str | None = None
    """Which configuration is best by estimated values, where nothing is measured"""

    @property
    def complete(self) -> bool:
        return all(status.state == "done" for _, status in self.runs)


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
    _refuse_foreign_directories(tasks)
    store_groups(tasks, folder)
    runs = [run for task in tasks for run in task.runs]
    left = [task for task in tasks if any(run_status(run.run_dir).state != "done" for run in task.runs)]
    with SweepTable(runs, quiet=quiet) as table:
        if backend == "ray":
            from rl_training.sweeps.ray_backend import run_on_ray

            stopped = run_on_ray(left, address=address, retries=sweep.retries, watch=table.watch)
        else:
            stopped = run_local(
                left,
                workers=worker_count(workers),
                retries=sweep.retries,
                watch=table.watch,
                log_dir=folder / "logs",
            )
    told = ranking(runs) if is_estimated(metric) else None
    return SweepResult(folder, tuple((run, run_status(run.run_dir)) for run in runs), stopped, told)


def ranking(runs: Sequence[SweepRun]) -> str:
    """Which configuration to take by what the log says, and which cannot be told apart from it."""
    by_name: dict[str, list[SweepRun]] = {}
    for run in runs:
        by_name.setdefault(run.run_dir.parent.name, []).append(run)
    found = {
        name: value
        for name, members in by_name.items()
        if (value := estimate_of(final_metrics(run.run_dir) for run in members)) is not None
    }
    if not found:
        return "no ranking: the judge refused every configuration; judgement.json in each run says why"
    leader, level = choice(found)
    tie = f"; a tie within noise with {', '.join(level)}" if level else ""
    return f"by estimated value, not measured: {leader} ({found[leader].value:.4g}){tie}"


def worker_count(workers: int | None) -> int:
    """As many as there are cores this process may use."""
    if workers is not None and workers < 1:
        raise ConfigError(f"workers must be >= 1, got {workers}")
    return workers or len(os.sched_getaffinity(0))


def _refuse_foreign_directories(tasks: list[Task]) -> None:
    mistakes = []
    for task in tasks:
        for run in task.runs:
            try:
                refuse_foreign(run.run_dir, run.config)
            except UserError as problem:
                mistakes.append(str(problem))
    if mistakes:
        raise ConfigError("\n".join(mistakes))
