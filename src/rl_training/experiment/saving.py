"""Saving: periodic, best and last checkpoints; only the newest carries the replay rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from rl_training.core.checkpoints import (
    best_checkpoint_path,
    checkpoint_path,
    list_checkpoints,
    prune_checkpoints,
    save_checkpoint,
    strip_subtree,
)
from rl_training.core.errors import RunFailed
from rl_training.core.plain import Numbers, State
from rl_training.runtime.callbacks.base import Callback, Interval
from rl_training.runtime.run import Run


class Checkpoints(Callback):
    """Writes `step_<n>` every `checkpoint_interval` steps and at the end, `best` when evaluation improves."""

    def __init__(self, checkpoint_interval: int, *, keep: int, save_best: bool) -> None:
        self.interval = Interval(checkpoint_interval)
        self.keep, self.save_best = keep, save_best
        self.best: float | None = None

    def on_train_start(self, run: Run) -> None:
        self.interval.start(run.global_step)

    def on_step_end(self, run: Run) -> None:
        if self.interval.due(run.global_step):
            self.save(run)

    def on_train_end(self, run: Run) -> None:
        self.save(run)

    def on_eval_end(self, run: Run, metrics: Numbers, scheduled: bool) -> None:
        value = metrics.get("eval_return_mean")
        if not self.save_best or value is None or (self.best is not None and value <= self.best):
            return
        refuse_broken(run)
        refuse_missing_directory(run)
        save_checkpoint(best_checkpoint_path(run.run_dir), run.state_dict(with_replay=False))
        if scheduled:
            self.best = value

    def save(self, run: Run) -> Path:
        """The newest checkpoint; those before it give up their replay rows once it is safely there."""
        refuse_broken(run)
        refuse_missing_directory(run)
        path = checkpoint_path(run.run_dir, run.global_step)
        save_checkpoint(path, run.state_dict(with_replay=True))
        run.checkpoint_path = path
        prune_checkpoints(run.run_dir, self.keep)
        for older in list_checkpoints(run.run_dir)[:-1]:
            strip_subtree(older, "replay")
        return path

    def state_dict(self) -> State:
        return {"best": self.best}

    def load_state_dict(self, state: State) -> None:
        self.best = None if state["best"] is None else float(state["best"])


def refuse_broken(run: Run) -> None:
    """A run whose losses or weights are no longer numbers ends here: its last checkpoint stays good."""
    refuse_broken_metrics(run, run.update_metrics())
    if not run.learner.is_finite():
        raise RunFailed(f"step {run.global_step}: the networks' weights are no longer finite{last_good(run)}")


def refuse_missing_directory(run: Run) -> None:
    """A directory that somebody has deleted is not made anew behind their back."""
    if not run.run_dir.is_dir():
        raise RunFailed(f"step {run.global_step}: the run directory {run.run_dir} is gone; nothing was saved")


def refuse_broken_metrics(run: Run, metrics: Mapping[str, float]) -> None:
    for name, value in metrics.items():
        if not math.isfinite(value):
            raise RunFailed(f"step {run.global_step}: {name} became {value}{last_good(run)}")


def last_good(run: Run) -> str:
    path = run.checkpoint_path
    return f"; last good checkpoint: {path}" if path else "; no checkpoint was saved before"
