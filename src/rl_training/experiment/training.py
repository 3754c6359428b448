"""A recipe ties an algorithm to its model, settings and phases; all else about a run is here, once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import torch

from rl_training.algorithms.learner import Learner
from rl_training.algorithms.stacking import stack_learners
from rl_training.config import ConfigModel
from rl_training.core.config_files import config_to_yaml
from rl_training.core.spaces import Spaces
from rl_training.core.streams import RandomStream, torch_generator
from rl_training.core.train_config import TrainConfig
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.experiment.execution import combine, conduct
from rl_training.experiment.logging import MetricsLogger
from rl_training.experiment.metrics_log import MetricsLog, Progress
from rl_training.experiment.runs import create_run_dir, write_text_atomic
from rl_training.experiment.saving import Checkpoints
from rl_training.experiment.trackers import open_trackers
from rl_training.models.base import PolicyModel
from rl_training.runtime.callbacks.base import Callback
from rl_training.runtime.callbacks.evaluation import EarlyStopping, Evaluation
from rl_training.runtime.callbacks.schedule import LearningRateSchedule
from rl_training.runtime.compiling import apply_compile, choose_device
from rl_training.runtime.loop import Trainer
from rl_training.runtime.progress import ProgressDisplay
from rl_training.runtime.run import Run, TrainResult
from rl_training.runtime.sources.base import Material


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
    phases: Callable[[Sequence[TrainConfig], Any, type[Learner], TransitionDataset | None], Material]

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
        configs = seed_configs(config)
        material = self.phases(configs, settings, self.learner, dataset)
        device = choose_device(config.device)
        learners = [self.build_learner(settings, material.spaces, each.seed, device) for each in configs]
        learner = learners[0] if len(learners) == 1 else stack_learners(learners)
        saved = checkpoint_state or {}
        phases = material.phases(device, checkpoint_state)
        updates_left = sum(phase.steps * phase.updates_per_step for phase in phases)
        compiled = apply_compile(learner, settings.compile, updates_left, saved.get("compile"))
        notes = {
            "schedule_steps": saved.get("schedule_steps")
            or settings.schedule_steps
            or config.total_timesteps,
            "compile": compiled,
            "dataset": material.summary,
            "dataset_in_python": dataset is not None,
        }
        resumed_at = saved["counters"]["global_step"] if saved else None
        runs = []
        for index, each in enumerate(configs):
            directory = run_dir or create_run_dir(each.output_dir, run_name(each), run_suffix)
            write_text_atomic(directory / "config.yaml", config_to_yaml(each, resolved=True))
            standard = standard_callbacks(each, settings, directory, notes, resumed_at, quiet or index > 0)
            runs.append(Run(each, settings, directory, material, [*standard, *(callbacks or ())], notes))
        trainer = Trainer(
            learner,
            phases,
            runs,
            batch_size=settings.batch_size,
            batches=RandomStream(
                [torch_generator(each.seed, "batch", device=device) for each in configs], "unit64"
            ),
            update_budget=update_budget(settings, material.rows),
        )
        if saved:
            restore(trainer, runs[0], saved)
        return combine(conduct(trainer, runs))


def standard_callbacks(
    config: TrainConfig,
    settings: Any,
    run_dir: Path,
    notes: dict[str, Any],
    resumed_at: int | None,
    quiet: bool,
) -> list[Callback]:
    """Every cross-cutting concern of a run, in the order in which it sees a step."""
    trackers = open_trackers(config.trackers, run_dir, config.to_dict())
    logger = MetricsLogger(run_dir, resume_from_step=resumed_at, trackers=trackers)
    chosen: list[Callback] = [MetricsLog(logger, config.log_interval), Evaluation(settings.eval_interval)]
    if settings.learning_rate_schedule != "constant" or settings.warmup_steps:
        chosen.insert(0, LearningRateSchedule(notes["schedule_steps"]))
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


def seed_configs(config: TrainConfig) -> list[TrainConfig]:
    """One ordinary config per seed of a stack."""
    if config.seeds is None:
        return [config]
    return [config.model_copy(update={"seed": seed, "seeds": None}) for seed in config.seeds]


def update_budget(settings: Any, rows: int | None) -> int | None:
    """The smaller of `max_updates` and `max_epochs` passes over the data."""
    limits = [settings.max_updates]
    if settings.max_epochs is not None and rows is not None:
        limits.append(settings.max_epochs * math.ceil(rows / settings.batch_size))
    given = [limit for limit in limits if limit is not None]
    return min(given) if given else None


def run_name(config: TrainConfig) -> str:
    return f"{config.algo}-{config.env_id or 'data'}-s{config.seed}"
