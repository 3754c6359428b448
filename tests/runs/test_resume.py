"""Stopping and going on gives the same parameters, bit for bit, as never having stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from helpers import assert_same_tree, slow_but_two, tiny_config, train
from rl_training.core.checkpoints import list_checkpoints, load_checkpoint, read_header
from rl_training.core.errors import CheckpointError, RunFailed
from rl_training.core.registry import algorithm_names
from rl_training.runs.resume import resume_training
from rl_training.runs.tracking import read_metrics
from rl_training.runtime.callbacks import Callback, Run

TRAINING_STATE = ("counters", "learner", "streams", "collector", "exploration", "replay", "callbacks")


def assert_same_training_state(left: Path | None, right: Path | None) -> None:
    assert left is not None and right is not None
    states = [load_checkpoint(path) for path in (left, right)]
    for key in TRAINING_STATE:
        if key in states[0] or key in states[1]:
            assert_same_tree(states[0][key], states[1][key], key)


@pytest.mark.parametrize("algo", slow_but_two(algorithm_names()))
def test_resume_equals_an_uninterrupted_run(algo: str, tmp_path: Path) -> None:
    whole = train(tiny_config(algo, tmp_path / "whole", total_timesteps=60))
    half = train(tiny_config(algo, tmp_path / "half", total_timesteps=33, algo_kwargs={"schedule_steps": 60}))
    assert half.checkpoint_path is not None
    resumed = resume_training(half.checkpoint_path, total_timesteps=60, quiet=True)
    assert resumed.run_dir == half.run_dir
    assert_same_training_state(whole.checkpoint_path, resumed.checkpoint_path)


CASES: dict[str, dict[str, Any]] = {
    "several environments": {"num_envs": 3},
    "cosine schedule with warm-up": {
        "algo_kwargs": {"learning_rate_schedule": "cosine", "warmup_steps": 10, "schedule_steps": 60}
    },
    "linear schedule over the first run's total": {"algo_kwargs": {"learning_rate_schedule": "linear"}},
    "early stopping": {
        "algo_kwargs": {"eval_interval": 10, "early_stopping": {"patience": 3, "min_delta": 1e6}}
    },
    "collecting ahead": {"num_envs": 2, "algo_kwargs": {"collect_ahead": True, "learning_starts": 30}},
    "rounds of updates": {"num_envs": 2, "algo_kwargs": {"train_frequency": 4, "learning_starts": 10}},
}


class StopAt(Callback):
    """A user's callback that stops the run once at a given step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, run: Run) -> None:
        if run.global_step >= self.step:
            run.request_stop("enough for now")


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("stop", [21, 37])
def test_sac_resumes_exactly(case: str, stop: int, tmp_path: Path) -> None:
    changes = {"total_timesteps": 60, **CASES[case]}
    whole = train(tiny_config("sac", tmp_path / "whole", **changes))
    half = train(tiny_config("sac", tmp_path / "half", **changes), callbacks=[StopAt(stop)])
    assert half.metrics["stop_reason"] == "enough for now"
    assert half.checkpoint_path is not None
    resumed = resume_training(half.checkpoint_path, quiet=True)
    assert resumed.metrics["stop_reason"] == whole.metrics["stop_reason"]
    assert_same_training_state(whole.checkpoint_path, resumed.checkpoint_path)


def test_a_stop_inside_a_round_of_updates_is_resumed_inside_it(tmp_path: Path) -> None:
    changes = {"total_timesteps": 40, "algo_kwargs": {"train_frequency": 10, "gradient_updates_per_step": 2}}
    whole = train(tiny_config("sac", tmp_path / "whole", **changes))

    class StopAfterUpdates(Callback):
        def on_update_end(self, run: Run, result: Any) -> None:
            if run.gradient_steps == 7:
                run.request_stop("in the middle")

    half = train(tiny_config("sac", tmp_path / "half", **changes), callbacks=[StopAfterUpdates()])
    assert half.metrics["gradient_steps"] == 7
    assert half.checkpoint_path is not None
    resumed = resume_training(half.checkpoint_path, quiet=True)
    assert_same_training_state(whole.checkpoint_path, resumed.checkpoint_path)


