"""A run directory belongs to one process at a time, and a file does not choose where is written."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from helpers import tiny_config, train
from rl_training.core.checkpoints import load_checkpoint, save_checkpoint
from rl_training.core.errors import RunFailed
from rl_training.runs import resume as workflows
from rl_training.runs.directory import RunLock
from rl_training.runs.resume import resume_training
from rl_training.runs.saved import SavedRun
from rl_training.runtime.callbacks import Callback, Run

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
