"""What is done with a checkpoint: evaluated, filmed, asked for actions."""

from __future__ import annotations

import json
import subprocess
import time
from importlib.util import find_spec
from pathlib import Path

import gymnasium as gym
import imageio_ffmpeg
import numpy as np
import pytest

import rl_training
from helpers import assert_same_tree, slow_but_two, task_of, tiny_config, train
from rl_training.cli import main
from rl_training.core.checkpoints import load_checkpoint, read_header, save_checkpoint
from rl_training.core.errors import CheckpointError, ConfigError, EnvironmentProblem, UserError
from rl_training.core.registry import algorithm_names
from rl_training.experiment.config import load_config
from rl_training.experiment.default_manager import DefaultExperimentManager
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.policies.policy import load_saved_policy
from rl_training.runs import evaluate
from rl_training.runs.evaluate import evaluate_checkpoint, predict_checkpoint
from rl_training.runs.resume import resume_training

OBS = np.array([[1.0, 0.0, 0.0], [-1.0, 0.0, 3.0], [0.0, 1.0, -8.0], [50.0, -50.0, 1000.0]], dtype=np.float32)


@pytest.mark.parametrize("algo", slow_but_two(algorithm_names()))
def test_same_config_gives_the_same_run(algo: str, tmp_path: Path) -> None:
    runs = [train(tiny_config(algo, tmp_path / name)) for name in ("one", "two")]
    states = [load_checkpoint(run.checkpoint_path or "") for run in runs]
    assert_same_tree(states[0]["learner"], states[1]["learner"])
    other = train(tiny_config(algo, tmp_path / "three", seed=8))
    weights = [load_checkpoint(run.checkpoint_path or "")["learner"]["tensors"] for run in (runs[0], other)]
    assert any((weights[0][name] != weights[1][name]).any() for name in weights[0])


@pytest.mark.parametrize("algo", slow_but_two(algorithm_names()))
def test_learn_save_load_predict_and_evaluate_agree(algo: str, tmp_path: Path) -> None:
    managed = getattr(rl_training, get_algorithm_spec(algo).class_name)
    agent = managed(tiny_config(algo, tmp_path))
    result = agent.learn(quiet=True)
    actions = agent.predict(OBS)
    assert actions.shape == (4, 1) and np.abs(actions).max() <= 2.0 and actions.dtype == np.float32
    np.testing.assert_allclose(agent.predict(OBS[1]), actions[1], atol=1e-5)
    saved = agent.save(tmp_path / "policy.safetensors")
    for loaded in (managed.load(saved), managed.load(result.run_dir)):
        np.testing.assert_array_equal(loaded.predict(OBS), actions)
    np.testing.assert_array_equal(predict_checkpoint(saved, OBS), actions)
    again = evaluate_checkpoint(result.run_dir, num_episodes=1)
    assert again["eval_return_mean"] == result.metrics["eval_return_mean"]
    assert agent.evaluate(num_episodes=1) == again


@pytest.mark.parametrize("algo", slow_but_two(algorithm_names()))
def test_registry_spec_and_manager_run_every_algorithm(algo: str, tmp_path: Path) -> None:
    spec = get_algorithm_spec(algo)
    assert spec.name == algo
    manager = DefaultExperimentManager()
    result = manager.setup(tiny_config(algo, tmp_path, total_timesteps=30), quiet=True).train()
    assert manager.evaluate(result.run_dir, num_episodes=1) == spec.evaluate_fn(
        result.run_dir, num_episodes=1
    )
    np.testing.assert_array_equal(manager.predict(result.run_dir, OBS), spec.predict_fn(result.run_dir, OBS))
    longer = manager.resume(result.run_dir, total_timesteps=35, quiet=True)
    assert longer.metrics["global_step"] == 35


@pytest.mark.parametrize("algo", algorithm_names())
def test_a_packaged_config_is_valid_and_typos_are_caught(algo: str) -> None:
    packaged = f"{algo}/{task_of(algo)}"
    assert load_config(packaged).algo == algo
    with pytest.raises(ConfigError, match=r"algo_kwargs\.gama is not a known key \(did you mean 'gamma'\?\)"):
        load_config(packaged, ["algo_kwargs.gama=0.9"])


@pytest.fixture(scope="module")
def sac_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tiny_config("sac", tmp_path_factory.mktemp("sac"))).run_dir


