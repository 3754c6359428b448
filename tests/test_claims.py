"""A run directory belongs to one process at a time, and a file does not choose where is written."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rl_training.core.checkpoints import load_checkpoint, save_checkpoint
from rl_training.core.errors import RunFailed
from rl_training.experiment.claims import DirectoryClaim
from rl_training.experiment.workflows import resume_training
from rl_training.runtime.callbacks.base import Callback
from rl_training.runtime.run import Run
from support import tiny_config, train

HOLD = """
import sys, time
from pathlib import Path
from rl_training.experiment.claims import DirectoryClaim
held = DirectoryClaim(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tiny_config("td3_bc", tmp_path_factory.mktemp("runs"))).run_dir


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


class Intruder(Callback):
    """Tries to claim the directory of the run it belongs to."""

    refused = False

    def on_train_start(self, run: Run) -> None:
        with pytest.raises(RunFailed, match="in use"):
            DirectoryClaim(run.run_dir)
        self.refused = True


def test_every_directory_of_a_stack_is_claimed_while_it_trains(tmp_path: Path) -> None:
    intruder = Intruder()
    result = train(tiny_config("td3_bc", tmp_path, seeds=[1, 2]), callbacks=[intruder])
    assert intruder.refused and len(result.members) == 2
    for member in result.members:
        DirectoryClaim(member.run_dir).release()


def test_the_lock_is_not_inherited_by_a_forked_process(tmp_path: Path) -> None:
    held = DirectoryClaim(tmp_path)
    ready, done = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:  # outlives the claim of its parent
        os.write(ready[1], b"x")
        os.read(done[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    held.release()
    DirectoryClaim(tmp_path).release()
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
