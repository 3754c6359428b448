"""Seeing a run through: train, save in time, close in order, write down what came of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import fmean, pstdev

from rl_training.core.errors import EnvironmentProblem, RunFailed
from rl_training.core.plain import State
from rl_training.experiment.logging import read_metrics
from rl_training.experiment.online_progress import online_numbers
from rl_training.experiment.plots import plot_learning_curve
from rl_training.experiment.runs import summarize_run, write_summary
from rl_training.experiment.saving import Checkpoints
from rl_training.runtime.loop import Trainer
from rl_training.runtime.memory import keep_freed_memory
from rl_training.runtime.run import Run, TrainResult
from rl_training.runtime.signals import orderly_stop


def execute(trainer: Trainer[Run], runs: Sequence[Run]) -> list[TrainResult]:
    """Train, close in order whatever happens, and write down the results."""
    started = time.time()
    keep_freed_memory()

    def stop(number: int) -> None:
        for run in runs:
            run.signal = number
            run.request_stop(f"signal {number}")

    try:
        with orderly_stop(stop):
            train_or_save(trainer)
        for run in trainer.runs:
            run.finish()
    finally:
        close_all(trainer, runs)
    results = [write_result(run, started) for run in runs if run.failure is None]
    failures = [f"seed {run.config.seed}: {run.failure}" for run in runs if run.failure is not None]
    if failures:
        raise RunFailed("; ".join(failures))
    return results


def close_all(trainer: Trainer[Run], runs: Sequence[Run]) -> None:
    """Environments, logs and trackers."""
    trainer.close()
    for run in runs:
        for callback in run.callbacks:
            callback.close(run)


def train_or_save(trainer: Trainer[Run]) -> None:
    """An environment that raises ends the run with everything up to that step saved."""
    try:
        trainer.train()
    except EnvironmentProblem as problem:
        paths = []
        for run in trainer.runs:
            saver = next(callback for callback in run.callbacks if isinstance(callback, Checkpoints))
            paths.append(str(saver.save(run)))
        step = trainer.counters.global_step
        raise RunFailed(f"step {step}: {problem}; saved {', '.join(paths)}") from problem


def write_result(run: Run, started: float) -> TrainResult:
    """The files that describe a finished run, and its result."""
    assert run.outcome is not None
    metrics = {**run.outcome, "wall_time_seconds": time.time() - started}
    if run.config.online_timesteps:
        metrics |= online_numbers(read_metrics(run.run_dir), run.config.total_timesteps)
    described = summarize_run(
        run.config.to_dict(),
        metrics,
        stop_reason=metrics["stop_reason"],
        started_at=started,
        finished_at=time.time(),
    )
    checkpoint = None if run.checkpoint_path is None else run.checkpoint_path.name
    notes: State = {"checkpoint": checkpoint, "dataset": dict(run.notes.dataset)}
    if run.notes.parent is not None:
        notes["parent"] = dict(run.notes.parent)
    write_summary(run.run_dir, {**described, **notes})
    plot_learning_curve(run.run_dir)
    return TrainResult(run.run_dir, run.checkpoint_path, metrics)


def combine(results: Sequence[TrainResult]) -> TrainResult:
    """One result for several seeds; a single one is returned as it is."""
    first = results[0]
    if len(results) == 1:
        return first
    returns = [result.metrics["eval_return_mean"] for result in results]
    metrics = dict(first.metrics)
    if None not in returns:
        metrics |= {"eval_return_mean": fmean(returns), "eval_return_std": pstdev(returns)}
    values = [value for result in results if (value := result.metrics.get("judge_value")) is not None]
    if len(values) == len(results):
        metrics |= {"judge_value": fmean(values), "judge_value_std": pstdev(values)}
    return TrainResult(first.run_dir, first.checkpoint_path, metrics, tuple(results))
