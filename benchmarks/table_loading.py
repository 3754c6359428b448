"""Speed and memory of reading tables, as ratios to what pyarrow needs for the same columns.

    python benchmarks/data_loading.py --only tables [--rows 1000000] [--repeats 5]

A log of 25 columns is written as Parquet, as one CSV file and as a folder of 1,000 CSV files. CPU time, tasks
taking turns inside one process; peak memory in a fresh process per file.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as parquet
from data_loading import cpu_times, report

from rl_training.data import TransitionDataset, load_transition_dataset

OBSERVATIONS, ACTIONS, FILES = 17, 5, 1000
COLUMNS = {
    "observations": ["s_*"],
    "actions": ["a_*"],
    "reward": "score",
    "episode": "run",
    "terminated": "trip",
}


def table_of(rows: int) -> pa.Table:
    """Random walks as observations, commands in [-1, 1], runs of 1,000 steps: 25 columns."""
    rng = np.random.default_rng(0)
    walk = np.cumsum(rng.normal(size=(rows, OBSERVATIONS)), axis=0) * 0.01
    commands = np.tanh(rng.normal(size=(rows, ACTIONS)))
    columns = {f"s_{i}": walk[:, i].astype(np.float32) for i in range(OBSERVATIONS)}
    columns |= {f"a_{i}": commands[:, i].astype(np.float32) for i in range(ACTIONS)}
    columns |= {"score": rng.normal(size=rows).astype(np.float32), "run": np.arange(rows) // 1000}
    return pa.table(columns | {"trip": (rng.random(rows) < 1e-3).astype(np.int8)})


def ready(path: Path) -> TransitionDataset:
    """Ready to sample: read, mapped, checked, episodes and successors settled."""
    return load_transition_dataset(dataset_path=path, columns=COLUMNS)


PEAK = """
import sys
from pathlib import Path
import pyarrow.csv, pyarrow.parquet, pyarrow.compute
from table_loading import ready
import torch
ready(Path(sys.argv[2])).sample(256)  # imports and pools
def status(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name)) / 1024
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")
before = status("VmRSS")
dataset = ready(Path(sys.argv[1]))
dataset.sample(256)
kept = [*dataset.store.columns.values(), *dataset.store.row_maps.values()]
kept = {tensor.data_ptr(): tensor.nbytes for tensor in kept}
print(status("VmHWM") - before, sum(kept.values()) / 2**20)
"""


def peak_memory(path: Path, small: Path) -> None:
    """Peak of resident memory while loading, relative to the arrays that a dataset keeps."""
    if not Path("/proc/self/clear_refs").exists():
        print("peak memory: needs Linux")
        return
    command = [sys.executable, "-c", PEAK, str(path), str(small)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parent)
    peak, arrays = (float(number) for number in done.stdout.split())
    report(f"{path.name}: peak memory / arrays", peak / arrays, 1.5)
    print(f"  arrays {arrays:.0f} MiB, peak {peak:.0f} MiB")


def measure_tables(folder: Path, rows: int, repeats: int) -> None:
    """Write the tables into `folder` and measure all of them."""
    write_tables(folder, rows)
    one_thread = arrow_csv.ReadOptions(use_threads=False)
    times = cpu_times(
        {
            "read parquet": lambda: parquet.read_table(folder / "log.parquet", use_threads=False),
            "parquet": lambda: ready(folder / "log.parquet").sample(256),
            "read csv": lambda: arrow_csv.read_csv(folder / "log.csv", read_options=one_thread),
            "csv": lambda: ready(folder / "log.csv").sample(256),
            "daily": lambda: ready(folder / "daily").sample(256),
        },
        repeats,
    )
    for label, seconds in times.items():
        print(f"  {label}: {seconds:.3f} s")
    report("Parquet ready to sample / pyarrow read", times["parquet"] / times["read parquet"], 1.5)
    report("CSV ready to sample / pyarrow read", times["csv"] / times["read csv"], 1.3)
    report(f"{FILES} CSV files / one", times["daily"] / times["csv"], 1.3)
    for kind in ("log.parquet", "log.csv", "daily"):
        peak_memory(folder / kind, folder / "small.csv")


def write_tables(folder: Path, rows: int) -> None:
    table = table_of(rows)
    parquet.write_table(table, folder / "log.parquet")
    arrow_csv.write_csv(table, folder / "log.csv")
    arrow_csv.write_csv(table.slice(0, 2000), folder / "small.csv")
    (folder / "daily").mkdir()
    each = -(-rows // FILES)
    for index in range(FILES):
        arrow_csv.write_csv(table.slice(index * each, each), folder / "daily" / f"{index:04d}.csv")
