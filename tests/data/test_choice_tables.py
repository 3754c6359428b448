"""Choices in logs: how they are declared, read, checked, proposed, learned and answered."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rl_training
from helpers import tiny_config, train
from rl_training.cli import main
from rl_training.config.data import ColumnsConfig, DatasetSource, TableFields
from rl_training.core.errors import ConfigError, DataError
from rl_training.core.expressions import split_list
from rl_training.core.spaces import Box, Choice, Spaces
from rl_training.data.info import DataInfo
from rl_training.data.inspect import inspect_log
from rl_training.data.reading import DataWarning
from rl_training.data.tables.build import frame_log
from rl_training.data.tables.guess import guess_mapping, look_at

PUMP, MODE = Choice(("off", "on")), Choice(("eco", "normal", "boost"))
GIVEN = ["--obs", "level", "--action", "valve, pump{off,on}, mode{eco,normal,boost}", "--reward", "score"]
GIVEN += ["--episode", "run"]


def plant_log(folder: Path, rows: int = 240) -> Path:
    """The pump should be on below zero, whatever the rest; words are written as plants write them."""
    rng = np.random.default_rng(0)
    path = folder / "plant.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["run", "level", "valve", "pump", "mode", "score"])
        for row in range(rows):
            level, on = rng.uniform(-1, 1), rng.integers(2)
            words = ["OFF", "ON"][on], ["eco", "normal", "boost"][row % 3]
            paid = float((level < 0) == (on == 1))
            writer.writerow([row // 20, f"{level:.6f}", f"{rng.uniform(0, 5):.4f}", *words, paid])
    return path


def test_commas_in_braces_do_not_separate_columns() -> None:
    assert split_list("valve, pump{0,1},mode{eco, boost} ,, x") == [
        "valve",
        "pump{0,1}",
        "mode{eco, boost}",
        "x",
    ]
    assert split_list("lags(T, 3), a") == ["lags(T, 3)", "a"]


@pytest.mark.parametrize(
    "given",
    [
        {"actions": ["valve", {"name": "pump", "levels": [0, 1]}]},
        {"actions": ["valve", "pump{0,1}"]},
        {"actions": ["valve", "pump"], "levels": {"pump": [0, 1]}},
    ],
)
def test_levels_are_declared_in_three_ways_that_mean_the_same(given: dict[str, Any]) -> None:
    columns = ColumnsConfig.build(given)
    assert columns.actions == ("valve", "pump") and columns.levels == {"pump": (0.0, 1.0)}
    assert ColumnsConfig.build(columns.to_dict()) == columns
    assert ColumnsConfig.build({"actions": "mode{eco, boost}"}).levels == {"mode": ("eco", "boost")}


@pytest.mark.parametrize(
    ("levels", "words"),
    [
        ([False, True], r"levels of pump must be a list .* got \[false, true\] .* put them in quotes"),
        ([1.0], r"levels of a choice must be two or more different names, or numbers, got \[1.0\] for pump"),
        (["on", "on"], "two or more different"),
        ([0, "on"], "two or more different"),
        ({"a": 1}, "must be a list of numbers or of names"),
    ],
)
def test_levels_that_make_no_sense_are_refused(levels: object, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ColumnsConfig.build({"actions": ["pump"], "levels": {"pump": levels}})


def table(**columns: list[Any]) -> dict[str, list[Any]]:
    rows = len(next(iter(columns.values())))
    level = [0.1 * row for row in range(rows)]
    return {"run": [row // 3 for row in range(rows)], "level": level, **columns, "score": [1.0] * rows}


def read(frame: dict[str, list[Any]], *actions: str, **fields: Any) -> Any:
    columns = {"observations": ["level"], "actions": list(actions), "reward": "score", "episode": "run"}
    columns |= fields.pop("columns", {})
    return frame_log(frame, TableFields.build({"columns": columns, **fields}), "frame")


@pytest.mark.parametrize(
    ("cells", "action", "numbers"),
    [
        (["ON", "off", " On ", "OFF"], "pump{off,on}", [1, 0, 1, 0]),
        ([10, 0, 5, 10], "pump{0,5,10}", [10, 0, 5, 10]),
        (["10", "0", "5.0", "0"], "pump{0,5,10}", [10, 0, 5, 0]),
        ([True, False, True, False], "pump{0,1}", [1, 0, 1, 0]),
        (["a", "A", "a", "A"], "pump{A,a}", [1, 0, 1, 0]),
    ],
)
def test_cells_are_read_as_the_log_writes_them(cells: list[Any], action: str, numbers: list[float]) -> None:
    log = read(table(pump=cells), action)
    assert log.actions[:, 0].tolist() == numbers
    assert log.info.choices[0] is not None and log.info.action_names == ("pump",)
    again = DataInfo.from_dict("again", log.info.to_dict())
    assert again.choices == log.info.choices


def test_another_word_is_named_by_its_row_and_what_is_declared_must_be_there() -> None:
    with pytest.raises(DataError, match=r"row 2 has 'AUTO' in 'pump', which is a choice among off, on; give"):
        read(table(pump=["on", "off", "AUTO"]), "pump{off,on}")
    with pytest.raises(
        DataError, match=r"row 0 has 'ON' in the number column 'pump'; .* --action 'pump\{ON,…\}'"
    ):
        read(table(pump=["ON", "OFF", "ON"]), "pump")
    with pytest.raises(
        DataError, match=r"no column 'pmup' \(columns.levels, which is of actions\) \(did you mean 'pump'"
    ):
        read(table(pump=[0, 1, 0]), "pump", columns={"actions": ["pump"], "levels": {"pmup": [0, 1]}})
    with pytest.warns(DataWarning, match="filled with the episode's last value"):
        held = read(table(pump=["on", None, "off"]), "pump{off,on}", missing_values="hold")
    assert held.actions[:, 0].tolist() == [1, 1, 0]


def test_an_inspection_counts_levels_and_proposes_what_it_does_not_decide(tmp_path: Path) -> None:
    values = [row % 2 for row in range(200)]
    plain = inspect_log(read(table(pump=values, valve=[0.01 * row for row in range(200)]), "pump", "valve"))
    assert plain.maybe_choices == {0: [0.0, 1.0]}
    assert any("pump takes only the values 0, 1 and is learned as a number" in w for w in plain.warnings)
    assert any("--action 'pump{0,1}'" in warning for warning in plain.warnings)
    declared = inspect_log(read(table(pump=["off", "on", "on", "on"]), "pump{off,on,auto}"))
    assert declared.level_shares == {0: {"off": 0.25, "on": 0.75, "auto": 0.0}}
    assert "pump is never auto in this data." in declared.warnings
    assert not any("bound" in warning for warning in declared.warnings)


def test_an_unknown_table_is_mapped_with_levels_for_words_and_a_question_for_numbers(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    rows = [f"{0.1 * r},{r % 4},{['ON', 'OFF'][r % 2]},{['a', 'b', 'c'][r % 3]}" for r in range(50)]
    path.write_text("level,valve_cmd,pump,program\n" + "\n".join(rows) + "\n")
    guess = guess_mapping(look_at(DatasetSource(dataset_path=str(path))))
    assert guess.columns.actions == ("valve_cmd", "pump")
    assert guess.columns.levels == {"pump": ("OFF", "ON")}
    assert "'valve_cmd,pump{OFF,ON}'" in guess.flags()
    questions = " ".join(guess.questions)
    assert (
        "valve_cmd: takes only 0, 1, 2, 3; if it is a choice and no number, write valve_cmd{0,1," in questions
    )
    assert "program: text with 3 values" in questions and "program{a,b,c}" in questions


@pytest.mark.parametrize("name, values", [("operator", ["anna", "bert"]), ("shift_no", [1, 2, 3])])
def test_who_acted_is_guessed_from_a_few_values_under_such_a_name(
    tmp_path: Path, name: str, values: list[object]
) -> None:
    path = tmp_path / "log.csv"
    rows = [f"{0.1 * r},{r % 7 * 1.5},{values[r // 20 % len(values)]},{r}-a" for r in range(80)]
    path.write_text(f"level,valve,{name},operator_note\n" + "\n".join(rows) + "\n")
    guess = guess_mapping(look_at(DatasetSource(dataset_path=str(path))))
    assert guess.columns.operator == name and f"--operator {name}" in guess.flags()
    assert name not in guess.columns.observations and not any(name in each for each in guess.questions)


def test_a_number_with_few_values_is_learned_as_one_and_said(tmp_path: Path) -> None:
    log = read(table(pump=[row % 2 for row in range(200)]), "pump")
    config = tiny_config("bc", tmp_path, env_id=None, total_timesteps=2)
    config = config.replace(algo_kwargs={**config.algo_kwargs, "action_bounds": "data"})
    from rl_training.data import TransitionDataset

    with pytest.warns(UserWarning, match="pump takes only the values 0, 1 and is learned as a number"):
        train(config, dataset=TransitionDataset.from_log(log))


def test_a_mixture_is_learned_from_a_file_and_answered_in_its_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = plant_log(tmp_path)
    settings = ["learning_rate=0.01", "hidden_sizes=[16]", "gamma=0", "judge_at_end=false"]
    sets = [word for each in settings for word in ("--set", f"algo_kwargs.{each}")]
    sets += ["--set", "total_timesteps=150"]
    train = ["train", "--algo", "iql", "--data", str(path), *GIVEN, *sets]
    bounds = ["--action-low", "0", "--action-high", "5"]
    assert main([*train, *bounds, "--output-dir", str(tmp_path / "runs"), "--quiet"]) == 0
    run = capsys.readouterr().out.strip().splitlines()[-1]
    policy = rl_training.load_policy(run)
    assert policy.spaces == Spaces.of(1, [Box(0.0, 5.0), PUMP, MODE])
    answers = policy.predict([[-0.7], [0.7]])
    assert answers[:, 1].tolist() == ["on", "off"] and answers[0, 2] in MODE.levels
    observations = tmp_path / "obs.csv"
    observations.write_text("level\n-0.7\n0.7\n")
    for name in ("out.csv", "out.parquet"):
        out = tmp_path / name
        assert main(["predict", "-k", run, "--obs-file", str(observations), "--out", str(out)]) == 0
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert lines[0] == "valve,pump,mode" and [line.split(",")[1] for line in lines[1:]] == ["on", "off"]
    import pyarrow.parquet as parquet

    assert parquet.read_table(tmp_path / "out.parquet")["pump"].to_pylist() == ["on", "off"]
    capsys.readouterr()
    assert main(["data", "inspect", str(path), *GIVEN, *bounds, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["actions"]["level_shares"]["pump"].keys() == {"off", "on"}
    file = tmp_path / "policy.onnx"
    assert main(["export", "-k", run, "--out", str(file), "--guard", "run"]) == 0
    capsys.readouterr()
    assert main(["predict", "-k", str(file), "--obs=-0.7"]) == 0
    assert json.loads(capsys.readouterr().out)["action"][1] == "on"
    card = (tmp_path / "policy.onnx.md").read_text(encoding="utf-8")
    assert "| action 0 | valve | 0 to 5 |" in card
    assert re.search(r"\| action 1 \| pump \| 0 = off, \d+\.\d% of the log; 1 = on, \d+\.\d% of", card), card
    assert main(["data", "convert", str(path), str(tmp_path / "again.csv"), *GIVEN]) == 0
    again = (tmp_path / "again.csv").read_text().splitlines()
    assert again[1].split(",")[2:4] == ['"on"', '"eco"']


def test_bounds_are_those_of_the_numbers_alone(tmp_path: Path) -> None:
    path = plant_log(tmp_path, rows=40)
    config = tiny_config("bc", tmp_path, env_id=None, total_timesteps=1)
    columns = {"observations": ["level"], "actions": ["pump{off,on}"], "reward": "score", "episode": "run"}
    kwargs = {k: v for k, v in config.algo_kwargs.items() if not k.startswith("dataset_")}
    kwargs |= {"dataset_path": str(path), "columns": columns}
    assert train(config.replace(algo_kwargs=kwargs)).run_dir
    with pytest.raises(ConfigError, match="action_low must be null, where every action is a choice"):
        train(config.replace(algo_kwargs={**kwargs, "action_low": [0.0], "action_high": [1.0]}))
    with pytest.raises(
        ConfigError, match=r"columns.levels of .* do not fit the environment, whose action is a "
    ):
        train(config.replace(env_id="Pendulum-v1", algo_kwargs=kwargs))


def test_a_choice_in_a_formula_is_the_place_of_its_level() -> None:
    rows = {
        "run": [0, 0, 0],
        "level": [1.0, 2.0, 3.0],
        "mode": ["boost", "ECO", "normal"],
        "fan": ["on", "off", "on"],
    }
    log = rl_training.read_log(
        rows,
        observations=["level"],
        actions=["mode{eco,normal,boost}"],
        reward="10*mode + fan",  # a word of on and off that is no action is 1 or 0
        episode="run",
    )
    assert log.rewards[:2].tolist() == [21.0, 0.0]
