"""Speed and memory of offline data, as ratios to what the file library or bare tensor calls need.

    python benchmarks/speed/data_loading.py [--rows 1000000] [--repeats 5] [--only arrays|tables]

Arrays are HDF5 files, sampling and returns-to-go; tables are CSV and Parquet (`table_loading.py`).
Everything is measured in CPU time and interleaved inside one process, because absolute times on shared
machines say little. Peak memory is measured in a fresh process per file. Nothing is downloaded; files are
written to a temporary directory.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import rl_training  # noqa: F401  (before torch, for RL_TRAINING_AMD_MKL=1 to have an effect)

# isort: split
import h5py
import numpy as np
import torch

from rl_training.config.data import OfflineDataFields
from rl_training.core.spaces import Spaces
from rl_training.data.dataset_loaders import load_transition_dataset
from rl_training.data.disk import CACHE_VARIABLE
from rl_training.data.episodes import compute_discounted_returns_to_go
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.prepare import observation_statistics, process_offline_dataset

OBS_DIM, ACTION_DIM, EPISODE, BATCH = 17, 6, 1000, 256


def write_file(path: Path, rows: int, *, successors: bool, **storage: object) -> None:
    """A D4RL-like file: random walks as observations, so that compression has something to do."""
    rng = np.random.default_rng(0)
    steps = rng.normal(size=(rows + 1, OBS_DIM)).astype(np.float32)
    walk = (np.cumsum(steps, axis=0) * 0.01).astype(np.float32)
    ends = np.zeros(rows, dtype=bool)
    ends[EPISODE - 1 :: EPISODE] = True
    with h5py.File(path, "w") as file:
        columns = {
            "observations": walk[:-1],
            "rewards": steps[:-1, 0],
            "timeouts": ends,
            "terminals": ends & False,
        }
        columns["actions"] = np.tanh(rng.normal(size=(rows, ACTION_DIM))).astype(np.float32)
        if successors:
            columns["next_observations"] = (
                walk[1:] + ends[:, None]
            )  # an episode's last state is nobody's first
        for name, values in columns.items():
            file.create_dataset(name, data=values, **storage)


def ready(path: Path) -> TransitionDataset:
    """All that happens before training: reading, every check, sizes and bounds, a summary of the episodes."""
    parts = [load_transition_dataset("hdf5", dataset_path=path)]
    spaces = Spaces(OBS_DIM, (-1.0,) * ACTION_DIM, (1.0,) * ACTION_DIM)
    return process_offline_dataset(parts, OfflineDataFields(), spaces, gamma=0.99).dataset


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """What any loader has to do at least."""
    with h5py.File(path, "r") as file:
        return {name: file[name][:] for name in file}


def cpu_times(tasks: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median CPU seconds of each task; tasks take turns, so that a slow moment hits all of them."""
    spent: dict[str, list[float]] = {name: [] for name in tasks}
    for task in tasks.values():
        task()
    for _ in range(repeats):
        for name, task in tasks.items():
            start = time.process_time()
            task()
            spent[name].append(time.process_time() - start)
    return {name: median(values) for name, values in spent.items()}


def loading(path: Path, repeats: int, limit: float) -> None:
    times = cpu_times(
        {
            "read": lambda: read_arrays(path),
            "load": lambda: ready(path).sample(BATCH),
        },
        repeats,
    )
    dataset = load_transition_dataset("hdf5", dataset_path=path)
    normalisation = cpu_times({"statistics": lambda: observation_statistics(dataset)}, repeats)["statistics"]
    ratio = times["load"] / times["read"]
    report(f"{path.stem}: load and check / h5py read", ratio, limit)
    print(f"  read {times['read']:.3f} s, load {times['load']:.3f} s")
    print(f"  normalisation, not counted above: statistics {normalisation:.3f} s")