def test_resume_elsewhere_leaves_the_first_run_alone(tmp_path: Path) -> None:
    first = train(tiny_config("sac", tmp_path / "first"))
    before = {path: path.stat().st_mtime_ns for path in first.run_dir.rglob("*") if path.is_file()}
    second = resume_training(
        first.run_dir, total_timesteps=50, output_dir=tmp_path / "second", run_suffix="more", quiet=True
    )
    assert second.run_dir.parent == tmp_path / "second"
    assert second.metrics["global_step"] == 50
    assert before == {path: path.stat().st_mtime_ns for path in first.run_dir.rglob("*") if path.is_file()}


def test_resume_drops_metrics_after_the_checkpoint(tmp_path: Path) -> None:
    run = train(tiny_config("sac", tmp_path, checkpoint_interval=20, log_interval=5))
    early = list_checkpoints(run.run_dir)
    assert [path.name for path in early] == ["step_20.safetensors", "step_40.safetensors"]
    resumed = resume_training(run.run_dir, total_timesteps=45, quiet=True)
    steps = [row["step"] for row in read_metrics(resumed.run_dir) if row["kind"] == "train"]
    assert steps == sorted(set(steps)) and steps[-1] == 45


@pytest.mark.parametrize("value", ['"very good"', "[1]", "NaN", "1" + "0" * 400])
def test_text_among_the_metrics_is_refused_before_training(tmp_path: Path, value: str) -> None:
    config = tiny_config("iql", tmp_path, total_timesteps=20, online_timesteps=10)
    run = train(config)
    metrics = run.run_dir / "metrics.jsonl"
    row = f'{{"step": 5, "kind": "eval", "time": 1.0, "eval_return_mean": {value}}}\n'
    metrics.write_text(metrics.read_text() + row)
    before = metrics.read_bytes()
    with pytest.raises(RunFailed, match=r"metrics\.jsonl: eval_return_mean of step 5 must be a number, got "):
        resume_training(run.run_dir, online_timesteps=20, quiet=True)
    assert metrics.read_bytes() == before and len(list_checkpoints(run.run_dir)) == 1


def test_only_the_newest_checkpoint_holds_the_replay_rows(tmp_path: Path) -> None:
    config = tiny_config("sac", tmp_path, checkpoint_interval=10, algo_kwargs={"keep_checkpoints": 2})
    run = train(config)
    older, newest = list_checkpoints(run.run_dir)
    assert (older.name, newest.name) == ("step_30.safetensors", "step_40.safetensors")
    assert load_checkpoint(newest)["replay"]["obs"].shape[0] == 40
    assert "replay" not in read_header(older)
    with pytest.raises(CheckpointError, match="no replay rows"):
        resume_training(older, total_timesteps=50, quiet=True)
    best = run.run_dir / "checkpoints" / "best.safetensors"
    assert "replay" not in read_header(best)


def test_resuming_a_finished_run_trains_no_further(tmp_path: Path) -> None:
    run = train(tiny_config("sac", tmp_path))
    again = resume_training(run.run_dir, quiet=True)
    assert again.metrics["global_step"] == 40
    assert again.metrics["gradient_steps"] == run.metrics["gradient_steps"]


def test_resuming_an_older_checkpoint_loses_nothing(tmp_path: Path) -> None:
    run = train(tiny_config("iql", tmp_path, checkpoint_interval=10))
    older = list_checkpoints(run.run_dir)[0]
    assert older.name == "step_20.safetensors"
    again = resume_training(older, total_timesteps=25, quiet=True)
    assert again.run_dir != run.run_dir and again.run_dir.parent == run.run_dir.parent
    assert [path.name for path in list_checkpoints(again.run_dir)] == ["step_25.safetensors"]
    assert list_checkpoints(run.run_dir)[-1].name == "step_40.safetensors"
