"""Runs that fail, and directories that another process works in."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from helpers import tiny_config, train
from rl_training.core import checkpoints as checkpointing
from rl_training.core.checkpoints import list_checkpoints, load_checkpoint, save_checkpoint
from rl_training.core.errors import CheckpointError, ConfigError, EnvironmentProblem, RunFailed
from rl_training.runs import resume as workflows
from rl_training.runs.directory import RunLock
from rl_training.runs.evaluate import evaluate_checkpoint
from rl_training.runs.resume import resume_training
from rl_training.runs.saved import SavedRun
from rl_training.runtime.callbacks import Callback, Run


class Fragile(gym.Env[Any, Any]):
    """Raises in the fourth step of an episode, unless told to behave."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (2,))
    action_space = gym.spaces.Box(-1.0, 1.0, (1,))
    broken = True

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        self.noise = float(self.np_random.uniform())
        return np.array([self.noise, 0.0], dtype=np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        if Fragile.broken and self.steps == 4:
            raise RuntimeError("the motor is on fire")
        obs = np.array([self.noise, self.steps / 10], dtype=np.float32)
        return obs, float(action[0]), False, self.steps == 10, {}


gym.register("Fragile-v0", entry_point=Fragile)


def test_an_environment_that_raises_leaves_a_checkpoint_to_go_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Fragile, "broken", False)
    config = tiny_config("sac", tmp_path, env_id="Fragile-v0", total_timesteps=40)
    whole = train(config)
    broken_config = tiny_config("sac", tmp_path / "broken", env_id="Fragile-v0", total_timesteps=40)

    class BreakLater(Callback):
        def on_step_end(self, run: Run) -> None:
            monkeypatch.setattr(Fragile, "broken", run.global_step >= 25)

    with pytest.raises(RunFailed, match=r"step 33: .*the motor is on fire.*saved .*step_33"):
        train(broken_config, callbacks=[BreakLater()])
    monkeypatch.setattr(Fragile, "broken", False)
    resumed = resume_training(next((tmp_path / "broken").iterdir()), quiet=True)
    weights = [load_checkpoint(run.checkpoint_path or "")["learner"]["tensors"] for run in (whole, resumed)]
    assert all((weights[0][name] == weights[1][name]).all() for name in weights[0])


class Odd(Fragile):
    """Does something unusual in the fourth step of an episode."""

    event: Any = None

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = super().step(action)
        if self.steps == 4:
            if isinstance(Odd.event, BaseException):
                raise Odd.event
            return (*Odd.event, info) if len(Odd.event) == 4 else Odd.event
        return obs, reward, terminated, truncated, info


gym.register("Moody-v0", entry_point=Odd)
FINE = np.zeros(2, dtype=np.float32)


@pytest.mark.parametrize(
    ("event", "complaint"),
    [
        (SystemExit(0), "raised SystemExit: 0"),
        (KeyboardInterrupt(), "raised KeyboardInterrupt"),
        (GeneratorExit(), "raised GeneratorExit"),
        ((np.zeros(3), 0.0, False, False), r"returned an observation of shape \(3,\)"),
        ((None, 0.0, False, False), r"returned an observation of shape \(\)"),
        ((["a", "b"], 0.0, False, False), "raised"),
        ((FINE, "much", False, False), "could not convert string to float"),
        ((FINE, None, False, False), "raised TypeError"),
        ((FINE, 0.0, "yes", False), "terminated and truncated must be true or false, got 'yes'"),
        ((FINE, 0.0, False, None), "terminated and truncated must be true or false, got None"),
        ((FINE, 0.0, float("nan"), False), "terminated and truncated must be true or false, got nan"),
        ((FINE, 0.0), "not enough values to unpack"),
    ],
)
def test_odd_environments_end_like_those_that_raise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, event: object, complaint: str
) -> None:
    monkeypatch.setattr(Fragile, "broken", False)
    monkeypatch.setattr(Odd, "event", event)
    config = tiny_config("sac", tmp_path, env_id="Moody-v0", eval_episodes=0)
    with pytest.raises(RunFailed, match=rf"step 3: .*{complaint}.*saved .*step_3"):
        train(config)
    assert load_checkpoint(next(tmp_path.iterdir()))["counters"]["global_step"] == 3


