"""Columns of a table that nobody sees are found and read row by row."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from rl_training.data.read import GivenData, UnusedColumn, as_dataset, unused_columns

COLUMNS = {"observations": ["x"], "actions": ["a"], "reward": "-(x - wanted)**2", "episode": "run"}
ROWS = 12


def table() -> dict[str, list[object]]:
    """Two runs of six rows."""
    return {
        "run": [row // 6 for row in range(ROWS)],
        "x": [0.5 * row for row in range(ROWS)],
        "a": [float(row % 3) for row in range(ROWS)],
        "wanted": [1.5 if row < 6 else 2.5 for row in range(ROWS)],
        "unit": ["north" if row < 6 else "south" for row in range(ROWS)],
        "load": [0.25 * row for row in range(ROWS)],
        "gaps": [None if row == 3 else 1.0 for row in range(ROWS)],
    }


def csv_file(folder: Path) -> str:
    columns = table()
    lines = [
        ",".join("" if cell is None else str(cell) for cell in row)
        for row in zip(*columns.values(), strict=True)
    ]
    file = folder / "log.csv"
    file.write_text("\n".join([",".join(columns), *lines]) + "\n")
    return str(file)


def unused(given: GivenData) -> dict[str, UnusedColumn]:
    return {each.name: each for each in unused_columns(given, COLUMNS, {}, as_dataset(given, COLUMNS))}


@pytest.mark.parametrize("kind", ["file", "frame"])
def test_what_is_neither_seen_nor_done_is_read_as_numbers_or_words(kind: str, tmp_path: Path) -> None:
    """Also what only the reward is made of, not what lacks a value. A run's last row is no transition."""
    found = unused(csv_file(tmp_path) if kind == "file" else table())
    kept = [row for row in range(ROWS) if row % 6 < 5]
    assert list(found) == ["wanted", "unit", "load"]
    np.testing.assert_array_equal(found["load"].values, [0.25 * row for row in kept])
    np.testing.assert_array_equal(found["wanted"].values, [1.5 if row < 6 else 2.5 for row in kept])
    np.testing.assert_array_equal(found["unit"].values, [int(row >= 6) for row in kept])
    assert found["unit"].words == ("north", "south") and found["load"].words == ()


def test_where_the_same_rows_cannot_be_had_again_nothing_is_given(tmp_path: Path) -> None:
    given = csv_file(tmp_path)
    whole = as_dataset(given, COLUMNS)
    half = whole.select_rows(torch.arange(5))
    assert not list(unused_columns(given, COLUMNS, {}, half))
    assert not list(unused_columns(whole, COLUMNS, {}, whole))
    np.savez(tmp_path / "log.npz", observations=np.zeros((3, 1)))
    assert not list(unused_columns(str(tmp_path / "log.npz"), COLUMNS, {}, whole))
