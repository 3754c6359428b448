"""One way in: `open_run`, `load_policy`, `judge` and `read_log` take what people have, wherever it lies."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from safetensors import safe_open

import rl_training
from helpers import tiny_config, train
from rl_training import IQL, TransitionDataset
from rl_training.cli import main
from rl_training.core import checkpoints
from rl_training.core.errors import CheckpointError, ConfigError, DataError, UserError
from rl_training.data import load_transition_dataset
from rl_training.data.read import UnusedColumn
from rl_training.judging import trained_critic
from rl_training.judging.settings import JudgeConfig
from rl_training.judging.verdict import Judgement
from rl_training.policies.opened import DeployedPolicy
from rl_training.policies.policy import Policy
from rl_training.runs import judge as run_judge
from rl_training.runs.export import export_checkpoint
from rl_training.runs.judge import named_policies

FIXTURES = Path(__file__).parents[1] / "fixtures" / "format_1"
COLUMNS = {"observations": ["level", "flow"], "actions": ["valve"], "reward": "score", "episode": "run"}
BOUNDS = {"action_low": [0.0], "action_high": [1.0]}
QUICK: dict[str, Any] = {
    **{"members": 2, "updates": 20, "model_updates": 20, "model_members": 2, "hidden_sizes": (8, 8)},
    **{"model_hidden_sizes": (8, 8), "density_updates": 10, "rollout_starts": 5, "gamma": 0.9},
}


def table(seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    draws = np.random.default_rng(seed)
    rows = 30 * 10
    columns = {name: draws.uniform(0, 1, rows) for name in ("level", "flow", "valve", "score")}
    return {**columns, "run": np.repeat(np.arange(30), 10), "t": np.tile(np.arange(10.0), 30)}


def write_csv(path: Path, seed: int = 0) -> Path:
    values = table(seed)
    lines = [",".join(values), *(",".join(map(str, row)) for row in zip(*values.values(), strict=True))]
    path.write_text("\n".join(lines))
    return path


def run_on(log: Path, folder: Path, **settings: Any) -> Path:
    kwargs = {"dataset_kind": "auto", "dataset_path": str(log), "dataset_size": None, **BOUNDS}
    config = tiny_config(
        "td3_bc",
        folder,
        env_id=None,
        total_timesteps=5,
        algo_kwargs={**kwargs, "columns": COLUMNS, "gamma": 0.9, **settings},
    )
    return train(config).run_dir


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`log.csv`, the run `runs/…-s7` on it, and its policy as `policy.safetensors` and `policy.onnx`."""
    folder = tmp_path_factory.mktemp("saved")
    run_dir = run_on(write_csv(folder / "log.csv"), folder / "runs")
    run_dir.rename(folder / "run")
    for suffix in ("onnx", "safetensors"):
        export_checkpoint(folder / "run", folder / f"policy.{suffix}")
    return folder


def judged(policies: Any, *arguments: Any, **settings: Any) -> Judgement:
    return rl_training.judge(policies, *arguments, **{**QUICK, **settings})


# ---- a run


def test_a_run_knows_everything_about_itself(folder: Path) -> None:
    run = rl_training.open_run(folder / "run")
    assert run.file.name == "step_5.safetensors" and run.path == folder / "run"
    assert run.config.algo == "td3_bc" and run.config.seed == 7
    assert run.settings.to_dict()["gamma"] == 0.9 and run.settings.batch_size == 16
    assert run.data.info.name_of("action", 0) == "valve" and len(run.data) == 270
    assert run.table_fields["columns"]["observations"] == ["level", "flow"]
    assert not run.discount_by_time
    obs = np.array([[0.1, 0.2], [0.8, 0.4]], dtype=np.float32)
    np.testing.assert_array_equal(
        run.policy.predict(obs), rl_training.TD3BC.load(folder / "run").predict(obs)
    )
    assert run.critic is not None and run.critic.gamma == 0.9
    known = trained_critic(folder / "run")
    assert known is not None
    np.testing.assert_array_equal(run.critic.values(obs, obs[:, :1]), known.values(obs, obs[:, :1]))
    assert run.learner["updates"] == 5 and "model.actor.net.hidden.0.weight" in run.learner["tensors"]