def test_a_deleted_run_directory_ends_the_run(tmp_path: Path) -> None:
    class Delete(Callback):
        def on_step_end(self, run: Run) -> None:
            if run.global_step == 22:
                shutil.rmtree(run.run_dir)

    config = tiny_config("sac", tmp_path, checkpoint_interval=25)
    with pytest.raises(RunFailed, match=r"step 25: the run directory .* is gone; nothing was saved"):
        train(config, callbacks=[Delete()])
    assert not list(tmp_path.iterdir())


class Poison(Callback):
    """Turns a weight into NaN at a given step."""

    def __init__(self, part: str, step: int) -> None:
        self.part, self.step = part, step

    def on_step_end(self, run: Run) -> None:
        if run.global_step == self.step:
            next(iter(getattr(run.learner.model, self.part).parameters())).data.fill_(float("nan"))


def test_a_loss_that_becomes_nan_stops_the_run(tmp_path: Path) -> None:
    config = tiny_config("sac", tmp_path, checkpoint_interval=25)
    with pytest.raises(RunFailed, match=r"step 34: \w+_loss became nan; last good checkpoint: .*step_25"):
        train(config, callbacks=[Poison("critic", 33)])
    (run_dir,) = tmp_path.iterdir()
    assert [path.name for path in list_checkpoints(run_dir)] == ["step_25.safetensors"]
    assert evaluate_checkpoint(run_dir, num_episodes=1)["global_step"] == 25


def test_broken_weights_are_never_saved(tmp_path: Path) -> None:
    config = tiny_config("sac", tmp_path, checkpoint_interval=30, log_interval=1000)
    with pytest.raises(RunFailed, match="weights are no longer finite; no checkpoint was saved before"):
        train(config, callbacks=[Poison("actor", 29)])


def test_a_full_disk_stops_the_run_and_keeps_the_previous_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = checkpointing.write_safetensors
    calls = []

    def fill_up(*arguments: Any, **keywords: Any) -> None:
        calls.append(1)
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(*arguments, **keywords)

    monkeypatch.setattr(checkpointing, "write_safetensors", fill_up)
    config = tiny_config("sac", tmp_path, checkpoint_interval=25, eval_episodes=0)
    with pytest.raises(CheckpointError, match="No space left on device"):
        train(config)
    (run_dir,) = tmp_path.iterdir()
    assert [path.name for path in (run_dir / "checkpoints").iterdir()] == ["step_25.safetensors"]
    assert load_checkpoint(run_dir)["counters"]["global_step"] == 25


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_finishes_the_step_saves_and_can_be_resumed(number: int, tmp_path: Path) -> None:
    class SendSignal(Callback):
        def on_step_end(self, run: Run) -> None:
            if run.global_step == 30:
                os.kill(os.getpid(), number)

    result = train(tiny_config("sac", tmp_path), callbacks=[SendSignal()])
    assert result.metrics["signal"] == number
    assert 30 <= result.metrics["global_step"] <= 31
    resumed = resume_training(result.run_dir, quiet=True)
    assert resumed.metrics["global_step"] == 40 and resumed.metrics["signal"] is None


def test_unsupported_environments_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="td3 takes only continuous actions, and action 0 is a choice"):
        train(tiny_config("td3", tmp_path, env_id="CartPole-v1"))
    with pytest.raises(EnvironmentProblem, match="Pendulm-v1"):
        train(tiny_config("sac", tmp_path, env_id="Pendulm-v1"))
    with pytest.raises(ConfigError, match="env_id is required: sac"):
        train(tiny_config("sac", tmp_path, env_id=None))
    assert not list(tmp_path.iterdir())


# ---- a run directory belongs to one process at a time, and a file does not choose where is written


