"""Collect data into a file. A kill at any moment loses at most the rows since the last save."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from rl_training.core.atomic import reason
from rl_training.core.checkpoints import load_checkpoint, save_checkpoint
from rl_training.core.errors import DataError
from rl_training.core.plain import Array, State
from rl_training.data.convert import Place, write_place
from rl_training.data.disk_cache import new_flat_file
from rl_training.data.episode_log import EpisodeLog
from rl_training.runtime.data_collection import Rollout
from rl_training.runtime.offline_data import load_policy

SAVE_EVERY_ROWS = 5_000
PARTIAL_SUFFIX = ".partial"
_STATE = "state.safetensors"


@dataclass(frozen=True)
class CollectionRequest:
    """Everything that decides which rows are collected."""

    env_id: str
    rows: int
    seed: int = 0
    checkpoint: str | None = None
    noise: float = 0.0
    random_share: float = 0.0
    env_kwargs: dict[str, object] = field(default_factory=dict)

    def rollout(self) -> Rollout:
        return Rollout(
            self.env_id,
            self.env_kwargs,
            self.seed,
            policy=None if self.checkpoint is None else load_policy(self.checkpoint),
            noise=self.noise,
            random_share=self.random_share,
        )


def collect_to(
    target: Place, request: CollectionRequest, on_rows: Callable[[int], None] = lambda rows: None
) -> EpisodeLog:
    """Collect the rows of `request` into `target`, going on where an interrupted collection stopped.

    Rows lie in flat files beside the target until all are there; resumed or not, the result is the same.
    `on_rows` hears how many rows there are.
    """
    folder = partial_folder(target)
    with request.rollout() as rollout:
        try:
            columns, done = _open(folder, request, rollout)
            on_rows(done)
            while done < request.rows:
                stop = min(done + SAVE_EVERY_ROWS, request.rows)
                rollout.fill(columns, done, stop, on_rows)
                done = stop
                _save(folder, request, rollout, columns, done)
        except OSError as problem:
            if not (folder / _STATE).exists():
                shutil.rmtree(folder, ignore_errors=True)
            raise DataError(
                f"cannot write {folder}: {reason(problem)}; free space and run it again"
            ) from None
        log = rollout.log(columns, str(target))
    write_place(log, target)
    shutil.rmtree(folder)
    return log


def partial_folder(target: Place) -> Path:
    """Where the rows of an unfinished collection lie."""
    path = target.path if target.dataset_id is None else Path(target.dataset_id.replace("/", "-"))
    assert path is not None
    return path.with_name(path.name + PARTIAL_SUFFIX)


def _open(folder: Path, request: CollectionRequest, rollout: Rollout) -> tuple[dict[str, Array], int]:
    """The columns to fill and how many of their rows are there already."""
    if (folder / _STATE).exists():
        state = load_checkpoint(folder / _STATE)
        if state["request"] != asdict(request):
            raise DataError(
                f"{folder} holds an unfinished collection with other settings ({_shown(state['request'])}); "
                "repeat those to finish it, or delete the directory"
            )
        rollout.load_state_dict(state["rollout"])
        mapped = rollout.columns(
            request.rows, lambda name, shape, dtype: np.load(folder / f"{name}.npy", mmap_mode="r+")
        )
        return mapped, int(state["rows"])
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return rollout.columns(
        request.rows, lambda name, shape, dtype: new_flat_file(folder / f"{name}.npy", shape, dtype)
    ), 0


def _save(
    folder: Path,
    request: CollectionRequest,
    rollout: Rollout,
    columns: dict[str, Array],
    rows: int,
) -> None:
    for values in columns.values():
        if isinstance(values, np.memmap):
            values.flush()
    state = {"request": asdict(request), "rollout": rollout.state_dict(), "rows": rows}
    save_checkpoint(folder / _STATE, state)


def _shown(request: State) -> str:
    return ", ".join(f"{name} {value}" for name, value in request.items() if value not in (None, {}, 0.0))