def test_predict_is_fast_and_builds_no_environment(sac_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **keywords: object) -> None:
        raise AssertionError("predict must not build an environment")

    monkeypatch.setattr(gym, "make", refuse)
    policy = load_saved_policy(sac_run)
    times = []
    for _ in range(50):
        start = time.process_time()
        policy.predict(OBS[0])
        times.append(time.process_time() - start)
    assert sorted(times)[len(times) // 2] < 1e-3


def test_a_sampled_policy_differs_from_its_mode(sac_run: Path) -> None:
    policy = load_saved_policy(sac_run)
    drawn = np.stack([policy.predict(OBS[0], deterministic=False) for _ in range(20)])
    assert drawn.std() > 0.01 and np.abs(drawn).max() <= 2.0


@pytest.mark.parametrize(
    ("obs", "message"),
    [
        ([0.0, 1.0], r"obs must have shape \(3,\) or \(n, 3\), got \(2,\)"),
        (np.zeros((2, 2, 3)), r"got \(2, 2, 3\)"),
        ([[0.0, 1.0, 2.0], [0.0, np.nan, 2.0]], "row 1 holds NaN or infinity"),
        (["a", "b", "c"], "obs must be numbers"),
    ],
)
def test_predict_refuses_bad_observations(sac_run: Path, obs: object, message: str) -> None:
    with pytest.raises(UserError, match=message):
        predict_checkpoint(sac_run, obs)  # type: ignore[arg-type]


def test_unusable_checkpoints_are_named(sac_run: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="does not exist"):
        evaluate_checkpoint(tmp_path / "nothing.safetensors")
    state = load_checkpoint(sac_run)
    renamed = tmp_path / "old.safetensors"
    save_checkpoint(renamed, {**state, "config": {**state["config"], "algo_kwargs": {"temprature": 1.0}}})
    with pytest.raises(CheckpointError, match=r"config does not fit this version: .*temprature"):
        resume_training(renamed)
    assert read_header(sac_run)["algo"] == "sac"


def test_untrained_objects_and_wrong_algorithms_say_so(tmp_path: Path, sac_run: Path) -> None:
    agent = rl_training.SAC(tiny_config("sac", tmp_path))
    with pytest.raises(UserError, match=r"call learn\(\) or load\(\) first"):
        agent.predict(OBS[0])
    state = load_checkpoint(sac_run)
    other = tmp_path / "other.safetensors"
    save_checkpoint(other, {**state, "algo": "cql", "algo_class": "CQL"})
    with pytest.raises(CheckpointError, match=r"of 'cql', not of 'sac'; load it with rl_training\.CQL"):
        rl_training.SAC.load(other)


def test_learning_again_needs_a_larger_total(tmp_path: Path) -> None:
    agent = rl_training.BC(tiny_config("bc", tmp_path))
    agent.learn(quiet=True)
    with pytest.raises(UserError, match=r"total_timesteps must be > 40, .*learn\(total_timesteps=80\)"):
        agent.learn(quiet=True)


# ---- films of a saved policy


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = tiny_config("bc", tmp_path_factory.mktemp("runs"), env_kwargs={"max_episode_steps": 25})
    return train(config).run_dir


def pictures(file: Path) -> np.ndarray:
    """The frames of a video of Pendulum, as the encoder's own program decodes them."""
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-i", str(file)]
    command += ["-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    raw = subprocess.run(command, check=True, capture_output=True).stdout
    return np.frombuffer(raw, dtype=np.uint8).reshape(-1, 500, 500, 3)


def test_evaluate_films_the_episodes_that_it_reports(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "new" / "videos"
    assert main(["evaluate", "--checkpoint", str(run_dir), "--episodes", "2", "--video", str(folder)]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown.pop("videos") == [str(folder / f"episode-00{episode}.mp4") for episode in (0, 1)]
    assert shown == evaluate_checkpoint(run_dir, num_episodes=2)
    for file in sorted(folder.iterdir()):
        frames = pictures(file)
        assert len(frames) == 1 + 25  # the first observation and one picture per step
        assert frames[0].std() > 0
        assert (frames[-1] != frames[0]).any()


def test_missing_packages_are_named_with_what_to_install(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        evaluate, "find_spec", lambda name: None if name == "imageio_ffmpeg" else find_spec(name)
    )
    assert main(["evaluate", "--checkpoint", str(run_dir), "--video", str(tmp_path / "videos")]) == 2
    rule = "video needs the package imageio_ffmpeg, which is not installed"
    assert capsys.readouterr().err == (
        f'error: {rule}: in a checkout of rl_training run: pip install ".[video]"\n'
    )
    assert not (tmp_path / "videos").exists()


def test_an_environment_that_cannot_draw_says_so_in_one_line(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise gym.error.DependencyNotInstalled("pygame is not installed")

    monkeypatch.setattr("gymnasium.envs.classic_control.pendulum.PendulumEnv.render", fail)
    with pytest.raises(EnvironmentProblem) as problem:
        evaluate.film_checkpoint(run_dir, tmp_path, num_episodes=1)
    text = str(problem.value)
    assert text.startswith("environment 'Pendulum-v1' cannot draw itself: DependencyNotInstalled: pygame")
    assert text.endswith('pip install ".[video]"') and "\n" not in text


def test_a_directory_that_cannot_be_made_is_named(run_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"video directory .*file/videos cannot be written: Not a directory"):
        evaluate.film_checkpoint(run_dir, tmp_path / "file" / "videos", num_episodes=1)
