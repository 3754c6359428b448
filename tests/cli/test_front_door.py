"""The Python front door: configs by name, settings as keywords, environments and data in many forms."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from rl_training import IQL, SAC, Callback, TrainConfig, TransitionDataset
from rl_training.core.checkpoints import load_run_state, save_checkpoint
from rl_training.core.errors import ConfigError, EnvironmentProblem, UserError
from rl_training.runs.evaluate import evaluate_checkpoint
from rl_training.runs.resume import resume_training
from rl_training.runs.tracking import read_metrics
from rl_training.runtime.callbacks import TrainResult

QUICK: dict[str, Any] = {
    "hidden_sizes": [8, 8],
    "batch_size": 8,
    "eval_episodes": 1,
    "log_interval": 10,
    "device": "cpu",
    "compile": False,
}
OFFLINE = {**QUICK, "dataset_size": 200}
ONLINE = {**QUICK, "learning_starts": 10, "buffer_capacity": 100}


class Count(gym.Env[Any, Any]):
    """Observations are a dictionary of two vectors; the reward is 1 a step, five steps an episode."""

    observation_space = spaces.Dict({"speed": spaces.Box(-9, 9, (1,)), "place": spaces.Box(-9, 9, (2,))})
    action_space = spaces.Box(-1.0, 1.0, (1,))

    def __init__(self) -> None:
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.steps = 0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return self._obs(), 1.0, False, self.steps == 5, {}

    def _obs(self) -> dict[str, Any]:
        return {"speed": np.array([float(self.steps)]), "place": np.array([0.25, 0.5])}


class Doubled(gym.RewardWrapper[Any, Any]):
    """Twice the reward."""

    def reward(self, reward: Any) -> Any:
        return 2.0 * reward


def arrays(rows: int = 60) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(rows + 1, 3)).astype(np.float32)
    return {
        "obs": obs[:-1],
        "actions": rng.uniform(-1, 1, (rows, 1)),
        "rewards": rng.normal(size=rows),
        "next_obs": obs[1:],
        "dones": np.zeros(rows),
        "truncations": np.arange(rows) % 20 == 19,
    }


# ---- configs


def test_a_config_by_name_by_path_and_by_settings(tmp_path: Path) -> None:
    named = IQL("iql/pendulum", seed=4, expectile=0.8)
    assert (named.config.algo, named.config.seed) == ("iql", 4)
    assert named.config.algo_kwargs["expectile"] == 0.8
    file = tmp_path / "mine.yaml"
    file.write_text("algo: iql\nenv_id: Pendulum-v1\ntotal_timesteps: 5\nalgo_kwargs: {expectile: 0.6}\n")
    assert IQL(file).config.algo_kwargs == {"expectile": 0.6}
    plain = IQL(env="Pendulum-v1", expectile=0.9, total_timesteps=10)
    assert plain.config == TrainConfig(
        algo="iql", env_id="Pendulum-v1", total_timesteps=10, algo_kwargs={"expectile": 0.9}
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: IQL(), "total_timesteps is required"),
        (
            lambda: IQL(total_timesteps=5, expectil=0.8),
            r"expectil .*\(did you mean 'expectile'\?\)",
        ),
        (lambda: IQL("sac/pendulum"), "algo must be 'iql' for IQL, got 'sac'"),
        (lambda: IQL("iql/pendulm"), r"did you mean 'iql/pendulum'\?"),
        (lambda: IQL(7), "config must be a TrainConfig, the name or path of a config"),  # type: ignore[arg-type]
        (lambda: SAC(env=7, total_timesteps=5), "env must be an id, a Gymnasium environment"),  # type: ignore[arg-type]
        (
            lambda: IQL("iql/pendulum").predict([0.0, 0.0, 0.0]),
            r"has no policy yet: call learn\(\)",
        ),
        (
            lambda: IQL("iql/pendulum", **OFFLINE).learn(dataset=3),
            "dataset must be a Transition",
        ),
        (
            lambda: IQL("iql/pendulum", **OFFLINE).learn(callbacks=[print]),  # type: ignore[list-item]
            r"callbacks\[0\] must be a Callback \(subclass rl_training.Callback",
        ),
        (
            lambda: IQL("iql/pendulum", **OFFLINE).learn(evaluators=[3]),
            r"evaluators\[0\] must be a function",
        ),
    ],
)
def test_mistakes_are_one_line(make: Any, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


# ---- data


def test_data_as_a_mapping_equals_data_as_a_dataset(tmp_path: Path) -> None:
    bounds = {"action_low": [-1.0], "action_high": [1.0], "total_timesteps": 20, "output_dir": str(tmp_path)}
    obs = np.zeros((3, 3))
    given = [arrays(), TransitionDataset(**arrays())]
    actions = []
    for data in given:
        agent = IQL(**QUICK, **bounds)
        agent.learn(dataset=data, quiet=True)
        actions.append(agent.predict(obs))
    np.testing.assert_array_equal(*actions)


def test_learning_twice_goes_on_exactly(tmp_path: Path) -> None:
    def agent(name: str, total: int) -> Any:
        return IQL(env="Pendulum-v1", total_timesteps=total, output_dir=str(tmp_path / name), **OFFLINE)

    whole, parts = agent("whole", 30), agent("parts", 20)
    whole.learn(quiet=True)
    parts.learn(quiet=True)
    with pytest.raises(UserError, match=r"total_timesteps must be > 20, .*call learn\(total_timesteps=40\)"):
        parts.learn(quiet=True)
    result = parts.learn(total_timesteps=30, quiet=True)
    assert result.metrics["global_step"] == 30
    obs = np.linspace(-1, 1, 9).reshape(3, 3)
    np.testing.assert_array_equal(whole.predict(obs), parts.predict(obs))


# ---- environments


def test_an_environment_as_object_function_and_id(tmp_path: Path) -> None:
    class Lengths(Callback):
        pass

    returns = []
    for env in ("Pendulum-v1", gym.make("Pendulum-v1"), lambda: gym.make("Pendulum-v1")):
        agent = SAC(env=env, total_timesteps=30, output_dir=str(tmp_path), **ONLINE)
        agent.learn(callbacks=[Lengths()], quiet=True)
        returns.append(agent.evaluate(2)["eval_return_mean"])
    assert returns[0] == returns[1] == returns[2]


def test_a_dictionary_of_vectors_is_flattened_in_order_and_wrappers_are_applied(tmp_path: Path) -> None:
    agent = SAC(env=Count(), wrappers=[Doubled], total_timesteps=30, output_dir=str(tmp_path), **ONLINE)
    result = agent.learn(quiet=True)
    assert agent.policy.spaces.obs_dim == 3
    with pytest.raises(UserError, match=r"gymnasium\.spaces\.flatten\(space, obs\)"):
        agent.predict(Count().reset()[0])
    assert result.metrics["eval_return_mean"] == 10.0  # five steps of reward 1, doubled
    saved = load_run_state(result.run_dir)["replay"]["obs"]
    assert saved[:, :2].unique().tolist() == [0.25, 0.5]  # place, then speed: alphabetical
    assert saved[:, 2].unique().tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    with pytest.raises(ConfigError, match=r"env must be given: .* passed as an object"):
        evaluate_checkpoint(result.run_dir)
    with pytest.raises(ConfigError, match="wrappers must be given again"):
        evaluate_checkpoint(result.run_dir, env=Count())
    plain = evaluate_checkpoint(result.run_dir, env=Count, wrappers=[])
    assert plain["eval_return_mean"] == 5.0
    more = resume_training(result.run_dir, total_timesteps=40, env=Count, wrappers=[Doubled], quiet=True)
    assert more.metrics["env_steps"] == 40


def test_a_function_that_makes_something_else_is_named(tmp_path: Path) -> None:
    def makes_text() -> Any:
        return "no environment"

    with pytest.raises(EnvironmentProblem, match=r"makes_text.*it is str, not a Gymnasium environment"):
        SAC(env=makes_text, total_timesteps=5, output_dir=str(tmp_path), **ONLINE).learn(quiet=True)


def test_code_that_a_checkpoint_names_is_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An env_id or wrapper with a module in it runs code: it must come from the user, not from the file."""
    trap = tmp_path / "trap_module.py"
    trap.write_text("from pathlib import Path\nPath(__file__).with_name('sprung').touch()\n")
    monkeypatch.syspath_prepend(tmp_path)
    agent = SAC(env="Pendulum-v1", total_timesteps=20, output_dir=str(tmp_path / "runs"), **ONLINE)
    state = load_run_state(agent.learn(quiet=True).run_dir)
    for change in ({"env_id": "trap_module:Env-v0"}, {"wrappers": ["trap_module:wrap"]}):
        path = tmp_path / "stranger.safetensors"
        save_checkpoint(path, {**state, "config": {**state["config"], **change}})
        for use in (evaluate_checkpoint, resume_training):
            with pytest.raises(
                ConfigError,
                match=r"--env-id trap_module|wrappers must be given .* --wrapper trap_module",
            ):
                use(path)  # type: ignore[operator]
    assert not (tmp_path / "sprung").exists() and "trap_module" not in sys.modules
    with pytest.raises(ConfigError, match="wrapper 'no_such_module:wrap' cannot be imported"):
        SAC(
            TrainConfig(
                algo="sac", env_id="Pendulum-v1", total_timesteps=5, wrappers=("no_such_module:wrap",)
            )
        ).learn()