def test_a_run_is_read_once_and_only_as_far_as_it_is_asked(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, tensors = count_reads(monkeypatch)
    run = rl_training.open_run(shutil.copytree(folder / "run", tmp_path / "run"))
    assert opened == []
    for _ in range(2):
        assert run.policy is run.policy and run.config and run.settings and run.data
    assert opened == ["step_5.safetensors"] and not any("learner" in name for name in tensors)
    # A newer checkpoint of a run that goes on, or none any more, does not change what was opened.
    run.file.rename(run.file.with_name("step_9.safetensors"))
    assert run.learner["updates"] == 5 and opened == ["step_5.safetensors"]
    assert len(tensors) == len(set(tensors)), "no tensor is read twice"


def count_reads(monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], list[str]]:
    """Names of files that are opened from now on, and of tensors that are read from them."""
    opened: list[str] = []
    tensors: list[str] = []

    class Counted:
        def __init__(self, path: Path, framework: str) -> None:
            self.file: Any = safe_open(path, framework)  # type: ignore[no-untyped-call]
            self.metadata = self.file.metadata
            opened.append(Path(path).name)

        def get_tensor(self, name: str) -> Any:
            tensors.append(name)
            return self.file.get_tensor(name)

    monkeypatch.setattr(checkpoints, "safe_open", Counted)
    return opened, tensors


