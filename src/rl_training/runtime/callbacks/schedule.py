"""Learning-rate schedules: a pure function of the step, so there is nothing to save but their length."""

from __future__ import annotations

import math

from rl_training.runtime.callbacks.base import Callback
from rl_training.runtime.run import Run


def rate_scale(schedule: str, step: int, *, warmup_steps: int, schedule_steps: int) -> float:
    """Factor on the base rate: a rise over the warm-up, then the schedule, constant past its end."""
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    if schedule == "constant":
        return 1.0
    done = min(1.0, (step - warmup_steps) / max(1, schedule_steps - warmup_steps))
    return 1.0 - done if schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))


class LearningRateSchedule(Callback):
    """Sets the learning rates before every step; `schedule_steps` is that of the first run."""

    def __init__(self, schedule_steps: int) -> None:
        self.schedule_steps = schedule_steps

    def on_step_start(self, run: Run) -> None:
        settings = run.settings
        if run.trainer.runs[0] is not run:
            return  # a stack of seeds shares its optimisers
        scale = rate_scale(
            settings.learning_rate_schedule,
            run.global_step,
            warmup_steps=settings.warmup_steps,
            schedule_steps=self.schedule_steps,
        )
        if run.trainer.phase.online_span:
            scale = 1.0  # the schedule ends with the offline phase
        run.trainer.learner.set_learning_rate_scale(scale, settings.schedule_groups)
