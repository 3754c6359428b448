"""Evaluation along the run, and the rule that may end it."""

from __future__ import annotations

from rl_training.config.run_fields import EarlyStoppingConfig
from rl_training.core.plain import Numbers, State
from rl_training.data.data_info import ReferenceReturns
from rl_training.runtime.callbacks.base import Callback, Interval
from rl_training.runtime.evaluation import EvalResult
from rl_training.runtime.run import Run

NO_EVALUATION: Numbers = {"eval_return_mean": None, "eval_return_std": None, "eval_episodes": 0}


def eval_metrics(result: EvalResult, reference: ReferenceReturns | None) -> Numbers:
    """The numbers reported of an evaluation; a normalised score where its reference is known."""
    score = {} if reference is None else reference.score_metrics(result.return_mean)
    return score | {
        "eval_return_mean": result.return_mean,
        "eval_return_std": result.return_std,
        "eval_episodes": len(result.returns),
        "eval_length_mean": float(result.lengths.mean()),
    }


class Evaluation(Callback):
    """Evaluates every `eval_interval` steps, and once more at the end where that step was not evaluated."""

    def __init__(self, eval_interval: int) -> None:
        self.interval = Interval(eval_interval)
        self.evaluated_step = -1
        self.scheduled_step = -1

    def on_train_start(self, run: Run) -> None:
        self.interval.start(run.global_step)
        run.results = {**NO_EVALUATION, **run.results}

    def on_phase_start(self, run: Run) -> None:
        first = run.trainer.phase.evaluate_first and self.scheduled_step != run.global_step
        if first and self.possible(run):
            self.evaluate(run, scheduled=True)

    def on_step_end(self, run: Run) -> None:
        if self.interval.due(run.global_step) and self.possible(run):
            self.evaluate(run, scheduled=True)

    def on_train_end(self, run: Run) -> None:
        if self.possible(run) and self.evaluated_step != run.global_step and not run.interrupted:
            self.evaluate(run, scheduled=False)

    def possible(self, run: Run) -> bool:
        return run.can_evaluate or bool(run.evaluators)

    def evaluate(self, run: Run, *, scheduled: bool) -> None:
        metrics = eval_metrics(run.evaluate(), run.reference) if run.can_evaluate else {}
        for evaluator in run.evaluators:
            metrics |= evaluator(run)
        self.evaluated_step = run.global_step
        if scheduled:
            self.scheduled_step = run.global_step
        run.results |= metrics
        run.emit("on_eval_end", metrics, scheduled)

    def state_dict(self) -> State:
        return {"evaluated_step": self.evaluated_step, "scheduled_step": self.scheduled_step}

    def load_state_dict(self, state: State) -> None:
        self.evaluated_step = state["evaluated_step"]
        self.scheduled_step = state.get("scheduled_step", -1)


class EarlyStopping(Callback):
    """Stops when the watched metric reached its target, or did not improve for `patience` evaluations."""

    def __init__(self, rule: EarlyStoppingConfig) -> None:
        self.rule = rule
        self.best: float | None = None
        self.waited = 0

    def on_eval_end(self, run: Run, metrics: Numbers, scheduled: bool) -> None:
        # Only scheduled ones count: a run that was stopped and resumed must decide as one that was not.
        value = metrics.get(self.rule.metric)
        if value is None or not scheduled:
            return
        sign = 1.0 if self.rule.mode == "max" else -1.0
        if self.rule.target is not None and sign * value >= sign * self.rule.target:
            run.request_stop(f"{self.rule.metric} reached {self.rule.target:g}")
        if self.best is None or sign * (value - self.best) > self.rule.min_delta:
            self.best, self.waited = value, 0
            return
        self.waited += 1
        if self.waited >= self.rule.patience:
            run.request_stop(f"{self.rule.metric} did not improve for {self.waited} evaluations")

    def state_dict(self) -> State:
        return {"best": self.best, "waited": self.waited}

    def load_state_dict(self, state: State) -> None:
        self.best, self.waited = state["best"], state["waited"]