# ---- what a run tells


def test_numbers_of_callbacks_evaluators_and_trackers_arrive(tmp_path: Path) -> None:
    class Says(Callback):
        def on_step_end(self, run: Any) -> None:
            run.log("half_the_step", run.global_step / 2)

    class Keeps:
        def __init__(self) -> None:
            self.rows: list[tuple[int, str]] = []
            self.closed = False

        def write(self, step: int, metrics: Any, kind: str) -> None:
            self.rows.append((step, kind))

        def close(self) -> None:
            self.closed = True

    tracker = Keeps()
    agent = IQL(env="Pendulum-v1", total_timesteps=20, eval_interval=10, output_dir=str(tmp_path), **OFFLINE)
    with pytest.raises(ConfigError, match=r"trackers\[0\] must have write\(step, metrics, kind\) and close"):
        agent.learn(trackers=[object()])  # type: ignore[list-item]
    result = agent.learn(
        callbacks=[Says()],
        evaluators=[lambda run: {"answer": 40.0 + run.global_step}],
        trackers=[tracker],  # type: ignore[list-item]
        quiet=True,
    )
    rows = read_metrics(result.run_dir)
    assert [row["half_the_step"] for row in rows if row["kind"] == "train"] == [4.5, 9.5]
    assert [row["answer"] for row in rows if row["kind"] == "eval"] == [50.0, 60.0]
    assert result.metrics["answer"] == 60.0
    assert tracker.closed and (20, "eval") in tracker.rows and (10, "train") in tracker.rows
    agent.learn(total_timesteps=30, trackers=[tracker], quiet=True)  # type: ignore[list-item]
    assert (30, "eval") in tracker.rows


def test_a_result_is_shown_a_fact_a_line() -> None:
    member = TrainResult(Path("runs/b"), None, {})
    metrics = {"eval_return_mean": -150.1234567, "signal": None, "global_step": 20}
    shown = repr(TrainResult(Path("runs/a"), Path("runs/a/step_20.safetensors"), metrics, (member,)))
    assert shown.splitlines() == [
        "TrainResult",
        "  run_dir: runs/a",
        "  checkpoint_path: runs/a/step_20.safetensors",
        "  eval_return_mean: -150.123",
        "  global_step: 20",
        "  member: runs/b",
    ]
