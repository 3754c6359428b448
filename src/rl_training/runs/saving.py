"""Saving: one process per run directory; periodic, best and last checkpoints."""

from __future__ import annotations

import fcntl
import math
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from rl_training.core.checkpoints import (
    best_checkpoint_path,
    checkpoint_path,
    list_checkpoints,
    prune_checkpoints,
    save_checkpoint,
    strip_subtree,
)
from rl_training.core.errors import RunFailed
from rl_training.core.types import Numbers, State
from rl_training.runtime.callbacks import Callback, Interval, Run

PATIENCE_SECONDS = 60.0
"""How long a run that was told to stop may take to save."""

_held: set[int] = set()


@contextmanager
def lock_run(path: Path, *, patience: float = PATIENCE_SECONDS) -> Iterator[None]:
    """Hold `<path>.lock`; a directory that another process still works in is waited for, then refused.

    The lock lies beside the directory, because a run that starts again clears its directory.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f".{path.name}.lock").open("ab") as file:
        deadline = time.monotonic() + patience
        while not _try_lock(file.fileno()):
            if time.monotonic() >= deadline:
                raise in_use(path)
            time.sleep(0.1)
        yield


class RunLock(Callback):
    """The lock on a run directory itself, held from before its first file is written until the run closes.

    A run that goes on is claimed before its newest checkpoint is looked for: nobody may be writing one.
    """

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.descriptor: int | None = os.open(run_dir, os.O_RDONLY)
        _held.add(self.descriptor)
        try:
            free = _try_lock(self.descriptor)
        except OSError:  # a file system without locks
            free = True
        if not free:
            self.release()
            raise in_use(run_dir)

    def close(self, run: Run) -> None:
        self.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        if self.descriptor is not None:
            _held.discard(self.descriptor)
            os.close(self.descriptor)
            self.descriptor = None


def refuse_directory_in_use(run_dir: Path) -> None:
    """Before a directory is cleared: nobody may be training in it."""
    RunLock(run_dir).release()


def in_use(path: Path) -> RunFailed:
    return RunFailed(f"{path} is in use by another process; wait for it or stop it")


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _let_go_in_the_child() -> None:
    """A process of an environment that outlives its killed parent must not keep the directory."""
    for descriptor in _held:
        with suppress(OSError):
            os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_let_go_in_the_child)


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