def sampling(dataset: TransitionDataset, label: str, repeats: int) -> float:
    """CPU seconds of one batch relative to the bare `index_select` calls; returns seconds per batch."""
    columns = [dataset.store.whole(name) for name in dataset.fields]
    generator = torch.Generator().manual_seed(0)
    batches = 2000

    def bare() -> None:
        for _ in range(batches):
            rows = torch.randint(len(dataset), (BATCH,), generator=generator)
            for column in columns:
                column.index_select(0, rows)

    def ours() -> None:
        for _ in range(batches):
            dataset.sample(BATCH, generator=generator)

    times = cpu_times({"bare": bare, "ours": ours}, repeats)
    report(f"{label}: sample / bare index_select", times["ours"] / times["bare"], 1.3)
    each = 1e6 * times["ours"] / batches
    print(f"  {each:.1f} microseconds per batch of {BATCH}, fields {', '.join(dataset.fields)}")
    return times["ours"] / batches


def returns_to_go(rows: int, repeats: int) -> None:
    rng = np.random.default_rng(1)
    rewards = rng.normal(size=rows).astype(np.float32)
    for label, chance in (("one episode", 0.0), ("episodes of 1000", 1e-3), ("episodes of 20", 0.05)):
        ends = rng.random(rows) < chance
        seconds = cpu_times(
            {"ours": lambda e=ends: compute_discounted_returns_to_go(rewards, e, 0.99)}, repeats
        )["ours"]
        report(f"returns-to-go of {rows} rows ({label}), seconds", seconds, 0.2)


PEAK = """
import sys
from pathlib import Path
import h5py
import rl_training.data.formats.hdf5
from data_loading import ready
import torch
torch.randint(9, (256,))
def status(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name)) / 1024
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")
before = status("VmRSS")
dataset = ready(Path(sys.argv[1]))
dataset.sample(256)
print(status("VmHWM") - before)
"""


def peak_memory(path: Path) -> None:
    """Peak of resident memory while loading, relative to the arrays of the file."""
    if not Path("/proc/self/clear_refs").exists():
        print("peak memory: needs Linux")
        return
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(path)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parent,
    )
    arrays = sum(values.nbytes for values in read_arrays(path).values()) / 2**20
    report(f"{path.stem}: peak memory / arrays", float(done.stdout) / arrays, 1.3)
    print(f"  arrays {arrays:.0f} MiB, peak {float(done.stdout):.0f} MiB")


def report(label: str, value: float, limit: float) -> None:
    print(f"{'ok  ' if value <= limit else 'MISS'} {label}: {value:.3f} (at most {limit:g})", flush=True)


def measure_arrays(folder: Path, rows: int, repeats: int) -> None:
    """HDF5 files of three kinds, batches in memory and on disk, returns-to-go."""
    kinds = {
        "gzip": ({"compression": "gzip"}, True, 1.5),
        "plain": ({}, True, 4.0),
        "plain_without_next": ({}, False, 4.0),
    }
    for name, (storage, successors, limit) in kinds.items():
        path = folder / f"{name}.hdf5"
        write_file(path, rows, successors=successors, **storage)
        loading(path, repeats, limit)
        peak_memory(path)
    dataset = load_transition_dataset("hdf5", dataset_path=folder / "plain.hdf5")
    in_memory = sampling(dataset, "in memory", repeats)
    looked_up = load_transition_dataset("hdf5", dataset_path=folder / "plain_without_next.hdf5")
    sampling(looked_up, "in memory, successors looked up", repeats)
    on_disk = load_transition_dataset("hdf5", dataset_path=folder / "plain.hdf5", in_memory=False)
    for name in on_disk.fields:
        on_disk.store.columns[name].sum()  # warm page cache
    seconds = sampling(on_disk, "on disk", repeats)
    report("on disk / in memory, seconds per batch", seconds / in_memory, 3.0)
    returns_to_go(rows, repeats)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", choices=("arrays", "tables"))
    from table_loading import TABLES, measure_tables  # which uses this module

    parser.add_argument("--files", nargs="+", choices=TABLES, default=TABLES, help="of the tables")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ[CACHE_VARIABLE] = str(folder / "cache")
        if options.only != "tables":
            measure_arrays(folder, options.rows, options.repeats)
        if options.only != "arrays":
            measure_tables(folder, options.rows, options.repeats, options.files)


if __name__ == "__main__":
    main()
