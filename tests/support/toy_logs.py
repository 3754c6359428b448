"""Episodes with known structure, written by hand into every format the loaders read."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from rl_training.core.spaces import Spaces
from rl_training.data import TransitionDataset, load_transition_dataset
from rl_training.data.convert import DatasetLocation
from rl_training.data.disk import CACHE_VARIABLE
from rl_training.data.info import DataInfo
from rl_training.data.log import EpisodeLog

Columns = dict[str, np.ndarray[Any, Any]]
OBS_DIM, ACTION_DIM = 3, 2
LENGTHS, TERMINATED = [5, 3, 6, 1, 4], [True, False, False, True, False]
SPACES = Spaces(OBS_DIM, (-2.0, -1.0), (2.0, 3.0))


def episodes(
    lengths: list[int],
    terminated: list[bool],
    *,
    successors: bool = True,
    optional: bool = False,
    seed: int = 0,
) -> Columns:
    """Rows of episodes with these lengths; an episode that does not terminate is timed out.

    Column 0 of an observation is the episode, column 1 the step, so that a false succession is visible.
    """
    rng = np.random.default_rng(seed)
    rows = sum(lengths)
    numbers = np.repeat(np.arange(len(lengths)), lengths)
    steps = np.concatenate([np.arange(length) for length in lengths])
    ends = np.zeros(rows, dtype=bool)
    ends[np.cumsum(lengths) - 1] = True
    terminals = ends & np.repeat(np.array(terminated), lengths)
    obs = np.stack([numbers, steps, rng.normal(size=rows)], axis=1).astype(np.float32)
    next_obs = np.concatenate([obs[1:], obs[:1]])
    final = np.stack([numbers, steps + 1, rng.normal(size=rows)], axis=1)[ends]
    next_obs[ends] = final
    columns: Columns = {
        "observations": obs,
        "actions": rng.uniform(-1.0, 1.0, size=(rows, ACTION_DIM)).astype(np.float32),
        "rewards": rng.normal(size=rows).astype(np.float32),
        "terminals": terminals,
        "timeouts": ends & ~terminals,
    }
    if successors:
        columns["next_observations"] = next_obs.astype(np.float32)
    if optional:
        columns["next_actions"] = rng.uniform(-1.0, 1.0, size=(rows, ACTION_DIM)).astype(np.float32)
        columns["returns_to_go"] = rng.normal(size=rows).astype(np.float32)
    return columns


def as_log(columns: Columns, spaces: Spaces | None = SPACES) -> EpisodeLog:
    info = DataInfo(source="toy log", spaces=spaces, env_id="Toy-v0")
    return EpisodeLog.from_arrays(columns, info=info)


def write_hdf5(path: Path, columns: Columns, **attributes: Any) -> Path:
    with h5py.File(path, "w") as file:
        for name, values in columns.items():
            file[name] = values
        file.attrs.update(attributes)
    return path


def write_npz(path: Path, columns: Columns) -> Path:
    np.savez(path, **columns)  # type: ignore[arg-type]
    return path


def load(place: DatasetLocation, **options: Any) -> TransitionDataset:
    return load_transition_dataset(
        place.kind, dataset_path=place.path, dataset_id=place.dataset_id, **options
    )


def run_python(program: str, cache: Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    source = str(Path(__file__).parents[2] / "src")
    environment = os.environ | {"PYTHONPATH": source, "OMP_NUM_THREADS": "1", CACHE_VARIABLE: str(cache)}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120)
