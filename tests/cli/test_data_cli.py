"""`rl-training data`: reports, conversions, and a collection that survives interruptions."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_training.cli import main
from rl_training.core.errors import EnvironmentProblem
from rl_training.data.convert import DatasetLocation, read_location, target_location, write_location
from rl_training.data.inspect import inspect_log
from rl_training.runtime import record as resumable_collection
from rl_training.runtime.record import CollectionRequest, collect_to
from toy_logs import SPACES, as_log, episodes, run_python, write_hdf5, write_npz

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(*arguments: Any) -> int:
    return main(["data", *(str(argument) for argument in arguments)])


def test_inspect_reports_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    columns = episodes([4, 6, 1], [True, False, True])
    write_hdf5(tmp_path / "log.hdf5", columns, env_id="Toy-v9")
    assert run("inspect", "log.hdf5", "--plot", "seen/log.png") == 0
    text = capsys.readouterr().out
    for words in ("Toy-v9", "11", "2 / 1", "action 1", "observation 2", "does not state its action bounds"):
        assert words in text, words
    assert "1 of 3 episodes have a single step" in text
    assert (tmp_path / "seen" / "log.png").read_bytes().startswith(PNG)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.hdf5", "seen"]


def test_inspect_leaves_nothing_where_it_was_not_told_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_hdf5(tmp_path / "log.hdf5", episodes([4, 6, 1], [True, False, True]))
    assert run("inspect", "log.hdf5") == 0
    assert [path.name for path in tmp_path.iterdir()] == ["log.hdf5"]
    assert run("inspect", "log.hdf5", "--plot", "a.png", "--no-plot") == 2
    assert "--plot a.png and --no-plot contradict each other" in capsys.readouterr().err


def test_actions_and_observations_have_tables_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Names do not say which of the two a column is."""
    rows = [f"{row},{row % 5},{2 * row},{row // 10}" for row in range(40)]
    (tmp_path / "log.csv").write_text("\n".join(["level,valve,reward,episode", *rows]))
    assert run("inspect", "log.csv", "--obs", "level", "--action", "valve") == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    heads = [
        index for index, words in enumerate(lines) if {"min", "max"} < set(words) and "median" not in words
    ]
    assert [[word for word in lines[index] if word.isalpha()] for index in heads] == [
        ["action", "min", "max", "on", "a", "bound"],
        ["observation", "min", "max", "mean", "std"],
    ]
    where = {
        name: index for index, words in enumerate(lines) for name in ("valve", "level") if name in words[:2]
    }
    assert heads[0] < where["valve"] < heads[1] < where["level"]