HOLD = """
import sys, time
from pathlib import Path
from rl_training.runs.directory import RunLock
held = RunLock(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tiny_config("td3_bc", tmp_path_factory.mktemp("runs"))).run_dir


@pytest.mark.slow
def test_a_second_process_is_refused_until_the_first_is_gone(finished: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD, str(finished)], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline() == b"held\n"
        before = {path: path.stat().st_mtime_ns for path in finished.rglob("*")}
        with pytest.raises(RunFailed, match="is in use by another process; wait for it or stop it"):
            resume_training(finished, total_timesteps=42, quiet=True)
        assert {path: path.stat().st_mtime_ns for path in finished.rglob("*")} == before
        os.kill(other.pid, signal.SIGKILL)
        other.wait()
    assert resume_training(finished, total_timesteps=42, quiet=True).metrics["global_step"] == 42


@pytest.mark.slow
def test_a_run_that_saves_while_it_is_resumed_elsewhere_is_not_copied(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "runs" / "run"
    shutil.copytree(finished, run)
    newest = max((run / "checkpoints").glob("step_*"))

    def save_another(*arguments: Any, **keywords: Any) -> SavedRun:
        """What the other process does while this one reads."""
        shutil.copy(newest, run / "checkpoints" / "step_99.safetensors")
        return SavedRun(*arguments, **keywords)

    monkeypatch.setattr(workflows, "SavedRun", save_another)
    with subprocess.Popen([sys.executable, "-c", HOLD, str(run)], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline() == b"held\n"
        for given in (run, run / "checkpoints", newest):
            with pytest.raises(RunFailed, match="is in use by another process"):
                resume_training(given, total_timesteps=44, quiet=True)
        other.kill()
        other.wait()
    assert [path.name for path in run.parent.iterdir()] == ["run"], "no copy beside it"


def test_a_copy_elsewhere_may_be_asked_for_while_the_run_trains(finished: Path, tmp_path: Path) -> None:
    held = RunLock(finished)
    resumed = resume_training(finished, total_timesteps=44, output_dir=tmp_path, quiet=True)
    held.release()
    assert resumed.run_dir.parent == tmp_path


class Intruder(Callback):
    """Tries to claim the directory of the run it belongs to."""

    refused = False

    def on_train_start(self, run: Run) -> None:
        with pytest.raises(RunFailed, match="in use"):
            RunLock(run.run_dir)
        self.refused = True


def test_every_directory_of_a_stack_is_claimed_while_it_trains(tmp_path: Path) -> None:
    intruder = Intruder()
    result = train(tiny_config("td3_bc", tmp_path, seeds=[1, 2]), callbacks=[intruder])
    assert intruder.refused and len(result.members) == 2
    for member in result.members:
        RunLock(member.run_dir).release()


def test_the_lock_is_not_inherited_by_a_forked_process(tmp_path: Path) -> None:
    held = RunLock(tmp_path)
    ready, done = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:  # outlives the claim of its parent
        os.write(ready[1], b"x")
        os.read(done[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    held.release()
    RunLock(tmp_path).release()
    os.write(done[1], b"x")
    os.waitpid(child, 0)
    for descriptor in (*ready, *done):
        os.close(descriptor)


def test_a_file_from_anywhere_does_not_choose_where_is_written(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = load_checkpoint(finished)
    state["config"]["output_dir"] = str(tmp_path / "chosen_by_the_file")
    save_checkpoint(tmp_path / "mailed.safetensors", state)
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    resumed = resume_training(tmp_path / "mailed.safetensors", total_timesteps=44, quiet=True)
    assert resumed.run_dir.resolve().parent == here / "runs"
    assert not (tmp_path / "chosen_by_the_file").exists()


def test_an_older_checkpoint_goes_on_beside_its_run(finished: Path, tmp_path: Path) -> None:
    run = tmp_path / "mailed" / "run"
    shutil.copytree(finished, run)
    oldest = min((run / "checkpoints").glob("step_*"))
    shutil.copy(oldest, run / "checkpoints" / "step_99.safetensors")
    resumed = resume_training(oldest, total_timesteps=44, quiet=True)
    assert resumed.run_dir.parent == tmp_path / "mailed" and resumed.run_dir != run
