"""A recipe ties an algorithm to its model, settings and phases; all else about a run is here, once."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import torch

from rl_training.algorithms.learner import Learner
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.errors import EnvironmentProblem, RunFailed
from rl_training.experiment.config import ConfigModel, TrainConfig, config_to_yaml
from rl_training.experiment.logging import MetricsLogger
from rl_training.experiment.plots import plot_learning_curve
from rl_training.experiment.runs import create_run_dir, summarize_run, write_summary, write_text_atomic
from rl_training.models.base import PolicyModel
from rl_training.runtime.callbacks.base import Callback
from rl_training.runtime.callbacks.checkpoints import Checkpoints
from rl_training.runtime.callbacks.evaluation import EarlyStopping, Evaluation
from rl_training.runtime.callbacks.logs import MetricsLog, Progress
from rl_training.runtime.callbacks.schedule import LearningRateSchedule
from rl_training.runtime.compiling import apply_compile, choose_device
from rl_training.runtime.loop import Trainer
from rl_training.runtime.material import Material
from rl_training.runtime.progress import ProgressDisplay
from rl_training.runtime.run import Run, TrainResult
from rl_training.runtime.signals import orderly_stop
from rl_training.spaces import Spaces
from rl_training.streams import RandomStream, torch_generator


class RunOptions(TypedDict, total=False):
    """How a run is started, beside its config."""

    run_suffix: str | None
    checkpoint_state: dict[str, Any] | None
    callbacks: Sequence[Callback] | None
    dataset: TransitionDataset | None
    run_dir: Path | None
    quiet: bool


@dataclass(frozen=True)
class Recipe:
    """`phases` says what the run learns from: `online` or `offline`."""

    name: str
    learner: type[Learner]
    model: type[PolicyModel]
    config: type[ConfigModel]
    phases: Callable[[TrainConfig, Any, type[Learner], TransitionDataset | None], Material]

    def build_learner(self, settings: Any, spaces: Spaces, seed: int, device: torch.device) -> Learner:
        """A fresh model and learner; weights are drawn on the CPU, so a seed means the same everywhere."""
        model = self.model.from_config(
            settings, spaces.obs_dim, spaces.action_dim, torch_generator(seed, "init")
        ).to(device)
        keywords = {name: getattr(settings, name) for name in self.learner.config_class.model_fields}
        return self.learner(model, seed=seed, **keywords)

    def run(
        self,
        config: TrainConfig,
        *,
        run_suffix: str | None = None,
        checkpoint_state: dict[str, Any] | None = None,
        callbacks: Sequence[Callback] | None = None,
        dataset: TransitionDataset | None = None,
        run_dir: Path | None = None,
        quiet: bool = False,
    ) -> TrainResult:
        """Train from the beginning, or on from `checkpoint_state`; in `run_dir`, or in a new directory."""
        settings: Any = config.run_config()
        material = self.phases(config, settings, self.learner, dataset)
        device = choose_device(config.device)
        learner = self.build_learner(settings, material.spaces, config.seed, device)
        saved = checkpoint_state or {}
        schedule_steps = saved.get("schedule_steps") or settings.schedule_steps or config.total_timesteps
        phases = material.phases(device, checkpoint_state)
        batches = RandomStream([torch_generator(config.seed, "batch", device=device)], "unit64")
        budget = update_budget(settings, material.rows)
        updates_left = sum(phase.steps * phase.updates_per_step for phase in phases)
        directory = run_dir or create_run_dir(config.output_dir, run_name(config), run_suffix)
        compiled = apply_compile(learner, settings.compile, updates_left, saved.get("compile"))
        write_text_atomic(directory / "config.yaml", config_to_yaml(config))
        resumed_at = saved["counters"]["global_step"] if saved else None
        run = Run(
            config=config,
            settings=settings,
            run_dir=directory,
            spaces=material.spaces,
            normalizer=material.normalizer,
            callbacks=[
                *standard_callbacks(config, settings, directory, schedule_steps, resumed_at, quiet),
                *(callbacks or ()),
            ],
            extra_state={
                "schedule_steps": schedule_steps,
                "compile": compiled,
                "dataset": material.summary,
                "dataset_in_python": dataset is not None,
            },
        )
        trainer = Trainer(
            learner, phases, [run], batch_size=settings.batch_size, batches=batches, update_budget=budget
        )
        if saved:
            restore(trainer, run, saved)
        return conduct(trainer, run)


def standard_callbacks(
    config: TrainConfig,
    settings: Any,
    run_dir: Path,
    schedule_steps: int,
    resumed_at: int | None,
    quiet: bool,
) -> list[Callback]:
    """Every cross-cutting concern of a run, in the order in which it sees a step."""
    logger = MetricsLogger(run_dir, resume_from_step=resumed_at)
    chosen: list[Callback] = [MetricsLog(logger, config.log_interval), Evaluation(settings.eval_interval)]
    if settings.learning_rate_schedule != "constant" or settings.warmup_steps:
        chosen.insert(0, LearningRateSchedule(schedule_steps))
    if settings.early_stopping is not None:
        chosen.append(EarlyStopping(settings.early_stopping))
    checkpoints = Checkpoints(
        config.checkpoint_interval, keep=settings.keep_checkpoints, save_best=settings.save_best
    )
    return [*chosen, checkpoints, Progress(ProgressDisplay(quiet=quiet), config.total_timesteps)]


def restore(trainer: Trainer, run: Run, saved: dict[str, Any]) -> None:
    """Put a run back to where its checkpoint was written."""
    trainer.load_state_dict(saved)
    run.results = dict(saved["results"])
    for callback in run.callbacks:
        state = saved["callbacks"].get(type(callback).__name__)
        if state is not None:
            callback.load_state_dict(state)


def conduct(trainer: Trainer, run: Run) -> TrainResult:
    """Train, close in order whatever happens, and write down the result."""
    started = time.time()

    def stop(number: int) -> None:
        run.signal = number
        run.request_stop(f"signal {number}")

    try:
        with orderly_stop(stop):
            train_or_save(trainer, run)
        run.emit("on_train_end")
    finally:
        trainer.close()
        for callback in run.callbacks:
            callback.close(run)
    metrics = final_metrics(run, started)
    write_summary(run.run_dir, summary(run, metrics, started))
    plot_learning_curve(run.run_dir)
    return TrainResult(run.run_dir, run.checkpoint_path, metrics)


def train_or_save(trainer: Trainer, run: Run) -> None:
    """An environment that raises ends the run with everything up to that step saved."""
    try:
        trainer.train()
    except EnvironmentProblem as problem:
        saver = next(callback for callback in run.callbacks if isinstance(callback, Checkpoints))
        path = saver.save(run)
        raise RunFailed(f"step {run.global_step}: {problem}; saved {path}") from problem


def final_metrics(run: Run, started: float) -> dict[str, Any]:
    counters = run.trainer.counters
    return {
        **(run.update_metrics() if counters.gradient_steps else {}),
        **run.results,
        "global_step": counters.global_step,
        "gradient_steps": counters.gradient_steps,
        "env_steps": counters.env_steps,
        "stop_reason": run.stop_reason or "finished",
        "signal": run.signal,
        "wall_time_seconds": time.time() - started,
    }


def summary(run: Run, metrics: dict[str, Any], started: float) -> dict[str, Any]:
    described = summarize_run(
        run.config.model_dump(mode="json"),
        metrics,
        stop_reason=metrics["stop_reason"],
        started_at=started,
        finished_at=time.time(),
    )
    checkpoint = None if run.checkpoint_path is None else run.checkpoint_path.name
    return {**described, "checkpoint": checkpoint, "dataset": run.extra_state["dataset"]}


def update_budget(settings: Any, rows: int | None) -> int | None:
    """The smaller of `max_updates` and `max_epochs` passes over the data."""
    limits = [settings.max_updates]
    if settings.max_epochs is not None and rows is not None:
        limits.append(settings.max_epochs * math.ceil(rows / settings.batch_size))
    given = [limit for limit in limits if limit is not None]
    return min(given) if given else None


def run_name(config: TrainConfig) -> str:
    return f"{config.algo}-{config.env_id or 'data'}-s{config.seed}"
