"""Formulas where names of columns stand: what a log becomes, row by row, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_training.config.data import TableFields
from rl_training.core.errors import UserError
from rl_training.data import TransitionDataset
from rl_training.data.dataset_loaders import load_transition_dataset
from rl_training.data.fields import Field, register_field
from rl_training.data.read import read_log
from rl_training.data.reading import DataWarning
from rl_training.data.tables.build import frame_log

FRAME = {
    "run": [1, 1, 1, 1, 2, 2],
    "x": [1.0, 2.0, 4.0, 7.0, 3.0, 5.0],
    "valve": [10.0, 30.0, 20.0, 60.0, 40.0, 20.0],
    "T set": [2.0] * 6,
}
MEAN = 30.0


@pytest.fixture
def csv(tmp_path: Path) -> str:
    names = list(FRAME)
    rows = zip(*FRAME.values(), strict=True)
    text = "\n".join([",".join(names), *(",".join(map(str, row)) for row in rows)])
    (tmp_path / "log.csv").write_text(text)
    return str(tmp_path / "log.csv")


def read(source: Any = FRAME, **more: Any) -> TransitionDataset:
    return read_log(source, **{"actions": "valve", "episode": "run", "observations": "x", **more})


def test_observations_are_formulas_with_names_that_travel(csv: str) -> None:
    for source in (FRAME, csv):
        data = read(source, observations="x, lags(valve, 2), x - `T set`", units={"valve": "%", "x": "m"})
        assert data.info.observation_names == ("x", "lag(valve, 1)", "lag(valve, 2)", "x - `T set`")
        assert data.info.name_of("observation", 2) == "lag(valve, 2) (%)"
        np.testing.assert_array_equal(
            data.obs, [[1, 30, 30, -1], [2, 10, 30, 0], [4, 30, 10, 2], [3, 30, 30, 1]]
        )
        np.testing.assert_array_equal(
            data.next_obs, [[2, 10, 30, 0], [4, 30, 10, 2], [7, 20, 30, 5], [5, 40, 30, 3]]
        )
        assert data.info.signals.first_action == (MEAN,)
        assert data.info.signals.program.columns == ("x", "T set")
    means = read(observations="x, mean(x, 2), diff(x)", units={"x": "m"}).info
    assert means.features.listed("observation") == ["x (m)", "mean(x, 2) (m)", "diff(x)"]


def test_every_kind_of_column_can_be_named() -> None:
    who = {**FRAME, "who": ["Ada", "Ada", "Ben", "Ben", "Ada", "Ben"]}
    for data in (read(who, operator="who"), TransitionDataset.from_dataframe(
        who, observations="x", actions="valve", episode="run", operator="who"
    )):  # fmt: skip
        assert data.store.whole("operators").tolist() == [0, 0, 1, 0]


def test_next_observations_that_were_recorded_are_followed_by_the_signals() -> None:
    frame = {**FRAME, "after": [2.0, 4.0, 7.0, 9.0, 5.0, 6.0]}
    data = read(frame, observations="x, lag(valve), diff(x)", next_observations="after")
    np.testing.assert_array_equal(data.obs[3], [7, 20, 3])
    np.testing.assert_array_equal(data.next_obs[[3, 5]], [[9, 60, 2], [6, 20, 1]])
    assert len(data) == 6


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_log_on_disk_has_the_same_signals(
    csv: str, in_memory: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RL_TRAINING_CACHE", str(tmp_path / "cache"))
    columns = {
        "actions": "valve",
        "episode": "run",
        "observations": ["x", "mean(x, 2)"],
        "reward": "-(x - 2)**2",
    }
    for _ in range(2):  # made, then mapped
        data = load_transition_dataset(csv, columns=columns, history=1, in_memory=in_memory)
        names = ("x", "mean(x, 2)", "lag(x, 1)", "lag(`T set`, 1)", "lag(valve, 1)")
        assert data.info.observation_names == (*names[:3], names[4])
        np.testing.assert_array_equal(data.obs[:3], [[1, 1, 1, 30], [2, 1.5, 1, 10], [4, 2.75, 2, 30]])
        np.testing.assert_array_equal(data.rewards, [-1, 0, -4, -1])


def test_history_is_lags_of_everything_seen_and_done() -> None:
    data = read(observations=["x", "T set"], history=2)
    assert data.info.observation_names == (
        *("x", "T set", "lag(x, 1)", "lag(x, 2)", "lag(`T set`, 1)", "lag(`T set`, 2)"),
        *("lag(valve, 1)", "lag(valve, 2)"),
    )
    np.testing.assert_array_equal(data.obs[2], [4, 2, 2, 1, 2, 2, 30, 10])
    assert read(observations="x", rate={"valve": 5}).info.observation_names == ("x", "lag(valve, 1)")


def test_reward_and_cost_are_formulas_of_this_row_and_the_next() -> None:
    data = read(reward="-(next(x) - 2)**2 - 0.01*abs(valve - lag(valve))")
    np.testing.assert_allclose(data.rewards, [-0.2, -4.2, -25.1, -9.1], rtol=1e-6)
    np.testing.assert_allclose(data.episode_returns(), [-29.5, -9.1], rtol=1e-6)
    plain = read(reward="-x")
    np.testing.assert_array_equal(plain.rewards, [-1, -2, -4, -3])
    np.testing.assert_array_equal(plain.episode_returns(), [-14, -8])  # of all rows, also the last
    register_field(Field("overheat"))
    columns = {"observations": ["x"], "actions": ["valve"], "episode": "run", "fields": {"overheat": "x > 3"}}
    settings = TableFields.build({"columns": columns})
    costs = TransitionDataset.from_log(frame_log(FRAME, settings, "frame")).optional("overheat")
    assert costs is not None
    np.testing.assert_array_equal(costs, [0, 0, 1, 0])


def test_a_termination_is_a_formula_and_ends_the_episode_for_every_other_one() -> None:
    with pytest.warns(DataWarning, match="last row of 3 episodes: these rows are left out"):
        data = read(terminated="x >= 4 and `T set` < 3", reward="-next(x)", observations="x, steps()")
    # rows 2, 3 and 5 terminate; what a last row needs of the next one never came: the one before ends there
    np.testing.assert_array_equal(data.obs, [[1, 0], [2, 1], [3, 0]])
    np.testing.assert_array_equal(data.dones, [0, 1, 1])
    np.testing.assert_array_equal(data.rewards, [-2, -4, -5])
    one_row = {"run": [1, 1, 2, 3, 3], "x": [1, 2, 9, 3, 3], "valve": [10, 30, 20, 60, 40]}
    with pytest.warns(DataWarning, match="last row of 1 episodes"):
        data = read(one_row, terminated="x > 8", reward="-next(x)")
    np.testing.assert_array_equal(data.obs[:, 0], [1, 3])  # what ended at once ends no other episode
    np.testing.assert_array_equal(data.dones, [0, 0])
    known = read(terminated="x >= 4", reward="-x")
    np.testing.assert_array_equal(known.dones, [0, 0, 1, 1, 0, 1])


def test_a_column_serves_in_several_roles_also_as_a_flag(csv: str) -> None:
    frame = {**FRAME, "trip": [0, 0, 0, 1, 0, 1]}
    data = read(frame, observations=["x", "trip"], reward="x", terminated="trip")
    np.testing.assert_array_equal(data.obs[3], [7, 1])
    np.testing.assert_array_equal(data.dones, [0, 0, 0, 1, 0, 1])
    np.testing.assert_array_equal(data.rewards, FRAME["x"])


def test_empty_cells_are_settled_before_a_formula_sees_them() -> None:
    frame = {**FRAME, "x": [1.0, None, 4.0, 7.0, 3.0, 5.0]}
    with pytest.warns(DataWarning, match="filled with the episode's last value"):
        data = read(frame, observations="x, diff(x)", reward="2 * x", missing_values="hold")
    np.testing.assert_array_equal(data.obs[:3], [[1, 0], [1, 0], [4, 3]])
    np.testing.assert_array_equal(data.rewards[:3], [2, 2, 8])
    with pytest.raises(UserError, match="row 1 has no value in column 'x'"):
        read(frame, reward="2 * x")


def test_a_reward_is_computed_in_the_precision_of_its_cells() -> None:
    frame = {**FRAME, "x": [2.4, 2.5, 2.4, 2.4, 2.4, 2.4], "clock": [1.7e9 + row for row in range(6)]}
    data = read(frame, truncated="x > 2.4", reward="next(clock) - clock")
    np.testing.assert_array_equal(data.episode_ends(), [1, 1, 1])  # what is cut is not at 2.4, but at 2.5
    np.testing.assert_array_equal(data.rewards, [1, 1, 1])


REFUSED = {
    "x, lag(T_set)": "no column 'T_set'",
    "x, valve - x": "valve is an action",
    "x, x / (x - 2)": "row 1 gives no number (division by zero: 2, 0)",
    "x, log(2 - x)": "row 1 gives no number (log of 0)",
    "x, lag(x, 4)": "a lag of 4 rows is longer than any episode (the longest has 4 rows)",
    "x, next(x)": "next(x) is not known when the policy is asked",
    "lag(valve)": "an observation needs a column beside past actions",
    "xx": "no column 'xx' (columns.observations) (did you mean 'x'?)",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_cannot_be_observed_is_said_in_a_line(text: str) -> None:
    with pytest.raises(UserError) as problem:
        read(observations=text)
    assert REFUSED[text] in str(problem.value) and "\n" not in str(problem.value)


def test_a_reward_that_is_no_number_names_its_row(csv: str) -> None:
    with pytest.raises(
        UserError, match=r"'1 / \(x - 7\)': .*log.csv: row 3 gives no number \(division by zero"
    ):
        read(csv, reward="1 / (x - 7)")
    with pytest.raises(UserError, match="rewards must be one expression, got 2"):
        read(reward="x + 1, x")
    with pytest.raises(UserError, match=r"rate names no action 'valv' \(did you mean 'valve'\?\)"):
        read(rate={"valv": 5})


def test_an_action_is_not_an_observation() -> None:
    with pytest.raises(
        UserError, match=r"'valve' is mapped twice, to obs and to actions; the past .* is lag\(x\)"
    ):
        read(observations=["x", "valve"])