def test_costs_are_told_with_their_limits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two episodes of four rows, hot in two rows of the first: 2 of 8 rows, 1 an episode, half kept 0.3."""
    rows = [f"{T},0,0,{row // 4}" for row, T in enumerate([70, 81, 82, 75, 60, 61, 62, 63])]
    (tmp_path / "log.csv").write_text("\n".join(["T,valve,reward,run", *rows]))
    asked = ("log.csv", "--obs", "T", "--action", "valve", "--reward", "reward", "--episode", "run")
    limits = ("--cost", "hot: T > 80", "--cost", "warm: T > 65", "--limit", "hot: 0.3")
    assert run("inspect", *asked, *limits) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "cost mean per step per episode limit episodes that keep it" in lines
    assert "hot 0.25 1 0.3 per step 50.0%" in lines and "warm 0.5 2 – –" in lines
    assert any(line.startswith("- Only 1 of 2 episodes cost more of hot than the least") for line in lines)
    assert run("inspect", *asked, *limits, "--json") == 0
    told = json.loads(capsys.readouterr().out)["costs"]
    assert told["hot"] == {
        "per_step": 0.25,
        "per_episode": 1.0,
        "costly_episodes": 1,
        "limit": "0.3 per step",
        "episodes_within": 0.5,
    }
    assert run("inspect", *asked, "--limit", "hot: 0.3") == 2
    assert "limits names 'hot', which is no cost" in capsys.readouterr().err


def test_inspect_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    columns = episodes([4, 6], [True, False])
    write_npz(tmp_path / "log.npz", columns)
    assert run("inspect", "log.npz", "--json", "--no-plot") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["transitions"] == 10 and report["episodes"] == 2
    assert (report["terminations"], report["timeouts"]) == (1, 1)
    returns = [columns["rewards"][:4].sum(), columns["rewards"][4:].sum()]
    assert report["return"]["min"] == pytest.approx(min(returns), rel=1e-5)
    assert report["return"]["mean"] == pytest.approx(np.mean(returns), rel=1e-5)
    assert report["episode_length"]["max"] == 6
    assert report["observations"]["std"][0] == pytest.approx(columns["observations"][:, 0].std(), rel=1e-5)
    assert not list(tmp_path.glob("*.png"))


def test_an_inspection_counts_what_training_refuses() -> None:
    columns = episodes([5, 5], [False, False], successors=False)
    columns["actions"][:, 0] = SPACES.action_high[0]
    columns["actions"][3, 1] = 9.0
    columns["observations"][:, 1] = 4.0
    columns["rewards"][:] = 1.0
    columns["observations"][6] = columns["observations"][5]
    columns["actions"][6] = columns["actions"][5]
    found = inspect_log(as_log(columns))
    assert found.usable_rows == 8 and found.duplicates == 1
    assert found.saturation[0] == 1.0 and found.saturation[1] < 0.5
    words = " ".join(found.warnings)
    for expected in (
        "2 rows end a timed-out episode",
        "No row terminates",
        "Every reward is 1",
        "1 rows (10.0%) repeat",
        "Actions 1 leave their bounds",
        "lie on a bound",
        "Actions 0 never change",
        "Observations 1 never change",
    ):
        assert expected in words, expected


def test_inspect_shows_nan_instead_of_failing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    columns = episodes([4, 6], [True, False])
    columns["observations"][2, 0] = np.nan
    columns["rewards"][7] = np.inf
    write_npz(tmp_path / "log.npz", columns)
    assert run("inspect", "log.npz") == 0
    text = capsys.readouterr().out
    assert "obs has 1 rows with NaN" in text and "rewards has 1 rows with NaN" in text


@pytest.mark.parametrize("columns", ["one", "two"])
def test_an_action_without_any_number_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], columns: str
) -> None:
    log = episodes([4, 6], [True, False])
    log["actions"][:, 0 if columns == "one" else slice(None)] = np.nan
    write_npz(tmp_path / "log.npz", log)
    for more in ((), ("--plot", "a.png"), ("--json",)):
        assert run("inspect", "log.npz", *more) == 2
        told = capsys.readouterr()
        assert told.err.count("\n") == 1 and "log.npz: action 0 holds no number in any row" in told.err


def test_one_empty_observation_does_not_hide_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = episodes([4, 6], [True, False])
    log["observations"][:, 0] = np.nan
    log["rewards"][:] = np.nan
    write_npz(tmp_path / "log.npz", {name: log[name] for name in log if name != "next_observations"})
    assert run("inspect", "log.npz", "--json", "--plot", "a.png") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["observations"]["mean"][0] is None and found["observations"]["max"][1] == 5.0


def test_an_observation_far_from_zero_is_not_constant(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    far = 1e8 + rng.normal(size=200) * 3
    rows = [
        f"{x:.3f},0.1,{u:.4f},1,{row // 20}"
        for row, (x, u) in enumerate(zip(far, rng.normal(size=200), strict=True))
    ]
    (tmp_path / "log.csv").write_text("\n".join(["pressure,still,u,reward,episode", *rows]))
    assert run("inspect", "log.csv", "--obs", "pressure,still", "--action", "u", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["observations"]["std"][0] == pytest.approx(far.std(), rel=1e-3)
    words = " ".join(found["warnings"])
    assert "Observations still never change." in words and found["duplicates"] == 0
    assert "Observations pressure vary by less than single precision can tell" in words


@pytest.mark.parametrize(("rows", "said"), [(30, False), (31, True)])
def test_a_bound_is_not_guessed_from_a_few_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rows: int, said: bool
) -> None:
    """Some row is always the largest; and of thirty, a few may be by chance."""
    lines = [f"{row},{min(row, rows - 4)},1,{row // 10}" for row in range(rows)]
    (tmp_path / "log.csv").write_text("\n".join(["level,valve,reward,episode", *lines]))
    for mapping in ((), ("--obs", "level", "--action", "valve")):
        assert run("inspect", "log.csv", *mapping) == 0
        text = capsys.readouterr().out
        assert ("probably its high bound" in " ".join(text.split())) is said
        assert "probably its low bound" not in " ".join(text.split())


def test_inspect_finds_minari_ids(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_location(
        as_log(episodes([4, 6], [True, False])), DatasetLocation("minari", tmp_path / "sets", "toy/log-v0")
    )
    assert run("inspect", "toy/log-v0", "--minari-root", "sets", "--plot", "out.png") == 0
    assert "Toy-v0" in capsys.readouterr().out and Path("out.png").exists()
    assert run("inspect", "toy/other-v0", "--minari-root", "sets") == 2
    assert "installed: toy/log-v0" in capsys.readouterr().err


SMALL_JUDGEMENT = {"hidden_sizes": [8], "members": 2, "updates": 20, "batch_size": 32, "model_updates": 10}
SMALL_JUDGEMENT |= {"model_hidden_sizes": [8], "model_members": 2, "density_updates": 10, "rollout_starts": 5}


@pytest.mark.slow
def test_minari_ids_are_spelled_alike_everywhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`inspect`, `train` and `judge` take an id, with or without its prefix, and the folder itself."""
    write_location(
        as_log(episodes([10] * 30, [True] * 30)), DatasetLocation("minari", tmp_path / "sets", "toy/log-v0")
    )
    small = ["--steps", "2", "--set", "algo_kwargs.hidden_sizes=[8]", "--quiet"]
    quick = [f"--set={name}={json.dumps(value)}" for name, value in SMALL_JUDGEMENT.items()]
    root, runs = ["--minari-root", "sets"], []
    for spelled in (["toy/log-v0", *root], ["minari:toy/log-v0", *root], ["sets/toy/log-v0"]):
        assert run("inspect", *spelled, "--json") == 0
        assert json.loads(capsys.readouterr().out)["transitions"] == 300
        assert main(["train", "--algo", "bc", "--data", *spelled, *small]) == 0
        runs.append(capsys.readouterr().out.strip())
    values = []
    for given in (["--data", "toy/log-v0", *root], []):
        assert main(["judge", *runs, *given, *quick, "--quiet", "--json", "judge.json"]) == 0
        values.append(json.loads(Path("judge.json").read_text())["behaviour"]["value"])
        runs = runs[:2]  # the third names the same data by its folder
    assert values[0] == values[1]
    for command in (["train", "--algo", "bc"], ["judge", runs[0]]):
        assert main([*command, "--data", "toy/other-v0", *root]) == 2
        told = capsys.readouterr().err
        assert (
            "toy/other-v0: no such file or folder; as the id of" in told and "installed: toy/log-v0" in told
        )
    assert main(["judge", runs[0], *root]) == 2 == main(["train", "--config", "bc/pendulum", *root])
    assert capsys.readouterr().err.count("--minari-root must come with --data") == 2


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("log.xls", "an old Excel workbook, which is not read[;:] save the sheet with the log as CSV"),
        ("plant.db", "a database of SQLite[;:] write sqlite: before its name"),
        ("plant.duckdb", "a database, which is not read[;:] export the rows of the log"),
        ("log.zip", "an archive, which is not read[;:] unpack it"),
        ("mysql://me@host/plant", "mysql://…: is the address of a database.* export"),
        ("https://host/log.csv", "https://…: is an address; nothing is downloaded"),
        ("nosuch", "nosuch: no such file or folder; give a file, a folder, a pattern in quotes, or the id"),
        ("logs/nosuch", "logs/nosuch: no such file or folder"),
        ("nosuch.csv", "nosuch.csv: no such file"),
    ],
)
def test_what_is_not_read_is_named_with_a_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, words: str, there: bool
) -> None:
    if there and name.startswith(("log.", "plant.")):
        (tmp_path / name).write_bytes(b"PK")
    for command in (["data", "inspect", name], ["train", "--algo", "iql", "--data", name]):
        assert main(command) == 2
        told = capsys.readouterr().err
        assert re.search(words, told) and told.count("\n") == 1
        assert "minari" not in told.lower() or "id of a Minari dataset" in told
        assert "secret" not in told


