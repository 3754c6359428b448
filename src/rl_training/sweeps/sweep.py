"""A sweep from its file to its last run: one table of all runs, and what they are chosen by."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Literal

from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rl_training.config.data import OfflineFields
from rl_training.config.run import TrainConfig
from rl_training.core.errors import ConfigError, UserError
from rl_training.core.types import Facts, number
from rl_training.data.splits import FEWEST_EPISODES, logged_episodes
from rl_training.judging.candidates import candidate_of, ranking, tell_broken, tell_refusals, ties
from rl_training.runtime.offline_data import discounted_by_time, load_parts
from rl_training.sweeps.plan import (
    Status,
    SweepRun,
    expand,
    load_sweep_config,
    plan_sweep,
    refuse_foreign,
    store_groups,
)
from rl_training.sweeps.workers import run_local, run_on_ray, worker_count

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


# ---- what configurations are chosen by: a metric that all of them can give, and who comes first by it


AUTO, NONE = "auto", "none"
MEASURED, ESTIMATED = "eval_return_mean", "judge_score"
ALIKE = (
    *("judge_gamma", "judge_rows", "judge_updates", "validation_share"),
    *("dataset_kind", "dataset_path", "dataset_id", "dataset_seed", "dataset_size", "dataset_parts"),
    *("columns", "costs", "limits"),
)
"""Settings in which candidates must agree to be judged alike: the same episodes, the same procedure."""


def chosen_metric(metric: str, configs: Mapping[str, TrainConfig], *, may_be_none: bool) -> str | None:
    """The metric that decides; refused early, with the reason, where nothing can give it."""
    if metric == NONE and may_be_none:
        return None
    simulated = any(config.env_id is not None for config in configs.values())
    if metric == AUTO:
        metric = MEASURED if simulated else ESTIMATED
    way_out = "give env_id" + (f", or metric: {NONE} to train without a ranking" if may_be_none else "")
    if metric.startswith("eval_"):
        bare = next((name for name, config in configs.items() if config.env_id is None), None)
        if bare is not None:
            raise ConfigError(
                f"metric {metric} is measured in an environment, and {bare} has none: {way_out}, or choose "
                f"by estimated values with metric: {ESTIMATED}"
            )
    if is_estimated(metric):
        reason = why_not_judged(configs)
        if reason is not None:
            raise ConfigError(f"metric {metric}: the judge cannot score these runs: {reason}; {way_out}")
    return metric


def is_estimated(metric: str | None) -> bool:
    return metric is not None and metric.startswith("judge_")


def why_not_judged(configs: Mapping[str, TrainConfig]) -> str | None:
    """Looked at before the first run: settings first, then the data itself."""
    offline: list[tuple[TrainConfig, OfflineFields]] = []
    for name, config in configs.items():
        settings = config.run_config()
        if not isinstance(settings, OfflineFields):
            return f"{name} ({config.algo}) learns from an environment"
        if settings.judge_at_end is False or config.online_timesteps:
            return f"{name} has judge_at_end: false, or goes online"
        offline.append((config, settings))
        other = next(
            (each for each in ALIKE if getattr(settings, each) != getattr(offline[0][1], each)), None
        )
        if other is not None:
            return f"{other} differs between candidates, which are then not judged alike"
    for config, settings in offline[:1]:
        try:
            logged = logged_episodes(load_parts(config), settings, discounted_by_time(settings))
            episodes = int(logged.dataset.episode_ends().sum())
        except UserError as problem:
            return str(problem)
        if episodes < FEWEST_EPISODES:
            return f"{episodes} episodes are fewer than {FEWEST_EPISODES}"
    return None


def judged(config: TrainConfig) -> TrainConfig:
    """The same run, judged however short it is."""
    return config.replace(algo_kwargs={**config.to_dict()["algo_kwargs"], "judge_at_end": True})


def told_ranking(runs: Sequence[SweepRun], metric: str, folder: Path) -> str:
    """Which configuration comes first by the metric, and which cannot be told apart from it."""
    by_name: dict[str, list[Facts]] = {}
    for run in runs:
        by_name.setdefault(run.run_dir.parent.name, []).append(run.status.metrics)
    return by_the_judge(by_name) if is_estimated(metric) else _by_the_mean(by_name, metric, folder)


def by_the_judge(runs: Mapping[str, Sequence[Facts]]) -> str:
    """Who comes first by the judge's score, who is level with it, and who cannot be taken."""
    found = {name: judged for name, each in runs.items() if (judged := candidate_of(each)) is not None}
    refused, broken = tell_refusals(found), tell_broken(found)
    leader = next(iter(ranking(found)), None)
    if leader is None or all(each.refused for each in found.values()):
        why = f"the judge refused {refused}" if refused else "no run was judged"
        return f"no ranking: {why}; judgement.json in each run says more"
    if all(each.out_of_question for each in found.values()):
        return f"none can be taken, limits are not kept: {broken}; judgement.json in each run says more"
    level = ties(found)
    tie = f"; a tie within noise with {', '.join(level)}" if level else ""
    rest = f"; refused by the judge: {refused}" if refused else ""
    rest += f"; not to be taken: {broken}" if broken else ""
    first = f"{leader} ({found[leader].told}, score {found[leader].score:.4g})"
    return f"by the judge's score, estimated, not measured: {first}{tie}{rest}"


def _by_the_mean(runs: Mapping[str, Sequence[Facts]], metric: str, folder: Path) -> str:
    means = {}
    for name, members in runs.items():
        values = [value for each in members if (value := number(each.get(metric))) is not None]
        if values:
            means[name] = fmean(values)
    if not means:
        return f"no ranking: no run has {metric}"
    leader = max(means, key=lambda name: means[name])
    sure = f"how sure that is, says: rl-training report {folder}"
    return f"highest mean {metric}: {leader} ({means[leader]:.4g}); {sure}"
