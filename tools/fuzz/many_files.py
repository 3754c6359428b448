"""Logs of several files with ids that clash or are odd, logs that lack something, and linked files.

The observation is the number of its file and of its row, so that a transition which nobody logged is visible.
"""

from __future__ import annotations

import csv
import io
import json
import os
import random
from collections.abc import Mapping
from pathlib import Path

import opening
from opening import Check
from trap import Traps
from watch import Case

from rl_training.data import TransitionDataset
from rl_training.data.convert import DatasetLocation, read_location
from rl_training.data.inspect import inspect_log

Row = dict[str, object]
COLUMNS = {"observations": ["file", "row"], "actions": ["u"], "reward": "r", "episode": "run"}
FLAGS = ("--obs", "file,row", "--action", "u", "--reward", "r", "--episode", "run")
ODD_IDS = (0, 1, -1, 1.0, 1.5, True, "", " ", "1", "run 1", "nan", "null", "ä\u2028", 2**70, "x" * 300, None)
ODD_VALUES: tuple[object, ...] = ([], [1], [[1]], {}, {"a": 1}, None, "", float("nan"), float("inf"), "text")


def many_files(number: int, rng: random.Random) -> Case:
    """Half of the logs have clashing ids, the others lack something."""
    return clashing(rng) if number % 2 == 0 else lacking(rng)


def clashing(rng: random.Random) -> Case:
    """Files whose ids come back in the next one, with a time that goes on there, or not, or without any."""
    timed, ids = rng.random() < 0.6, rng.choice([(1,), (1, 2), (1, 2, 3), tuple(rng.sample(ODD_IDS, 3))])
    files: list[list[Row]] = []
    going_on: set[int] = set()
    row, time, last = 0, 0.0, None
    for file in range(rng.randint(1, 6)):
        rows: list[Row] = []
        for place, run in enumerate(ids):
            follows = place == 0 and row > 0 and run is not None and run == last and type(run) is type(last)
            goes_on = timed and follows and rng.random() < 0.5
            time = time + 1.0 if goes_on else time + rng.choice([-5000.0, 1000.0, -5.0])
            if goes_on:
                going_on.add(row - 1)
            for step in range(rng.randint(1, 6)):
                cells = {"file": file, "row": row, "u": row % 7, "r": 1.0, "run": run, "t": time + step}
                rows.append(cells)
                row += 1
            time, last = time + step, run
        files.append(rows)
    return Case(written(files, rng), no_invented_steps({"time": "t"} if timed else {}, going_on))


def no_invented_steps(more: Mapping[str, str], going_on: set[int]) -> Check:
    """Every transition leads to the next row, and into the next file only where the log goes on there."""

    def check(folder: Path) -> None:
        place = DatasetLocation("table", folder)
        fields = {"columns": {**COLUMNS, **more}}
        inspect_log(read_location(place, exact=True, lenient=True, fields=fields), None)
        data = TransitionDataset.from_log(read_location(place, fields=fields))
        inner = data.dones == 0
        now, then = data.obs[inner], data.next_obs[inner]
        assert ((then - now)[:, 1] == 1).all(), "a successor is not the next row"
        crossing = {int(row) for row in now[now[:, 0] != then[:, 0], 1].tolist()}
        assert crossing <= going_on, f"rows {sorted(crossing - going_on)} lead into another file"

    return check


def lacking(rng: random.Random) -> Case:
    """A column that holds nothing, or lists, or something else in every row; episodes of one row."""
    rows: list[Row] = [
        {"file": 0, "row": row, "u": row % 7, "r": 1.0, "run": row // 5, "t": row} for row in range(40)
    ]
    column, value = rng.choice(["file", "row", "u", "r", "run"]), rng.choice(ODD_VALUES)
    share = rng.choice([1.0, 1.0, 0.1])
    for row in rows:
        if rng.random() < share:
            row[column] = value
    if rng.random() < 0.3:
        rows = [{**row, "run": number} for number, row in enumerate(rows)]
    small = (
        "--steps",
        "1",
        "--set",
        "algo_kwargs.hidden_sizes=[4]",
        "--set",
        "algo_kwargs.action_bounds=data",
    )
    commands: list[tuple[str, ...]] = [("data", "inspect", "{}", *FLAGS, *more) for more in ((), ("--json",))]
    commands.append(("data", "inspect", "{}"))
    commands.append(("train", "--algo", "bc", "--data", "{}", *FLAGS, *small, "--quiet", "-o", "{}/runs"))
    return Case(written([rows], rng), opening.command(*rng.choice(commands)))


def written(files: list[list[Row]], rng: random.Random) -> dict[str, bytes]:
    """The files as CSV or JSON lines; some lack a column, or are empty."""
    write, ending = rng.choice([(as_csv, "csv"), (as_jsonl, "jsonl")])
    named = {f"{number}.{ending}": write(rows) for number, rows in enumerate(files)}
    if rng.random() < 0.05:
        named[f"{len(files)}.{ending}"] = b""
    return named


def as_csv(rows: list[Row]) -> bytes:
    text = io.StringIO()
    table = csv.DictWriter(text, list(rows[0]))
    table.writeheader()
    table.writerows(rows)
    return text.getvalue().encode()


def as_jsonl(rows: list[Row]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


class LinkTraps(Traps):
    """Folders that hold a link which leads out of them."""

    def set(self) -> None:
        files = {"a.csv": b"obs_0,action_0,reward\n" + b"1,2,3\n2,3,4\n" * 20}
        for name, target in (("b.csv", "../outside/secret.csv"), ("more", "../outside")):
            for pattern in ("{}", "{}/*.csv", "{}/**/*.csv"):
                if (name, pattern) != ("more", "{}/*.csv"):  # which does not match what is linked
                    check = opening.command("data", "inspect", pattern)
                    self.add(f"a link to {target}", files, linked(target, name, check))


def linked(target: str, name: str, check: Check) -> Check:
    """Make the link first, which files alone cannot be."""

    def linked_check(folder: Path) -> object:
        os.symlink(target, folder / name)
        return check(folder)

    return linked_check