def test_convert_tours_all_formats(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    columns = episodes([4, 6, 3], [True, False, False], successors=False)
    write_hdf5(tmp_path / "a.hdf5", {**columns, "infos": np.zeros(13)})
    low_high = ("--action-low", -2, "--action-low", -1, "--action-high", 2, "--action-high", 3)
    assert run("convert", "a.hdf5", "b.npz", *low_high) == 0
    output = capsys.readouterr()
    assert (
        "b.npz: 13 rows, 3 episodes" in output.out
        and "left out, not part of a transition: infos" in output.err
    )
    assert run("convert", "b.npz", "minari:toy/log-v0", "--minari-root", "sets") == 0
    assert run("convert", "minari:toy/log-v0", "c.parquet", "--minari-root", "sets") == 0
    assert run("convert", "c.parquet", "d.hdf5") == 0
    back = read_location(DatasetLocation("hdf5", Path("d.hdf5")))
    assert back.info.spaces == SPACES
    for name, column in (("obs", "observations"), ("rewards", "rewards"), ("terminated", "terminals")):
        np.testing.assert_array_equal(getattr(back, name), columns[column])


def test_convert_refuses_what_it_cannot_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_npz(tmp_path / "a.npz", episodes([4], [True]))
    for arguments, words in (
        (("a.npz", "b.txt"), "the target must end in .csv, .parquet, .feather"),
        (("a.npz", "a.npz"), "exists already; add --overwrite"),
        (("a.npz", "minari:x-v0", "--minari-root", "sets"), "states its action bounds"),
        (("a.npz", "b.npz", "--action-low", -1), "must be given together"),
        (("a.npz", "b.npz", "--action-low", 1, "--action-high", 0), "low < high"),
        (("absent.npz", "b.npz"), "no such file"),
    ):
        assert run("convert", *arguments) == 2, arguments
        assert words in capsys.readouterr().err
    assert run("convert", "a.npz", "a.npz", "--overwrite") == 0
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["a.npz"]


@pytest.mark.slow
def test_a_full_disk_leaves_nothing_under_the_final_name(tmp_path: Path) -> None:
    """Files may grow to 200 kB only, which a disk without space looks like to the writer."""
    write_npz(tmp_path / "a.npz", episodes([30_000], [True]))
    bounds = ["--action-low", "-1", "--action-high", "1"]
    commands = [
        ["convert", "a.npz", "b.npz"],
        ["convert", "a.npz", "b.parquet"],
        ["convert", "a.npz", "b.hdf5"],
        ["convert", "a.npz", "minari:toy/b-v0", "--minari-root", ".", *bounds],
        ["collect", "--env-id", "Pendulum-v1", "--rows", "100000", "--out", "b.hdf5"],
    ]
    program = (
        "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "from rl_training.cli import main\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))\n"
        f"print([main(['data', *command]) for command in {commands}])\n"
    )
    done = run_python(program, tmp_path / "cache", cwd=tmp_path)
    assert done.stdout.strip() == "[2, 2, 2, 2, 2]", done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 5 and all(line.startswith("error: cannot write ") for line in lines), lines
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["a.npz"]


