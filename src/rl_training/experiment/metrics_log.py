"""Metrics on disk and on the screen."""

from __future__ import annotations

import time

from rl_training.core.plain import Numbers
from rl_training.experiment.logging import MetricsLogger
from rl_training.experiment.saving import refuse_broken_metrics
from rl_training.runtime.callbacks.base import Callback, Interval
from rl_training.runtime.loop import PHASE_NAMES
from rl_training.runtime.progress import ProgressDisplay
from rl_training.runtime.run import Run


class MetricsLog(Callback):
    """Writes update metrics every `log_interval` steps and every evaluation; stops a run that diverged."""

    def __init__(self, logger: MetricsLogger, log_interval: int) -> None:
        self.logger = logger
        self.interval = Interval(log_interval)
        self.started = (time.perf_counter(), 0)

    def on_train_start(self, run: Run) -> None:
        self.interval.start(run.global_step)
        self.started = (time.perf_counter(), run.gradient_steps)

    def on_step_end(self, run: Run) -> None:
        if self.interval.due(run.global_step):
            self.log(run)

    def on_train_end(self, run: Run) -> None:
        if self.interval.last != run.global_step:
            self.log(run)

    def on_eval_end(self, run: Run, metrics: Numbers, scheduled: bool) -> None:
        numbers = {name: value for name, value in metrics.items() if not isinstance(value, str)}
        self.logger.log(run.global_step, numbers | phase_number(run), "eval")

    def log(self, run: Run) -> None:
        self.interval.last = run.global_step
        episodes = run.take_episodes()
        if episodes:
            mean = sum(episode.ret for episode in episodes) / len(episodes)
            run.results["rollout_return_mean"] = mean
            rollout = {"rollout_return_mean": mean, "rollout_episodes": float(len(episodes))}
            self.logger.log(run.global_step, rollout | phase_number(run), "collect")
        if not run.gradient_steps:
            return
        metrics = run.update_metrics()
        clock, steps = self.started
        rate = (run.gradient_steps - steps) / max(1e-9, time.perf_counter() - clock)
        own, run.logged = run.logged, {}
        numbers = {**metrics, **own, "updates_per_second": rate, **phase_number(run)}
        self.logger.log(run.global_step, numbers, "train")
        refuse_broken_metrics(run, metrics)

    def close(self, run: Run) -> None:
        self.logger.close()


def phase_number(run: Run) -> dict[str, float]:
    """Which phase a row belongs to, in a run that has several: 0 offline, 1 warm-up, 2 online."""
    if len(run.trainer.phases) == 1:
        return {}
    return {"phase": float(PHASE_NAMES.index(run.phase))}


class Progress(Callback):
    """Tells the display how far the run is, a few times a second and after every evaluation."""

    def __init__(self, display: ProgressDisplay, total: int) -> None:
        self.display, self.total = display, total
        self.clock = 0.0
        self.shown = (0.0, 0)
        self.ended: float | None = None

    def on_train_start(self, run: Run) -> None:
        env = f" on {run.config.env_id}" if run.config.env_id else ""
        self.display.start(self.total, f"{run.config.algo}{env}", completed=run.global_step)
        self.shown = (time.perf_counter(), run.gradient_steps)

    def on_step_end(self, run: Run) -> None:
        now = time.perf_counter()
        if now - self.clock < 0.2:
            return
        self.clock = now
        self.show(run)

    def on_eval_end(self, run: Run, metrics: Numbers, scheduled: bool) -> None:
        self.show(run, evaluated=True)

    def on_train_end(self, run: Run) -> None:
        self.show(run)

    def show_stage(self, run: Run, name: str, done: int, total: int) -> None:
        """How far something is that is made when all steps are; its time is none of the updates'."""
        if self.ended is None:
            self.ended = time.perf_counter()
            self.show(run)
        self.display.stage(name, done, total)

    def show(self, run: Run, *, evaluated: bool = False) -> None:
        started, steps = self.shown
        rate = (run.gradient_steps - steps) / max(1e-9, (self.ended or time.perf_counter()) - started)
        last = run.results.get("eval_return_mean")
        if last is None:
            last = run.results.get("rollout_return_mean")
        self.display.update(
            run.global_step,
            updates_per_second=rate,
            last_return=last,
            losses=run.update_metrics if run.gradient_steps else dict,
            evaluated=evaluated,
        )

    def close(self, run: Run) -> None:
        self.display.stop()
