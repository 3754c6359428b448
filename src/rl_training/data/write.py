"""Write datasets so that a kill or a full disk never leaves half a file under the final name."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rl_training.core import files
from rl_training.core.errors import DataError
from rl_training.data.log import EpisodeLog

HDF5_OVERHEAD = 1 << 16


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`, file or directory, that takes its place once it is complete."""
    try:
        with files.replacing(path) as temporary:
            yield temporary
    except (OSError, RuntimeError) as problem:  # h5py reports a full disk either way
        text = files.reason(problem) if isinstance(problem, OSError) else str(problem)
        raise DataError(f"cannot write {path}: {text}; nothing was left under that name") from None


def claim_space(path: Path, log: EpisodeLog) -> None:
    """Raise if the disk cannot hold the rows of `log` uncompressed, by claiming that much for a moment.

    HDF5 does not survive a disk that fills up while it writes: it takes the whole process with it.
    """
    size = sum(values.nbytes for values in log.columns.values())
    if hasattr(os, "posix_fallocate"):
        with tempfile.TemporaryFile(dir=path.parent) as file:
            os.posix_fallocate(file.fileno(), 0, size + HDF5_OVERHEAD)


def refuse_loss(log: EpisodeLog, format: str, *, successors: bool = False) -> None:
    """Raise where a format of another project has no place for something that the log holds.

    `successors` says that it needs the observation after every step, in rows that follow one another.
    """
    if log.further:
        listed = ", ".join(sorted(log.further))
        raise DataError(
            f"{log.info.source}: {format} has no place for {listed}; read the log without them, or write "
            "another format"
        )
    if successors and log.next_obs is None:
        raise DataError(
            f"{log.info.source}: {format} needs the observation after every step, which this log does not "
            "have"
        )
