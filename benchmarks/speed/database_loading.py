"""Reading a log from PostgreSQL, beside the same COPY through ADBC alone; and inspecting it.

    python benchmarks/speed/database_loading.py [--rows 1000000] [--columns 40] [--repeats 3]

Needs PostgreSQL's programs (Debian: postgresql); a server of its own is started and thrown away. Both sides
sort by the same columns and take turns; seconds on the wall, with the server on the same machine.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))

from adbc_driver_postgresql import dbapi

from postgres import PASSWORD, PostgresServer, find_binaries
from rl_training.config.data import DatasetSource
from rl_training.data.advice import advise
from rl_training.data.formats import read_source
from rl_training.data.inspect import inspect_log
from rl_training.data.log_checks import hidden_mistakes


def table_of(rows: int, columns: int) -> pa.Table:
    """Random walks as observations, runs of 1,000 rows."""
    rng = np.random.default_rng(0)
    found: dict[str, Any] = {"run": np.arange(rows) // 1000, "at": np.arange(rows, dtype=float)}
    found |= {f"s_{index}": np.cumsum(rng.normal(size=rows)) for index in range(columns)}
    return pa.table(found | {"action": rng.uniform(-1, 1, rows), "score": rng.normal(size=rows)})


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--columns", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    binaries = find_binaries()
    if binaries is None:
        print("PostgreSQL's programs are not on this machine; | nothing | was measured")
        return
    os.environ["PGPASSWORD"] = PASSWORD
    warnings.simplefilter("ignore")
    with PostgresServer(binaries) as server:
        measure(server.address, table_of(given.rows, given.columns), given.repeats)


def measure(address: str, table: pa.Table, repeats: int) -> None:
    with dbapi.connect(address) as connection, connection.cursor() as cursor:
        cursor.adbc_ingest("log", table)
        connection.commit()
    observations = tuple(name for name in table.column_names if name.startswith("s_"))
    roles = {"actions": ("action",), "reward": "score", "episode": "run", "time": "at"}
    columns = {"observations": observations, **roles}
    source = DatasetSource.build({"dataset_path": address, "table": "log", "columns": columns})

    def alone() -> int:
        names = ", ".join(table.column_names)
        with dbapi.connect(address) as connection, connection.cursor() as cursor:
            cursor.execute(f"select {names} from log order by run, at")
            return sum(batch.num_rows for batch in cursor.fetch_record_batch())

    times: dict[str, list[float]] = {"ADBC alone": [], "ready as a log": []}
    for _ in range(repeats):
        for name, work in (("ADBC alone", alone), ("ready as a log", lambda: read_source("auto", source))):
            seconds, result = timed(work)
            times[name].append(seconds)
    print("| PostgreSQL | seconds |\n|---|---|")
    for name, found in times.items():
        print(f"| {name} | {median(found):.2f} |")
    print(f"| ratio | {median(times['ready as a log']) / median(times['ADBC alone']):.2f} |")
    whole, advice, checks = (
        timed(lambda work=work: work(result))[0] for work in (inspect_log, advise, hidden_mistakes)
    )
    print(f"| inspect: all / advice / mistakes | {whole:.2f} / {advice:.2f} / {checks:.2f} |")


if __name__ == "__main__":
    main()
