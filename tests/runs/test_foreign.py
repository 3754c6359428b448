"""A file from a stranger opens no other file, no window and no tracker, whichever command it is given to."""

from __future__ import annotations

import copy
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.envs.classic_control.pendulum import PendulumEnv

import rl_training
from helpers import tiny_config, train
from rl_training.cli import main
from rl_training.core.checkpoints import load_checkpoint, newest_checkpoint, save_checkpoint
from rl_training.core.errors import ConfigError
from rl_training.runs.evaluate import evaluate_checkpoint
from rl_training.runs.resume import resume_training
from rl_training.runs.saved import trusted_kwargs

REACHED: list[dict[str, Any]] = []


class Reaching(PendulumEnv):
    """An environment that notes the keywords it is made with, where others would follow them."""

    def __init__(self, g: float = 10.0, reward: str = "dense", model: str = "", shown: bool = False) -> None:
        REACHED.append({"g": g, "reward": reward, "model": model, "shown": shown})
        super().__init__()


@pytest.fixture(scope="module", autouse=True)
def known() -> Iterator[None]:
    gym.register("Reaching-v0", entry_point=Reaching, max_episode_steps=5)
    yield
    del gym.registry["Reaching-v0"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, known: None) -> Path:
    config = tiny_config("iql", tmp_path_factory.mktemp("runs"), env_id="Reaching-v0", total_timesteps=10)
    return train(config).run_dir


def from_a_stranger(trained: Path, folder: Path, **config: Any) -> Path:
    """A run directory whose checkpoint says something else."""
    run = folder / "mailed"
    shutil.copytree(trained, run)
    newest = newest_checkpoint(run)
    assert newest is not None
    state = copy.deepcopy(load_checkpoint(newest))
    state["config"].update(config)
    save_checkpoint(newest, state)
    return run


def commands(run: Path, out: Path) -> dict[str, list[str]]:
    given = ["--checkpoint", str(run)]
    return {
        "evaluate": ["evaluate", *given, "--episodes", "1"],
        "resume": ["resume", *given, "--total-timesteps", "12", "--quiet"],
        "finetune": ["finetune", *given, "--timesteps", "3", "--quiet", "-o", str(out / "tuned")],
        "collect": ["data", "collect", *given, "--rows", "3", "--quiet", "--out", str(out / "rows.npz")],
        "film": ["evaluate", *given, "--episodes", "1", "--video", str(out / "films")],
    }


