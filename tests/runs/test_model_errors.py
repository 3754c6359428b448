"""A run that learns inside a model says how well the model predicts, by episodes that it never saw."""

from pathlib import Path

import numpy as np
import pytest

import rl_training
from rl_training.cli.train import _model_rows
from rl_training.report.pages import write_report
from rl_training.runs.directory import read_summary

EPISODES, LENGTH = 10, 12
SMALL = {
    "model_updates": 150,
    "behavior_updates": 1,
    "total_timesteps": 152,
    "horizon": 2,
    "hidden_sizes": [16],
    "members": 2,
    "learning_rate": 3e-3,
    "judge_at_end": False,
    "action_low": [-1.0],
    "action_high": [1.0],
}


def log(history: int) -> object:
    """A level that an action moves, and a drift that nobody can predict; a reward in hundreds."""
    draws, rows = np.random.default_rng(0), EPISODES * LENGTH
    valve, level = draws.uniform(-1, 1, rows), np.zeros(rows)
    for row in range(1, rows):
        level[row] = 0.0 if row % LENGTH == 0 else level[row - 1] + 20.0 * valve[row - 1]
    columns = {
        "level": level,
        "luck": draws.normal(size=rows).cumsum(),
        "valve": valve,
        "score": -100.0 * level,
    }
    columns["run"] = np.arange(rows) // LENGTH
    return rl_training.read_log(
        columns,
        observations=["level", "luck"],
        actions="valve",
        reward="score",
        episode="run",
        history=history,
    )


@pytest.mark.parametrize("history", [0, 2])
def test_columns_are_told_in_their_units(history: int, tmp_path: Path) -> None:
    agent = rl_training.LION(output_dir=tmp_path, reward_scale=0.01, **SMALL)
    agent.learn(dataset=log(history), quiet=True)
    (run,) = (path.parent for path in tmp_path.glob("*/summary.json"))
    told = {each["column"]: each for each in read_summary(run)["metrics"]["model_errors"]}
    assert list(told) == ["level", "luck", "reward"], "signals follow from columns and are not told"
    level, luck, reward = told.values()
    assert level["steps"] == [1, 10]
    # the mean square of a step is 400 / 3, and 1 of the drift
    assert level["unchanged"][0] == pytest.approx(20.0 / 3.0**0.5, rel=0.2)
    assert luck["unchanged"][0] == pytest.approx(1.0, rel=0.3)
    assert level["model"][0] < 0.5 * level["unchanged"][0] and luck["model"][0] > 0.8
    assert reward["unchanged"][0] > 1000.0, "in the units of the log, not in those that are learned from"


def test_the_end_of_a_training_and_its_report_name_what_is_left_open(tmp_path: Path) -> None:
    errors = [
        {"column": "level", "steps": [1, 10], "model": [0.1, 1.0], "unchanged": [1.0, 4.0]},
        {"column": "luck", "steps": [1, 10], "model": [1.0, 0.99], "unchanged": [1.4, 1.0]},
    ]
    assert _model_rows({"model_errors": errors}) == [
        ("left open by the model, 10 steps ahead", "99 % of luck, 25 % of level")
    ]
    assert _model_rows({}) == []
    agent = rl_training.LION(output_dir=tmp_path, **SMALL)
    agent.learn(dataset=log(0), quiet=True)
    page = write_report([tmp_path], tmp_path / "report.html").read_text()
    assert "How well does the model know the plant?" in page and "(no help)" in page
