"""One process per run directory. The claim is a lock of the operating system, which a kill releases."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rl_training.core.errors import RunFailed
from rl_training.runtime.callbacks.base import Callback
from rl_training.runtime.run import Run

PATIENCE_SECONDS = 60.0
"""How long a run that was told to stop may take to save."""

_held: set[int] = set()


@contextmanager
def claim(path: Path, *, patience: float = PATIENCE_SECONDS) -> Iterator[None]:
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


class DirectoryClaim(Callback):
    """The lock on a run directory itself, held from before its first file is written until the run closes."""

    def __init__(self, run_dir: Path) -> None:
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

    def release(self) -> None:
        if self.descriptor is not None:
            _held.discard(self.descriptor)
            os.close(self.descriptor)
            self.descriptor = None


def refuse_directory_in_use(run_dir: Path) -> None:
    """Before a directory is cleared: nobody may be training in it."""
    DirectoryClaim(run_dir).release()


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