def test_collect_random_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("collect", "--env-id", "Pendulum-v1", "--rows", 250, "--out", "random.hdf5", "--seed", 3) == 0
    assert "random.hdf5: 250 rows, 2 episodes" in capsys.readouterr().out
    log = read_location(DatasetLocation("hdf5", tmp_path / "random.hdf5"))
    assert log.info.env_id == "Pendulum-v1" and log.info.spaces is not None
    assert np.flatnonzero(log.truncated).tolist() == [199, 249] and not log.terminated.any()
    assert 1.9 < np.abs(log.actions).max() <= 2.0
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize("out", ["log.npz", "minari:toy/collected-v0"])
def test_an_interrupted_collection_goes_on_to_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str
) -> None:
    monkeypatch.setattr(resumable_collection, "SAVE_EVERY_ROWS", 40)
    request = CollectionRequest(env_id="Pendulum-v1", rows=230, seed=4)
    expected = collect_to(target_location("whole.npz"), request)

    class Interrupted(Exception):
        pass

    def stop_at(limit: int) -> Any:
        def hear(rows: int) -> None:
            if rows >= limit:
                raise Interrupted

        return hear

    target = target_location(out, tmp_path / "sets")
    for limit in (100, 210):
        with pytest.raises(Interrupted):
            collect_to(target, request, stop_at(limit))
    heard: list[int] = []
    collect_to(target, request, heard.append)
    assert heard[0] == 200
    found = read_location(target)
    for name in ("obs", "actions", "rewards", "next_obs", "terminated", "truncated"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    assert not list(tmp_path.glob("*.partial"))


def test_an_unfinished_collection_with_other_settings_is_not_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(resumable_collection, "SAVE_EVERY_ROWS", 2)
    faulty = "{fault: raise, fault_at: 3, fault_in_episode: 1, truncate_at: 4}"
    arguments = ("collect", "--env-id", "toy_envs:Count-v0", "--rows", 20, "--out", "log.npz")
    assert run(*arguments, "--env-kwargs", faulty) == 2
    assert "broken wheel" in capsys.readouterr().err and Path("log.npz.partial").is_dir()
    assert run(*arguments) == 2
    assert "holds an unfinished collection with other settings" in capsys.readouterr().err
    assert not Path("log.npz").exists()


def test_collect_needs_an_environment(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("collect", "--out", "log.npz") == 2
    assert "--env-id is required" in capsys.readouterr().err
    assert run("collect", "--env-id", "Nowhere-v0", "--out", "log.npz") == 2
    assert "Nowhere-v0" in capsys.readouterr().err
    assert run("collect", "--env-id", "Pendulum-v1", "--env-kwargs", "[1]", "--out", "log.npz") == 2
    assert "--env-kwargs must be a mapping" in capsys.readouterr().err
    with pytest.raises(EnvironmentProblem):
        CollectionRequest(env_id="FrozenLake-v1", rows=1).rollout()


def test_collect_with_a_saved_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from helpers import tiny_config, train

    result = train(tiny_config("bc", tmp_path, total_timesteps=5), run_suffix="source")
    arguments = ("collect", "--checkpoint", result.run_dir, "--rows", 30, "--noise", 0.2, "--quiet")
    assert run(*arguments, "--out", "one.npz") == 0 == run(*arguments, "--out", "two.npz")
    one, two = (read_location(DatasetLocation("npz", tmp_path / name)) for name in ("one.npz", "two.npz"))
    assert one.info.env_id == "Pendulum-v1"
    np.testing.assert_array_equal(one.actions, two.actions)
    capsys.readouterr()
