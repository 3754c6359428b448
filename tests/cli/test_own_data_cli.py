"""From a folder of CSV files to a policy file, without a config."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rl_training
from rl_training import TrainConfig
from rl_training.cli import main
from rl_training.config.run import load_config
from rl_training.runs.options import OWN_ENV, config_from_options

pytest.importorskip("pyarrow")

MAPPING = ["--obs", "T_tank,level", "--action", "valve", "--reward", "score", "--episode", "run"]
MAPPING += ["--time", "when", "--terminated", "trip", "--missing-values", "hold"]


@pytest.fixture(autouse=True)
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two files of a plant: `;`, ISO times, text ids, a word column, an empty cell, a valve that hits 100."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    (tmp_path / "logs").mkdir()
    for day in range(2):
        lines = ["when;run;operator;T_tank;level;valve;score;trip"]
        for row in range(40):
            run = f"R{day}-{row // 20}"
            valve = min(100.0, abs(rng.normal(60, 40)))
            cell = "" if row == 7 else f"{rng.normal(50):.3f}"
            time = f"2026-03-0{day + 1}T06:{row:02d}:00"
            trip = "yes" if row == 19 else "no"
            lines.append(
                f"{time};{run};ann;{cell};{rng.normal(1):.3f};{valve:.2f};{-rng.random():.3f};{trip}"
            )
        (tmp_path / "logs" / f"{day}.csv").write_text("\n".join(lines) + "\n")


def run(*arguments: Any) -> int:
    return main([str(argument) for argument in arguments])


def test_inspect_proposes_a_mapping(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("data", "inspect", "logs/*.csv", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["mapping"] == {
        "observations": ["T_tank", "level"],
        "actions": ["valve"],
        "reward": "score",
        "episode": "run",
        "time": "when",
        "terminated": "trip",
    }
    columns = {column["name"]: column for column in found["columns"]}
    assert columns["T_tank"]["missing"] == 2 and columns["operator"]["taken_for"].startswith("ignored")
    assert any("lie exactly on 100: probably its high bound" in question for question in found["questions"])
    assert "--obs T_tank,level" in found["flags"] and "--missing-values hold" in found["flags"]
    assert run("data", "inspect", "logs") == 0
    text = capsys.readouterr().out
    assert "columns:" in text and "observations: [T_tank, level]" in text and "train --algo iql" in text


def test_what_is_not_clear_is_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "odd.csv").write_text("a,b,done,cost,run\n1,2,0,3,x\n2,3,1,4,y\n3,4,0,5,x\n")
    assert run("data", "inspect", "odd.csv", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    words = " ".join(found["questions"])
    for expected in (
        "done: marks ends",
        "cost: looks like a cost",
        "run: named like an episode, but",
        "no column is named",
    ):
        assert expected in words, expected
    assert "actions" not in found["mapping"] and found["mapping"]["observations"] == ["a", "b"]


def test_columns_that_not_every_file_has_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "some").mkdir()
    for name, head in (("a", "x,valve,pump,reward"), ("b", "x,valve,level,reward"), ("c", "x,valve,reward")):
        cells = len(head.split(","))
        rows = [",".join(str(row % (3 + cell)) for cell in range(cells)) for row in range(40)]
        (tmp_path / "some" / f"{name}.csv").write_text("\n".join([head, *rows]))
    assert run("data", "inspect", "some", "--json") == 0
    questions = json.loads(capsys.readouterr().out)["questions"]
    for name, file in (("pump", "b"), ("level", "a")):
        words = f"{name}: not in every file (some/{file}.csv has no such column), so it is left out"
        assert any(question.startswith(words) for question in questions)
    assert run("data", "inspect", "some", "--obs", "x,pump", "--action", "valve") == 2
    assert "some/b.csv: no column 'pump', which some/a.csv has" in capsys.readouterr().err


def test_ids_that_count_anew_in_every_file_are_proposed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "anew").mkdir()
    for name in "ab":
        rows = [f"{row},{row % 7},{row // 20},1" for row in range(40)]
        (tmp_path / "anew" / f"{name}.csv").write_text("\n".join(["x,valve,run,reward", *rows]))
    assert run("data", "inspect", "anew", "--json") == 0
    assert json.loads(capsys.readouterr().out)["mapping"]["episode"] == "run"
    mapping = ("--obs", "x", "--action", "valve", "--episode", "run", "--json")
    for flags, episodes in (((), 4), (("--files-end-episodes",), 4)):
        assert run("data", "inspect", "anew", *mapping, *flags) == 0
        assert json.loads(capsys.readouterr().out)["episodes"] == episodes
    assert run("data", "inspect", "anew", *mapping, "--no-files-end-episodes") == 2
    assert "set files_end_episodes: true" in capsys.readouterr().err


def test_inspect_with_a_mapping_uses_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("data", "inspect", "logs", *MAPPING, "--no-plot") == 0
    text = capsys.readouterr().out
    assert "T_tank" in text and "valve" in text and "2 of 80 rows have empty cells (T_tank 2)" in text
    assert "of valve lie exactly on 100, but no bound is stated" in text
    bounds = ["--action-low", 0, "--action-high", 255]
    assert run("data", "inspect", "logs", *MAPPING, *bounds, "--no-plot") == 0
    assert "but the stated bound is 255: probably its high bound is 100." in capsys.readouterr().out


def test_train_straight_from_tables_and_again_from_its_config(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = [
        "--steps",
        5,
        "--set",
        "algo_kwargs.hidden_sizes=[8]",
        "--set",
        "algo_kwargs.batch_size=16",
        "--quiet",
    ]
    bounds = ["--action-low", 0, "--action-high", 100]
    with pytest.warns(UserWarning, match="filled with the episode's last value"):
        assert run("train", "--algo", "iql", "--data", "logs/*.csv", *MAPPING, *bounds, *small) == 0
    run_dir = Path(capsys.readouterr().out.strip())
    config = load_config(run_dir / "config.yaml")
    assert config.algo == "iql" and config.algo_kwargs["dataset_path"] == str(tmp_path / "logs/*.csv")
    assert config.algo_kwargs["columns"]["actions"] == ["valve"]
    with pytest.warns(UserWarning, match="filled"):
        assert run("train", "--config", run_dir / "config.yaml", "--quiet") == 0
    capsys.readouterr()
    assert run("export", "--checkpoint", run_dir, "--out", "policy.safetensors") == 0
    from rl_training.policies.files import load_policy

    action = load_policy(tmp_path / "policy.safetensors").predict([50.0, 1.0])
    assert action.shape == (1,) and 0.0 <= action[0] <= 100.0


def test_bc_needs_neither_reward_nor_known_bounds(capsys: pytest.CaptureFixture[str]) -> None:
    small = [
        "--steps",
        3,
        "--set",
        "algo_kwargs.hidden_sizes=[8]",
        "--set",
        "algo_kwargs.action_bounds=data",
        "--quiet",
    ]
    mapping = ["--obs", "level", "--action", "valve", "--episode", "run"]
    assert run("train", "--algo", "bc", "--data", "logs", *mapping, *small) == 0
    told = json.loads((Path(capsys.readouterr().out.strip()) / "summary.json").read_text())
    assert told["dataset"]["episodes"] == 4 and "return_mean" not in told["dataset"]
    assert run("train", "--algo", "iql", "--data", "logs", *mapping, *small) == 2
    assert "has no reward, which iql learns from" in capsys.readouterr().err


def test_what_is_missing_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in (
        ([], "--config is required, or --algo and --data"),
        (["--algo", "iql"], "--config is required, or --algo and --data"),
        (["--env-id", "Pendulum-v1"], "--config is required, or --algo and --data"),
        (["--algo", "iql", "--env-id", "Pendulum-v1"], "--data is required: iql learns from logged data"),
        (["--algo", "scc", "--env-id", "Pendulum-v1"], "did you mean 'sac'"),
        (["--algo", "iql", "--data", "logs"], "missing key 'observations', 'action'"),
        (["--algo", "iql", "--data", "logs", *MAPPING], "does not carry its action bounds"),
        (["--algo", "iql", "--data", "nowhere.csv", *MAPPING], "no such file"),
        (["--algo", "iqql", "--data", "logs"], "did you mean 'iql'"),
    ):
        with pytest.warns(UserWarning, match="filled") if "bounds" in words else _nothing():
            assert run("train", *arguments) == 2, arguments
        assert words in capsys.readouterr().err


def _nothing() -> Any:
    import contextlib

    return contextlib.nullcontext()


def test_convert_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from rl_training.data import load_transition_dataset

    with pytest.warns(UserWarning, match="filled"):
        assert run("data", "convert", "logs", "log.csv", *MAPPING) == 0
        assert run("data", "convert", "logs", "log.feather", *MAPPING) == 0
    output = capsys.readouterr()
    assert (
        "log.csv: 80 rows, 4 episodes" in output.out
        and "left out, not part of a transition: operator" in output.err
    )
    one, two = (load_transition_dataset(dataset_path=name) for name in ("log.csv", "log.feather"))
    for name in one.fields:
        np.testing.assert_array_equal(one.store.whole(name).numpy(), two.store.whole(name).numpy(), name)
    assert two.info.observation_names == ("T_tank", "level")


def test_a_packaged_config_takes_another_file_with_one_option(tmp_path: Path) -> None:
    file = tmp_path / "mine.hdf5"
    settings = config_from_options("iql/locomotion", {}, data=str(file)).algo_kwargs
    assert (settings["dataset_path"], settings["dataset_kind"]) == (str(file), "auto")
    assert settings["dataset_id"] is None and settings["beta"] == 3.0


def test_an_algorithm_and_an_environment_are_enough(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--steps", "30", "--output-dir", str(tmp_path), "--quiet"]
    small = [
        "--set=eval_episodes=1",
        "--set=algo_kwargs.learning_starts=20",
        "--set=algo_kwargs.compile=false",
    ]
    assert main(["train", "--algo", "td3", "--env-id", "MountainCarContinuous-v0", *where, *small]) == 0
    run = rl_training.open_run(capsys.readouterr().out.strip())
    assert (run.config.algo, run.config.env_id) == ("td3", "MountainCarContinuous-v0")
    assert run.config.algo_kwargs == {"learning_starts": 20, "compile": False}  # all else is the default
    assert (
        load_config(OWN_ENV).to_dict()
        == TrainConfig(algo="sac", env_id="Pendulum-v1", total_timesteps=20_000).to_dict()
    )


@pytest.mark.parametrize("text", ["T_tank", "T_tank=", "=K"])
def test_a_unit_needs_a_name_and_a_unit(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "inspect", "log.csv", "--unit", text]) == 2
    assert f"--unit must be NAME=UNIT, such as T_tank=°C, got '{text}'" in capsys.readouterr().err
