"""How the settings of data are felt: of files and collection, of tables, of one part of a mix."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from felt_settings import ALLOWED, REFUSED, SOUGHT, Felt, to

FILE: dict[str, Any] = {"dataset_kind": "npz", "dataset_path": "returns.npz"}
ROLLED_OUT: dict[str, Any] = {"dataset_kind": "checkpoint", "dataset_checkpoint": "some_run"}
REFERENCE: dict[str, Any] = {"eval_episodes": 1, "reference_min_return": 0.0, "reference_max_return": 10.0}
BY_ID: dict[str, Any] = {"env_id": "toy_envs:Count-v0", "eval_episodes": 2}
PARTS = [{"dataset_kind": "random", "dataset_seed": seed, "dataset_size": 8} for seed in (0, 1)]
BOUNDS: dict[str, Any] = {"env_id": None, "action_low": [-1.0], "action_high": [1.0]}
"""Action bounds of data without an environment."""

COLUMNS: dict[str, Any] = {
    "observations": ["o0", "o1", "o2"],
    "actions": ["valve"],
    "reward": "score",
    "episode": "run",
}


def log(name: str = "log.csv", **columns: Any) -> dict[str, Any]:
    """A table of `write_files`, read with these columns beside, or instead of, `COLUMNS`."""
    mapped = {key: value for key, value in {**COLUMNS, **columns}.items() if value is not None}
    return {"dataset_kind": "csv", "dataset_path": name, "dataset_size": None, "columns": mapped}


ROWS, SORTED = "select * from log", 'order by run, "when"'


def rows_of(**which: str) -> dict[str, Any]:
    """Rows of the database of `write_files`."""
    return {**log("sqlite:log.db", time="when"), "dataset_kind": "table", **which}


DATA: dict[str, Felt] = {
    "gamma": to(0.5, **FILE),
    "dataset_kind": to("npz", how=ALLOWED, told="dataset_path is not used", dataset_path="returns.npz"),
    "dataset_path": to("other.npz", **FILE),
    "dataset_id": to("made/up-v1", how=SOUGHT, dataset_kind="minari", dataset_path="."),
    "dataset_size": to(8),
    "dataset_seed": to(1),
    "dataset_checkpoint": to("other_run", **ROLLED_OUT),
    "dataset_noise": to(0.1, **ROLLED_OUT),
    "dataset_random_share": to(0.5, **ROLLED_OUT),
    "dataset_parts": to(
        [{**PARTS[0], "dataset_seed": 2}, PARTS[1]],
        dataset_kind="mix",
        dataset_size=None,
        dataset_parts=PARTS,
    ),
    "dataset_in_memory": to(False, **FILE),
    "history": to(1, **FILE),
    "rate": to({"action_0": 0.1}, **FILE),
    "costs": to({"c": "obs_0"}, costs={"c": "0 * obs_0"}, penalty={"c": 1.0}, **FILE),
    "limits": to({"nobody": 1.0}, how=SOUGHT, told="nobody"),
    "normalize_reward": to(True),
    "returns_to_go": to("given", **FILE),
    "failure_reward": to(5.0, **FILE),
    "episodes_within_limits": to(True, costs={"low": "action_0 < -0.5"}, limits={"low": 0.3}, **FILE),
    "top_fraction": to(0.5),
    "n_step": to(2),
    "validation_share": to(0.5),
    "normalize_observations": to(True),
    "action_clip": to(0.1),
    "out_of_bounds": to("clip", how=ALLOWED, **{**FILE, "dataset_path": "far.npz"}),
    "action_bounds": to("data", **FILE, env_id=None, how=ALLOWED),
    "action_low": to([-3.0], **FILE, **BOUNDS),
    "action_high": to([3.0], **FILE, **BOUNDS),
    "reference_min_return": to(-5.0, **REFERENCE),
    "reference_max_return": to(5.0, **REFERENCE),
    # databases
    "query": to(f"{ROWS} where run <> 'R0' {SORTED}", **rows_of(query=f"{ROWS} {SORTED}")),
    "table": to("others", **rows_of(table="log")),
    "query_timeout": to(1e-9, how=SOUGHT, told="took longer than 1e-09 seconds", **rows_of(table="log")),
    # tables
    "columns": to({**COLUMNS, "observations": ["o2", "o1", "o0"]}, **log()),
    "missing_values": to("hold", how=ALLOWED, **log("holes.csv")),
    "files_end_episodes": to(False, **log("logs", episode=None)),
    "max_gap": to(5.0, **log(time="when")),
    "discount_by_time": to(True, **log(time="when")),
    "episode_length": to("3 rows", **log(episode=None)),
    "time_zone": to("Mars/Phobos", how=SOUGHT, told="time_zone must be a name", **log(time="when")),
    "date_order": to("day", date_order="month", max_gap=30.5 * 86_400, **log("dates.csv", time="date")),
    "csv_thousands": to(".", **log("marks.csv", observations=["marked", "o1", "o2"])),
    "csv_header": to(False, how=SOUGHT, told="no column 'o0'", **log()),
    "sheet": to("log", how=SOUGHT, told="sheet is for Excel workbooks", **log()),
    "missing_columns": to(
        "empty",
        how=ALLOWED,
        told="no column 'dial'",
        missing_values="drop",
        **log("some", actions=["dial"]),
    ),
    "pivot": to("run=score", how=SOUGHT, told="no column 'o0'", **log(time="when")),
    "pivot_step": to("30s", how=SOUGHT, told="beside pivot", **log()),
    "csv_separator": to("~", how=ALLOWED, told="no column 'o0'", **log("tildes.csv")),
    "csv_decimal": to(",", how=ALLOWED, told="'0,0' in the number column", **log("commas.csv")),
    "csv_encoding": to("ascii", how=SOUGHT, **log("degrees.csv")),
}
BESIDE_DATA: dict[str, Felt] = {
    **{name: felt for name, felt in DATA.items() if name != "gamma"},
    "n_step": to(2, how=REFUSED),
    "discount_by_time": to(True, how=REFUSED, **log(time="when")),
    "episodes_within_limits": to(True, how=REFUSED, **FILE),
    **{
        name: to(value, how=REFUSED, told=f"{name} must be .* online", **FILE)
        for name, value in {
            "returns_to_go": "given",
            "failure_reward": 5.0,
            "limits": {"cost": 1.0},
            "action_low": [-3.0],
            "action_high": [3.0],
            "action_bounds": "data",
        }.items()
    },
}
"""Where an online run learns from data too: its environment has the bounds, its steps are single ones."""

OF_COLUMNS: dict[str, Felt] = {
    "observations": to(["o1", "o0", "o2"]),
    "actions": to(["dial"]),
    "levels": to({"nobody": [0, 1]}, how=SOUGHT, told="nobody"),
    "reward": to("dial"),
    "next_observations": to(["dial", "when", "trip"]),
    "episode": to("shift"),
    "time": to("shift", how=SOUGHT, told="'S0' in the time column 'shift'"),
    "terminated": to("trip"),
    "truncated": to("trip"),
    "behavior_logprobs": to("chance", how=SOUGHT),
    "operator": to("nobody", how=SOUGHT, told="no column 'nobody'"),
    "fields": to({"returns_to_go": ["chance"]}, how=SOUGHT, told="no column 'chance'"),
    "units": to({"when": "ms"}, how=SOUGHT, told=r"when \(ms\)", actions=["when"]),
}
"""Settings of `columns`."""

OF_A_PART: dict[str, Felt] = {
    "weight": to(3.0, others={"weight": 1.0}),
    "rows": to(3, others={"rows": 6}),
}
"""Settings of one of the `dataset_parts`."""


def write_files(folder: Path) -> None:
    """Files whose actions reach from -0.9 to 0.9 (`far`: to 9); an episode fails throughout (reward 5)."""
    write_arrays(folder / "returns.npz", 0.0)
    write_arrays(folder / "other.npz", 50.0)
    write_arrays(folder / "far.npz", 0.0, reach=9.0)
    write_arrays(folder / "many.npz", 0.0, rows=100)
    (folder / "logs").mkdir()
    for name in ("log.csv", "logs/0.csv", "logs/1.csv"):
        write_table(folder / name)
    write_table(folder / "holes.csv", empty=3)
    write_database(folder / "log.db", folder / "log.csv")
    write_table(folder / "tildes.csv", separator="~")
    write_table(folder / "commas.csv", decimal=",", more={"old_0": "1.5", "old_1": "2.5", "old_2": "3.5"})
    write_table(folder / "marks.csv", more={"marked": "1.234"})
    write_table(folder / "dates.csv", more={"date": "01/{month:02d}/2026"})
    (folder / "some").mkdir()
    write_table(folder / "some/0.csv")
    write_table(folder / "some/1.csv", without="dial")
    write_table(folder / "degrees.csv", more={"warm": "20 °C"})


def write_arrays(path: Path, start: float, reach: float = 0.9, rows: int = 20) -> None:
    numbers = start + np.arange(rows, dtype=np.float32)
    rewards = np.where(np.arange(rows) // 4 == 1, 5.0, numbers).astype(np.float32)
    obs = np.stack([numbers] * 3, axis=1)
    np.savez(
        path,
        observations=obs,
        next_observations=obs + 1.0,
        actions=np.linspace(-reach, reach, rows, dtype=np.float32)[:, None],
        rewards=rewards,
        terminals=np.zeros(rows),
        timeouts=(np.arange(rows) % 4 == 3).astype(np.float32),
        returns_to_go=100.0 + numbers,
    )


def write_table(
    path: Path,
    *,
    separator: str = ";",
    decimal: str = ".",
    empty: int | None = None,
    more: dict[str, str] | None = None,
    without: str = "?",
) -> None:
    """12 rows, 1 s apart but 9 s before row 6; episodes of 4 (of 6 by `shift`), a trip in row 5."""
    rows = []
    for row in range(12):
        numbers = [row, row / 2, -row, row / 10, row / 20, 100 + row]
        cells = [str(number).replace(".", decimal) for number in numbers]
        cells += [f"R{row // 4}", f"S{row // 6}", str(row + 8 * (row >= 6)), str(int(row == 5))]
        if row == empty:
            cells[1] = ""
        rows.append([*cells, *(text.format(month=row + 1) for text in (more or {}).values())])
    header = ["o0", "o1", "o2", "valve", "dial", "score", "run", "shift", "when", "trip", *(more or {})]
    kept = [index for index, name in enumerate(header) if name != without]
    lines = (separator.join(cells[index] for index in kept) for cells in [header, *rows])
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_database(path: Path, like: Path) -> None:
    """The rows of a table as one of a database, and once more with everything twice as large."""
    header, *rows = (line.split(";") for line in like.read_text().splitlines())
    cells = [[float(cell) if cell.lstrip("-")[0].isdigit() else cell for cell in row] for row in rows]
    twice = [[2 * cell if isinstance(cell, float) else cell for cell in row] for row in cells]
    for row in twice:
        row[3], row[9] = row[3] / 2, row[9] / 2  # the action stays within its bounds, a flag is a flag
    with closing(sqlite3.connect(path)) as database, database:
        for name, values in (("log", cells), ("others", twice)):
            database.execute(f"create table {name} ({', '.join(map(repr, header))})")
            database.executemany(f"insert into {name} values ({', '.join('?' * len(header))})", values)
