"""The callbacks that every run has."""

from __future__ import annotations

from pathlib import Path

from rl_training.core.train_config import TrainConfig
from rl_training.experiment.logging import MetricsLogger
from rl_training.experiment.metrics_log import MetricsLog, Progress
from rl_training.experiment.plans import Plan
from rl_training.experiment.saving import Checkpoints
from rl_training.experiment.self_judging import Bench, SelfJudging
from rl_training.experiment.trackers import open_trackers
from rl_training.runtime.callbacks.base import Callback
from rl_training.runtime.callbacks.evaluation import EarlyStopping, Evaluation
from rl_training.runtime.callbacks.schedule import LearningRateSchedule
from rl_training.runtime.progress import ProgressDisplay
from rl_training.runtime.run import RunNotes


def standard_callbacks(
    plan: Plan, config: TrainConfig, run_dir: Path, notes: RunNotes, bench: Bench | None, *, quiet: bool
) -> list[Callback]:
    """Every cross-cutting concern of a run, in the order in which it sees a step."""
    settings = plan.settings
    resumed_at = None if plan.saved is None else plan.saved["counters"]["global_step"]
    trackers = open_trackers(config.trackers, run_dir, config.to_dict())
    trackers += list(plan.options.get("trackers") or ())
    logger = MetricsLogger(run_dir, resume_from_step=resumed_at, trackers=trackers)
    chosen: list[Callback] = [MetricsLog(logger, config.log_interval), Evaluation(settings.eval_interval)]
    if settings.learning_rate_schedule != "constant" or settings.warmup_steps:
        chosen.insert(0, LearningRateSchedule(notes.schedule_steps))
    if settings.early_stopping is not None:
        chosen.append(EarlyStopping(settings.early_stopping))
    checkpoints = Checkpoints(
        config.checkpoint_interval, keep=settings.keep_checkpoints, save_best=settings.save_best
    )
    total = config.total_timesteps + config.online_timesteps
    progress = Progress(ProgressDisplay(quiet=quiet), total)
    judging = [] if bench is None else [SelfJudging(bench, checkpoints, progress)]
    return [*chosen, checkpoints, *judging, progress]
