"""Speed and memory of reading tables, as ratios to what pyarrow needs for the same columns.

    python benchmarks/speed/data_loading.py --only tables [--rows 1000000] [--repeats 5]

A log of 25 columns is written as Parquet, as one CSV file and as a folder of 1,000 CSV files; the first two
are also read with 40 signals of time beside the columns (lags, means, differences). Every reading has a
fresh process, as a training run has: the memory of a process that read before is there already, which halves
the time of whoever comes second. Tasks take turns; medians of CPU time. Peak memory likewise.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as parquet
from data_loading import report

from rl_training.data import TransitionDataset, load_transition_dataset

OBSERVATIONS, ACTIONS, FILES = 17, 5, 1000
TABLES = ("log.parquet", "log.csv", "daily")
COLUMNS = {
    "observations": ["s_*"],
    "actions": ["a_*"],
    "reward": "score",
    "episode": "run",
    "terminated": "trip",
}

SIGNALS = [
    *(f"lags(s_{i}, 4)" for i in range(5)),
    *(f"mean(s_{i}, 20)" for i in range(10)),
    *(f"s_{i} - lag(s_{i}, 3)" for i in range(10)),
]


def table_of(rows: int) -> pa.Table:
    """Random walks as observations, commands in [-1, 1], runs of 1,000 steps: 25 columns."""
    rng = np.random.default_rng(0)
    walk = np.cumsum(rng.normal(size=(rows, OBSERVATIONS)), axis=0) * 0.01
    commands = np.tanh(rng.normal(size=(rows, ACTIONS)))
    columns = {f"s_{i}": walk[:, i].astype(np.float32) for i in range(OBSERVATIONS)}
    columns |= {f"a_{i}": commands[:, i].astype(np.float32) for i in range(ACTIONS)}
    columns |= {"score": rng.normal(size=rows).astype(np.float32), "run": np.arange(rows) // 1000}
    return pa.table(columns | {"trip": (rng.random(rows) < 1e-3).astype(np.int8)})


def ready(path: Path, kind: str = "ready") -> TransitionDataset:
    """Ready to sample: read, mapped, checked, episodes settled; with signals, if the kind says so."""
    signals = SIGNALS if kind == "with signals" else []
    columns = {**COLUMNS, "observations": [*COLUMNS["observations"], *signals]}
    return load_transition_dataset(dataset_path=path, columns=columns)


START = """
import sys, time
from pathlib import Path
import pyarrow.csv, pyarrow.parquet, pyarrow.compute
from table_loading import ready
import torch
torch.set_num_threads(1)
small, path, kind = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
ready(small).sample(256)  # imports and pools
"""
TIME = """
one = pyarrow.csv.ReadOptions(use_threads=False)
start = time.process_time()
if kind != "pyarrow":
    kept = ready(path, kind)
    kept.sample(256)
elif path.suffix == ".csv":
    kept = pyarrow.csv.read_csv(path, read_options=one)
else:
    kept = pyarrow.parquet.read_table(path, use_threads=False)
print(time.process_time() - start)
"""
PEAK = """
def status(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name)) / 1024
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")
before = status("VmRSS")
dataset = ready(path)
dataset.sample(256)
kept = [*dataset.store.columns.values(), *dataset.store.row_maps.values()]
kept = {tensor.data_ptr(): tensor.nbytes for tensor in kept}
print(status("VmHWM") - before, sum(kept.values()) / 2**20)
"""


def in_fresh_process(code: str, path: Path, kind: str = "ready") -> list[float]:
    """The numbers that a piece of code about a file prints."""
    command = [sys.executable, "-c", START + code, str(path.parent / "small.csv"), str(path), kind]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parent)
    return [float(number) for number in done.stdout.split()]


def peak_memory(path: Path) -> None:
    """Peak of resident memory while loading, relative to the arrays that a dataset keeps."""
    if not Path("/proc/self/clear_refs").exists():
        print("peak memory: needs Linux")
        return
    peak, arrays = in_fresh_process(PEAK, path)
    report(f"{path.name}: peak memory / arrays", peak / arrays, 1.5)
    print(f"  arrays {arrays:.0f} MiB, peak {peak:.0f} MiB")


def measure_tables(folder: Path, rows: int, repeats: int, files: Sequence[str]) -> None:
    """Write the tables into `folder` and measure those that are asked for."""
    write_tables(folder, rows)
    kinds = {"daily": ("ready",)}
    whole = ("pyarrow", "ready", "with signals")
    tasks = [(name, kind) for name in files for kind in kinds.get(name, whole)]
    spent: dict[tuple[str, str], list[float]] = {task: [] for task in tasks}
    for _ in range(repeats):
        for name, kind in tasks:
            spent[name, kind] += in_fresh_process(TIME, folder / name, kind)
    times = {task: median(seconds) for task, seconds in spent.items()}
    for (name, kind), seconds in times.items():
        print(f"  {name}, {kind}: {seconds:.3f} s")
    for words, name, limit in (("Parquet", "log.parquet", 1.5), ("CSV", "log.csv", 1.3)):
        if name in files:
            ratio = times[name, "ready"] / times[name, "pyarrow"]
            report(f"{words} ready to sample / pyarrow read", ratio, limit)
            ratio = times[name, "with signals"] / times[name, "ready"]
            report(f"{words} with 40 signals / without", ratio, 2.0 if name == "log.csv" else 3.0)
    if {"daily", "log.csv"} <= set(files):
        report(f"{FILES} CSV files / one", times["daily", "ready"] / times["log.csv", "ready"], 1.3)
    for name in files:
        peak_memory(folder / name)


def write_tables(folder: Path, rows: int) -> None:
    table = table_of(rows)
    parquet.write_table(table, folder / "log.parquet")
    arrow_csv.write_csv(table, folder / "log.csv")
    arrow_csv.write_csv(table.slice(0, 2000), folder / "small.csv")
    (folder / "daily").mkdir()
    each = -(-rows // FILES)
    for index in range(FILES):
        arrow_csv.write_csv(table.slice(index * each, each), folder / "daily" / f"{index:04d}.csv")