COMMANDS = tuple(commands(Path(), Path()))


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("in_a_run", [True, False])
def test_a_path_among_the_keywords_comes_from_the_user_or_not_at_all(
    trained: Path, tmp_path: Path, command: str, in_a_run: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    hostile = {"g": 9.0, "model": str(tmp_path / "secret.xml")}
    given = from_a_stranger(trained, tmp_path, env_kwargs=hostile)
    if not in_a_run:
        newest = newest_checkpoint(given)
        assert newest is not None
        given = Path(shutil.move(newest, tmp_path / "mailed.safetensors"))
    words = commands(given, tmp_path)[command]
    REACHED.clear()
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: env_kwargs.model '") and " comes from a file and " in line
    assert f'--env-kwargs \'{{"g": 9.0, "model": "{tmp_path / "secret.xml"}"}}\'' in line
    assert REACHED == []
    if in_a_run and command != "film":
        assert main([*words, "--env-kwargs", "{g: 8.0}"]) == 0
        assert {made["g"] for made in REACHED} == {8.0} and {made["model"] for made in REACHED} == {""}


@pytest.mark.parametrize("command", ["evaluate", "resume", "finetune", "collect"])
def test_numbers_and_plain_words_of_a_file_keep_working(
    trained: Path, tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = from_a_stranger(trained, tmp_path, env_kwargs={"g": 9.5, "reward": "sparse", "shown": True})
    REACHED.clear()
    assert main(commands(run, tmp_path)[command]) == 0, capsys.readouterr().err
    assert REACHED and all(made["g"] == 9.5 and made["reward"] == "sparse" for made in REACHED)


HARMLESS: tuple[dict[str, Any], ...] = (
    {"g": 9.8, "max_episode_steps": 100, "terminate_when_unhealthy": False, "healthy_z_range": [0.2, 1.0]},
    {"reward_type": "sparse", "task": "pick-and-place", "maze": [[1, 0], [0, 1]], "goal": None},
    {"render_mode": None, "render_fps": 30, "window": 5, "gui": False, "render_mode ": "rgb_array"},
    {"options": {"difficulty": {"level": "very hard"}}},
)
HOSTILE = (
    *({"xml_file": path} for path in ("/etc/passwd", "../x", "a.xml", "~", "C:\\x", "http://x", "plain")),
    *({"anything": text} for text in ("os:system", "package.module", "$HOME", "a\nb", "a/b", "x" * 50, "é")),
    {"options": [{"reward": {"module": "canary"}}]},
    {"render_mode": "human"},
    {"mode": "human"},
    {"render_mode": "window"},
    {"gui": True},
    {"render": 1},
)


def test_which_keywords_of_a_file_are_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for kwargs in HARMLESS:
        assert trusted_kwargs(kwargs, None) == kwargs
    for kwargs in HOSTILE:
        with pytest.raises(ConfigError, match=r"^env_kwargs\.[^\n]* comes from a file and could [^\n]*$"):
            trusted_kwargs(kwargs, None)
        assert trusted_kwargs({}, kwargs) == kwargs, "the user may say anything"
    (tmp_path / "sparse").touch()
    with pytest.raises(ConfigError, match="open a file"):
        trusted_kwargs({"reward_type": "sparse"}, None)


def test_a_loaded_object_trusts_its_file_no_more_than_the_commands(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stranger_code.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    uses: tuple[Callable[[Any], object], ...] = (
        lambda agent: agent.evaluate(1),
        lambda agent: agent.learn(quiet=True),
        lambda agent: agent.finetune(timesteps=3, quiet=True),
    )
    for index, change in enumerate(
        (
            {"env_kwargs": {"model": "/etc/passwd"}},
            {"env_id": "stranger_code:Env-v0"},
            {"wrappers": ["stranger_code:wrap"]},
        )
    ):
        run = from_a_stranger(trained, tmp_path / str(index), output_dir=str(tmp_path / "new"), **change)
        REACHED.clear()
        for use in uses:
            with pytest.raises(ConfigError, match=r"give it yourself|give the keywords|must be given again"):
                use(rl_training.IQL.load(run))
        assert REACHED == [] and "stranger_code" not in sys.modules
        mine = rl_training.IQL.load(run, env="Reaching-v0", wrappers=[], env_kwargs={"g": 7.0})
        assert mine.evaluate(1)["eval_episodes"] == 1
        assert [made["g"] for made in REACHED] == [7.0]


def test_an_object_evaluates_in_the_wrappers_of_its_own_config(tmp_path: Path) -> None:
    config = tiny_config("bc", tmp_path, wrappers=["fake_world:impatient"], total_timesteps=10)
    agent = rl_training.BC(config)
    result = agent.learn(quiet=True)
    assert agent.evaluate(1)["eval_return_mean"] == result.metrics["eval_return_mean"]


# ---- trackers


@pytest.fixture
def no_tracker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trackers that are not there: whoever asks for one says so."""
    for name in ("wandb", "mlflow"):
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.usefixtures("no_tracker")
def test_a_file_starts_no_tracker(trained: Path, tmp_path: Path) -> None:
    run = from_a_stranger(trained, tmp_path, trackers=["mlflow", "wandb"])
    said = (
        r"without its tracker mlflow, wandb: a file does not start one; .* --tracker mlflow --tracker wandb"
    )
    with pytest.warns(UserWarning, match=said):
        resumed = resume_training(run, total_timesteps=12, quiet=True)
    assert resumed.metrics["global_step"] == 12
    assert evaluate_checkpoint(run, num_episodes=1)["eval_episodes"] == 1
    with pytest.raises(ConfigError, match="trackers must be installed, got 'wandb'"):
        resume_training(run, total_timesteps=14, tracker_names=["wandb"], quiet=True)


@pytest.mark.usefixtures("no_tracker")
def test_finetuning_starts_the_trackers_that_the_user_names(trained: Path, tmp_path: Path) -> None:
    run = from_a_stranger(trained, tmp_path, trackers=["mlflow"])
    words = commands(run, tmp_path)["finetune"]
    with pytest.warns(UserWarning, match="without its tracker mlflow"):
        assert main(words) == 0
    assert main([*words, "--set", "trackers=[wandb]"]) == 2


def test_an_object_from_a_file_starts_no_tracker_of_it(tmp_path: Path) -> None:
    result = train(tiny_config("bc", tmp_path))
    assert result.checkpoint_path is not None
    state = load_checkpoint(result.checkpoint_path)
    state["config"] = {**state["config"], "trackers": ["wandb"]}
    save_checkpoint(result.checkpoint_path, state)
    agent = rl_training.BC.load(result.run_dir)
    with pytest.warns(UserWarning, match="the run goes on without its tracker wandb: a file does not start"):
        tuned = agent.finetune(timesteps=3, quiet=True)
    assert not (tuned.run_dir / "wandb").exists()
