"""One process per run directory. The claim is a lock of the operating system, which a kill releases."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rl_training.core.errors import RunFailed

PATIENCE_SECONDS = 60.0
"""How long a run that was told to stop may take to save."""


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
                raise RunFailed(f"{path} is in use by another process; wait for it or stop it")
            time.sleep(0.1)
        yield


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
