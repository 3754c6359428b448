"""Films of a saved policy."""

import json
import subprocess
from importlib.util import find_spec
from pathlib import Path

import gymnasium as gym
import imageio_ffmpeg
import numpy as np
import pytest

from helpers import tiny_config, train
from rl_training.cli import main
from rl_training.core.errors import EnvironmentProblem, UserError
from rl_training.runs import evaluate
from rl_training.runs.evaluate import evaluate_checkpoint


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
