"""The command line on the real runtime: a small run is trained, evaluated, used, resumed and interrupted."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from rl_training.cli import main

SOURCE = Path(__file__).parents[2] / "src"
SMALL = (
    "total_timesteps=60",
    "eval_episodes=1",
    "checkpoint_interval=20",
    "algo_kwargs.learning_starts=20",
    "algo_kwargs.batch_size=8",
    "algo_kwargs.hidden_sizes=[8, 8]",
    "algo_kwargs.eval_interval=0",
    "algo_kwargs.compile=false",
)


def train_arguments(output_dir: Path, *changes: str) -> list[str]:
    values = dict(change.split("=", 1) for change in (*SMALL, *changes))
    sets = [part for name, value in values.items() for part in ("--set", f"{name}={value}")]
    return ["train", "--config", "sac/pendulum", "--output-dir", str(output_dir), "--quiet", *sets]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run; the path is what `--quiet` printed."""
    output_dir = tmp_path_factory.mktemp("runs")
    assert main(train_arguments(output_dir)) == 0
    (created,) = output_dir.iterdir()
    return created


def output_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 0
    return capsys.readouterr().out


@pytest.mark.pictures
def test_quiet_training_prints_the_run_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = output_of(capsys, *train_arguments(tmp_path))
    (created,) = tmp_path.iterdir()
    assert printed == f"{created}\n"
    summary = json.loads((created / "summary.json").read_text())
    assert summary["checkpoint"] == "step_60.safetensors"
    assert (created / "learning_curve.png").is_file()


def test_evaluate_reports_the_run(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    metrics = json.loads(output_of(capsys, "eval", "--checkpoint", str(run_dir), "--episodes", "2"))
    assert (metrics["eval_episodes"], metrics["global_step"], metrics["gradient_steps"]) == (2, 60, 40)
    assert -2000 < metrics["eval_return_mean"] < 0


def test_predict_keeps_to_the_bounds_and_the_shape(run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (action,) = json.loads(output_of(capsys, "predict", "-k", str(run_dir), "--obs", "1.0, 0.0, -8.0"))
    assert -2.0 <= action <= 2.0
    rows = run_dir.parent / "rows.npy"
    np.save(rows, np.array([[1.0, 0.0, -8.0], [0.0, 1.0, 0.0]], dtype=np.float32))
    actions = json.loads(output_of(capsys, "predict", "-k", str(run_dir), "--obs-file", str(rows)))
    assert np.shape(actions) == (2, 1)
    assert actions[0] == pytest.approx([action], abs=1e-5)


def test_resume_goes_on_in_a_new_place(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--total-timesteps", "80", "--output-dir", str(tmp_path), "--quiet")
    created = Path(output_of(capsys, "resume", "--checkpoint", str(run_dir), *arguments).strip())
    summary = json.loads((created / "summary.json").read_text())
    assert created.parent == tmp_path and summary["checkpoint"] == "step_80.safetensors"


@pytest.mark.parametrize(
    "arguments",
    [
        ["evaluate", "--checkpoint", "nowhere"],
        ["resume", "--checkpoint", "nowhere"],
        ["evaluate", "--checkpoint", "RUN", "--device", "gpu"],
        ["predict", "--checkpoint", "RUN", "--obs", "1, 2"],
        ["predict", "--checkpoint", "RUN", "--obs", "1, nan, 3"],
        ["predict", "--checkpoint", "RUN/config.yaml", "--obs", "1, 2, 3"],
        ["train", "--config", "sac/pendulum", "--set", "env_id=Nowhere-v0"],
        ["train", "--config", "td3/pendulum", "--set", "env_id=CartPole-v1"],
        ["train", "--config", "sac/pendulum", "--output-dir", "RUN/config.yaml"],
    ],
)
def test_bad_input_is_one_line_and_code_2(
    run_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([argument.replace("RUN", str(run_dir)) for argument in arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert list(tmp_path.rglob("*.safetensors")) == []


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_process_saves_says_how_to_resume_and_can_be_resumed(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    arguments = train_arguments(tmp_path, "total_timesteps=1000000", "algo_kwargs.keep_checkpoints=1")
    environment = os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "rl_training", *arguments], env=environment, stderr=subprocess.PIPE, text=True
    )
    try:
        deadline = time.monotonic() + 60
        while not list(tmp_path.rglob("step_*.safetensors")) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(number)
        _, error = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == code, error
    line = error.splitlines()[-1]
    _, _, checkpoint = line.partition("; resume with: rl-training resume --checkpoint ")
    assert line.startswith(f"saved {checkpoint}; ")
    step = int(Path(checkpoint).stem.removeprefix("step_"))
    assert main(["resume", "--checkpoint", checkpoint, "--total-timesteps", str(step + 5), "--quiet"]) == 0