def test_commands_open_a_checkpoint_once(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    in_an_environment = train(tiny_config("td3_bc", tmp_path, total_timesteps=5)).run_dir
    own = str(shutil.copytree(folder / "run", tmp_path / "own"))
    quick = [
        part
        for name, value in QUICK.items()
        for part in ("--set", f"{name}={value}".replace("(", "[").replace(")", "]"))
    ]
    for command in (
        ["judge", own, "-q", *quick],
        ["resume", "-k", own, "-q"],
        ["evaluate", "-k", str(in_an_environment), "-n", "1"],
        ["predict", "-k", own, "--obs", "0.1 0.2"],
        ["export", "-k", own, "--out", str(tmp_path / "policy.safetensors"), "--guard", "run"],
        ["finetune", "-k", str(in_an_environment), "-t", "1", "-q", "-o", str(tmp_path / "fine")],
        ["data", "collect", "-k", str(in_an_environment), "--rows", "5", "--out", str(tmp_path / "x.npz")],
    ):
        opened, _ = count_reads(monkeypatch)
        assert main(command) == 0, capsys.readouterr().err
        assert opened.count("step_5.safetensors") == 1, command


def test_settings_of_a_judgement_are_checked_once_and_before_the_log_is_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    build, built = JudgeConfig.build, list[object]()

    def noted(values: Any, **options: Any) -> JudgeConfig:
        built.append(values)
        return build(values, **options)

    monkeypatch.setattr(JudgeConfig, "build", noted)
    quick = [f"--set={name}={value}".replace("(", "[").replace(")", "]") for name, value in QUICK.items()]
    assert main(["judge", str(folder / "run"), "-q", *quick]) == 0 and len(built) == 1
    assert main(["judge", str(folder / "run"), "--data", "no.csv", "--set", "membres=1"]) == 2
    assert "did you mean 'members'" in capsys.readouterr().err
    assert main(["judge", str(folder / "run"), "--set", "checkpoints=fits"]) == 2  # an option, not a setting
    assert "checkpoints" in capsys.readouterr().err


def test_a_checkpoint_from_anywhere_is_opened_but_its_paths_are_not_followed(
    folder: Path, tmp_path: Path
) -> None:
    alone = tmp_path / "alone.safetensors"
    shutil.copy(folder / "run" / "checkpoints" / "step_5.safetensors", alone)
    run = rl_training.open_run(alone)
    assert run.policy.predict([0.1, 0.2]).shape == (1,)
    with pytest.raises(ConfigError, match=r"log\.csv' comes from a checkpoint outside a run .* not followed"):
        run.data  # noqa: B018
    with pytest.raises(ConfigError, match="not followed"):
        judged(alone)
    for guard in (
        lambda: export_checkpoint(alone, tmp_path / "p.onnx", guard="run"),
        rl_training.TD3BC.load(alone).make_guard,
    ):
        with pytest.raises(ConfigError, match=r"log\.csv' comes from a checkpoint .* not followed"):
            guard()
    assert judged(alone, folder / "log.csv").data["rows"] == 270


def test_a_run_without_data_to_go_back_to_says_so(folder: Path, tmp_path: Path) -> None:
    online = rl_training.open_run(train(tiny_config("sac", tmp_path)).run_dir)
    given = IQL(total_timesteps=3, output_dir=str(tmp_path), hidden_sizes=[8], **BOUNDS)
    given.learn(dataset=rl_training.open_run(folder / "run").data, quiet=True)
    assert given.result is not None
    for run in (online, rl_training.open_run(given.result.run_dir)):
        assert run.data_name is None
        with pytest.raises(UserError, match="no data to go back to: it learned in an environment, or from a"):
            run.data  # noqa: B018
        with pytest.raises(UserError, match=r"data is needed \(--data\): .* has no log to go back to"):
            judged(run)


def test_collected_data_and_mixtures_are_the_runs_own(folder: Path, tmp_path: Path) -> None:
    random = rl_training.open_run(train(tiny_config("td3_bc", tmp_path)).run_dir)
    assert random.data_name == "random data of Pendulum-v1 (seed 3)" and len(random.data) == 220
    part = {"dataset_kind": "csv", "columns": COLUMNS}
    logs = [folder / "log.csv", write_csv(tmp_path / "other.csv", seed=1)]
    parts = [{**part, "dataset_path": str(log)} for log in logs]
    mixed = {"dataset_kind": "mix", "dataset_path": None, "dataset_parts": parts, "columns": {}}
    run = rl_training.open_run(run_on(folder / "log.csv", tmp_path / "mixed", **mixed))
    assert len(run.data) == 540 and int(run.data.episode_ends().sum()) == 60
    assert run.data_name == f"{logs[0]} + {logs[1]}"


@pytest.mark.parametrize("opener", [rl_training.open_run, rl_training.load_policy])
def test_what_is_no_run_is_one_line(opener: Any, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"^path must name a .*, got int$"):
        opener(3)
    with pytest.raises(UserError, match="nosuch does not exist; give a"):
        opener(tmp_path / "nosuch")
    with pytest.raises(CheckpointError, match=r"holds no step_<n>\.safetensors"):
        opener(tmp_path)


# ---- a policy


def test_load_policy_opens_files_checkpoints_and_runs(folder: Path) -> None:
    checkpoint = folder / "run" / "checkpoints" / "step_5.safetensors"
    expected = rl_training.TD3BC.load(folder / "run").predict([0.3, 0.6])
    for path, kind in (
        (folder / "run", Policy),
        (str(checkpoint), Policy),
        (folder / "policy.onnx", DeployedPolicy),
        (str(folder / "policy.safetensors"), DeployedPolicy),
        (FIXTURES / "td3_bc.safetensors", Policy),
    ):
        policy = rl_training.load_policy(path)
        assert isinstance(policy, kind), path
        if policy.spaces.obs_dim == 2:
            np.testing.assert_allclose(policy.predict([0.3, 0.6]), expected, atol=1e-6)


# ---- a log


def test_a_log_is_read_from_wherever_it_is(folder: Path) -> None:
    expected = rl_training.open_run(folder / "run").data
    given = {**COLUMNS, "units": {"level": "m"}}
    sources = (folder / "log.csv", str(folder / "*.csv"), pa.table(table()), table())
    for source in sources:
        log = rl_training.read_log(source, **given)
        np.testing.assert_allclose(log.obs, expected.obs, rtol=1e-6)
        assert log.info.name_of("observation", 0) == "level (m)"
    short = rl_training.read_log(sources[0], observations="level", actions="valve", episode="run")
    assert short.obs.shape == (270, 1) and not short.info.rewards_known
    arrays = {name: getattr(expected, name).numpy() for name in ("obs", "actions", "rewards", "next_obs")}
    ends = expected.episode_ends()
    assert len(rl_training.read_log({**arrays, "dones": 0 * ends, "truncations": ends})) == 270
    with pytest.raises(TypeError, match=r"^source must be a .*data frame or a path, got int$"):
        rl_training.read_log(3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"columns\.actions is required with a data frame"):
        rl_training.read_log(pa.table(table()), observations="level")
    with pytest.raises(ConfigError, match=r"mising_values .*did you mean 'missing_values'"):
        rl_training.read_log(folder / "log.csv", **COLUMNS, mising_values="hold")


def test_a_dataset_is_loaded_by_its_path_alone(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(load_transition_dataset(folder / "log.csv", columns=COLUMNS)) == 270
    monkeypatch.chdir(folder)
    assert len(load_transition_dataset("log.csv", columns=COLUMNS)) == 270
    assert len(load_transition_dataset("csv", dataset_path="log.csv", columns=COLUMNS)) == 270
    with pytest.raises(DataError, match=r"nosuch\.csv: no such file"):
        load_transition_dataset("nosuch.csv")
    with pytest.raises(ConfigError, match=r"got 'ndz' \(did you mean 'npz'"):
        load_transition_dataset("ndz")
    with pytest.raises(TypeError, match=r"^kind must be a dataset_kind or the path of a log, got int$"):
        load_transition_dataset(3)  # type: ignore[arg-type]


# ---- a judgement


class Half:
    def predict(self, obs: Any) -> Any:
        return np.full((len(obs), 1), 0.5)


@pytest.mark.slow
def test_policies_paths_and_runs_are_judged_by_data_in_every_form(folder: Path) -> None:
    run = rl_training.open_run(folder / "run")
    own = judged({"a": run})
    assert own.data["rows"] == 270 and own.settings["gamma"] == 0.9
    assert "critic" in own.policies[0].checks  # of the run itself
    policies = [run, str(folder / "policy.onnx"), folder / "policy.safetensors", Half()]
    arrays = {"obs": run.data.obs, "actions": run.data.actions, "rewards": run.data.rewards}
    arrays |= {"next_obs": run.data.next_obs, "dones": run.data.dones, "truncations": run.data.truncations}
    results = [
        judged(policies, data)
        for data in (None, run.data, folder / "log.csv", str(folder / "log.csv"), pa.table(table()), arrays)
    ]
    for result in results:
        names = [policy.name for policy in result.policies]
        assert names == ["run", "policy.onnx", "policy.safetensors", "policy 4"]
        assert result.policies[0].value == pytest.approx(own.policies[0].value, rel=1e-5)
        for exported in result.policies[1:3]:
            assert exported.value == pytest.approx(result.policies[0].value, rel=1e-4)
    frame = pa.table({"h": table()["level"], **table()}).drop_columns(["level"])
    renamed = judged(Half(), frame, columns={**COLUMNS, "observations": ["h", "flow"]})
    assert renamed.policies[0].name == "policy"
    assert renamed.policies[0].value == pytest.approx(results[0].policies[3].value, rel=1e-4)


@pytest.mark.parametrize(
    ("policies", "data", "complaint"),
    [
        (3, None, "policies must have predict"),
        ([3], "log", "policies must have predict"),
        ({"mine": object()}, "log", "policies must have predict.*, mine is object"),
        (
            Half(),
            3,
            "^data must be a TransitionDataset, a mapping of arrays, a data frame or a path, got int$",
        ),
        (Half(), [1, 2], "^data must be a TransitionDataset, .* got list$"),
    ],
)
def test_anything_else_is_a_type_error_of_one_line(
    folder: Path, policies: Any, data: Any, complaint: str
) -> None:
    given = rl_training.open_run(folder / "run").data if data == "log" else data
    with pytest.raises(TypeError, match=complaint) as caught:
        judged(policies, given)
    assert "\n" not in str(caught.value)


def test_the_judging_room_takes_policies_and_datasets_only(folder: Path) -> None:
    from rl_training.judging import judge

    with pytest.raises(
        TypeError, match=r"^data must be a TransitionDataset, got str; rl_training\.judge takes"
    ):
        judge(Half(), "log.csv")  # type: ignore[arg-type]


def test_runs_are_judged_by_their_own_log_unless_another_is_given(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = run_on(write_csv(tmp_path / "week.csv", 1), tmp_path / "runs")
    with pytest.raises(
        UserError,
        match=r"data is needed \(--data\): the runs were trained on different logs \(\S+/run \S+/log",
    ):
        judged([folder / "run", other])
    assert judged([folder / "run", other], tmp_path / "week.csv").data["source"].endswith("week.csv")
    assert main(["judge", str(folder / "policy.onnx")]) == 2
    assert "data is needed (--data): no policy here says" in capsys.readouterr().err
    assert main(["judge", str(folder / "run"), "--obs", "flow"]) == 2
    assert "data is needed (--data) with what says how it is read" in capsys.readouterr().err
    with pytest.raises(UserError, match="with what says how it is read"):
        judged(folder / "run", columns=COLUMNS)


def test_a_run_that_was_trained_by_time_is_judged_by_time(folder: Path, tmp_path: Path) -> None:
    timed = {"discount_by_time": True, "columns": {**COLUMNS, "time": "t"}}
    run = rl_training.open_run(run_on(folder / "log.csv", tmp_path, **timed))
    assert run.discount_by_time
    assert judged([folder / "policy.onnx", run]).settings["discount_by_time"] is True
    assert judged(run, discount_by_time=False).settings["discount_by_time"] is False


def test_a_run_is_judged_with_its_own_discount_unless_another_is_given(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = {name: value for name, value in QUICK.items() if name != "gamma"}
    assert rl_training.judge(folder / "run", **quick).settings["gamma"] == 0.9
    assert rl_training.judge([folder / "run", folder / "policy.onnx"], **quick).settings["gamma"] == 0.9
    assert rl_training.judge(folder / "run", **quick, gamma=0.8).settings["gamma"] == 0.8
    log = folder / "log.csv"
    assert rl_training.judge(folder / "policy.onnx", log, columns=COLUMNS, **quick).settings["gamma"] == 0.99
    other = run_on(log, tmp_path, gamma=0.7)
    with pytest.raises(
        UserError, match=r"gamma is needed \(--gamma\): .* different discounts \(\S+ 0\.9, \S+ 0\.7\)"
    ):
        rl_training.judge([folder / "run", other], **quick)
    options = [
        part
        for name in ("members", "updates", "model_updates")
        for part in ("--set", f"{name}={quick[name]}")
    ]
    assert main(["judge", str(other), "-q", *options]) == 0
    assert "discount of future rewards: 0.7" in capsys.readouterr().out


def test_names_are_as_short_as_they_can_be() -> None:
    assert list(named_policies(["runs/a", Path("runs/b")])) == ["a", "b"]
    assert list(named_policies(["x/best.onnx", "y/best.onnx"])) == ["x/best.onnx", "y/best.onnx"]
    assert list(named_policies("runs/a")) == ["a"]
    assert list(named_policies([Half(), "runs/a"])) == ["policy 1", "a"]


def test_a_trained_object_takes_paths_for_data_wherever_it_takes_data(folder: Path) -> None:
    run = rl_training.open_run(folder / "run")
    assert isinstance(run.data, TransitionDataset)
    agent = rl_training.TD3BC.load(folder / "run")
    assert agent.make_guard(run.data).facts.source == run.data.info.source
    assert judged(agent, run.data).policies[0].value == pytest.approx(judged(run).policies[0].value, rel=1e-5)


@pytest.mark.parametrize("given", ["the run's own", "path", "frame", "arrays", "dataset"])
def test_a_judgement_can_look_at_the_columns_that_nobody_sees(
    folder: Path, given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a table, however it is given; a dataset has none beside its observations."""
    data: dict[str, Any] = {"path": folder / "log.csv", "frame": pa.table(table()), "arrays": table()}
    data["dataset"] = rl_training.open_run(folder / "run").data
    found: list[UnusedColumn] = []

    class Looked(Exception):
        pass

    def look(*arguments: Any, unused: Any, **settings: Any) -> None:
        found.extend(unused())
        raise Looked

    monkeypatch.setattr(run_judge, "judge_policies", look)
    columns = COLUMNS if given == "arrays" else None
    with pytest.raises(Looked):
        rl_training.judge(folder / "run", data.get(given), columns=columns)
    assert [each.name for each in found] == ([] if given == "dataset" else ["t"])
    for each in found:
        np.testing.assert_array_equal(
            each.values, np.tile(np.arange(9.0), 30)
        )  # the last row is no transition
