"""A run as its callbacks see it, and what happens along it: each concern once, none of them known to the
loop.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from rl_training.algorithms.learner import Learner, UpdateResult, action_error, losses_on
from rl_training.algorithms.recipe import get_recipe
from rl_training.algorithms.stack import unstack_member
from rl_training.config.data import OfflineDataFields
from rl_training.config.run import ControlFields, EarlyStoppingConfig, RunFields, TrainConfig
from rl_training.core.errors import RunFailed
from rl_training.core.registry import ALGORITHMS
from rl_training.core.types import Facts, Numbers, State
from rl_training.core.version import library_versions
from rl_training.data.info import ReferenceReturns
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.prepare import PreparedDataset
from rl_training.data.reading import CHUNK_ROWS
from rl_training.policies.acting import ActingPolicy
from rl_training.policies.policy import Policy, pack_policy
from rl_training.runtime.collect import FinishedEpisode
from rl_training.runtime.envs import EnvLike
from rl_training.runtime.evaluate import EvalResult, OpenPlayers, evaluate_policy, open_players
from rl_training.runtime.loop import Trainer


class Callback:
    """Override what you need; every hook does nothing here. `run.request_stop(reason)` ends the run."""

    def on_train_start(self, run: Run) -> None:
        """Before the first step, also after a resume."""

    def on_phase_start(self, run: Run) -> None:
        """Before the first step of a phase, `run.phase`."""

    def on_step_start(self, run: Run) -> None:
        """Before an update (offline) or a round of all environments (online)."""

    def on_update_end(self, run: Run, result: UpdateResult) -> None:
        """After every gradient update; reading `result.metrics` waits for the device."""

    def on_step_end(self, run: Run) -> None:
        """After a step and the updates that belong to it; the run's state is consistent here."""

    def on_eval_end(self, run: Run, metrics: Numbers, scheduled: bool) -> None:
        """After an evaluation; `scheduled` is false for the one that only closes a run."""

    def on_train_end(self, run: Run) -> None:
        """After the last step, before the closing evaluation."""

    def close(self, run: Run) -> None:
        """Always called once at the very end, also when the run failed."""

    def state_dict(self) -> State:
        """What must survive a resume."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """Restore what `state_dict` gave."""


class Interval:
    """Says once per `every` steps that it is time, also where a step jumps over the mark."""

    def __init__(self, every: int) -> None:
        self.every = every
        self.last = 0

    def start(self, step: int) -> None:
        self.last = step

    def due(self, step: int) -> bool:
        if not self.every or step // self.every == self.last // self.every:
            return False
        self.last = step
        return True


Evaluator = Callable[["Run"], Mapping[str, float | None]]
"""Numbers about a run's present policy, asked for whenever the run is evaluated."""


@dataclass(frozen=True, repr=False)
class TrainResult:
    """What a finished run leaves: its directory, its last checkpoint and its final numbers.

    Of several seeds trained together, `members` holds one result each; the rest speaks of the first seed,
    but for the evaluation return and the estimated value, which are means over seeds.
    """

    run_dir: Path
    checkpoint_path: Path | None
    metrics: State
    members: tuple[TrainResult, ...] = ()

    def __repr__(self) -> str:
        """A line for each thing that is known: a notebook shows a result so."""
        facts = {"run_dir": self.run_dir, "checkpoint_path": self.checkpoint_path, **self.metrics}
        told = [
            f"  {name}: {f'{value:.6g}' if isinstance(value, float) else value}"
            for name, value in facts.items()
            if value is not None
        ]
        told += [f"  member: {member.run_dir}" for member in self.members]
        return "\n".join([type(self).__name__, *told])


@dataclass(frozen=True)
class RunNotes:
    """Facts about a run that its checkpoints carry and its callbacks may read."""

    schedule_steps: int
    compiled: bool
    processor: str = ""
    """What rounding depends on, beside the versions of libraries"""
    dataset: Facts = field(default_factory=dict)
    in_python: tuple[str, ...] = ()
    """What was given as an object and must be given again to go on: dataset, env, wrappers"""
    online_span: int = 0
    """Online steps over which what fades in the online phase does so"""
    parent: Facts | None = None
    """The run that was fine-tuned into this one: its directory, checkpoint and step"""

    def to_dict(self) -> State:
        return {
            "schedule_steps": self.schedule_steps,
            "compile": self.compiled,
            "processor": self.processor,
            "dataset": dict(self.dataset),
            "in_python": list(self.in_python),
            "online_span": self.online_span,
            "parent": None if self.parent is None else dict(self.parent),
        }


class Run:
    """State of one seed. Seeds trained as a stack share the trainer and its learner, nothing else."""

    def __init__(
        self,
        config: TrainConfig,
        settings: ControlFields,
        run_dir: Path,
        callbacks: Sequence[Callback],
        notes: RunNotes,
        *,
        env: EnvLike | None = None,
        reference: ReferenceReturns | None = None,
        evaluators: Sequence[Evaluator] = (),
    ) -> None:
        self.config, self.settings, self.run_dir = config, settings, run_dir
        self.callbacks, self.notes = list(callbacks), notes
        self.env, self.reference, self.evaluators = env, reference, list(evaluators)
        self.trainer: Trainer[Run]
        self.member: int | None = None
        self.stop_reason: str | None = None
        self.signal: int | None = None
        self.checkpoint_path: Path | None = None
        self.results: Numbers = {}
        self.logged: dict[str, float] = {}
        self.outcome: State | None = None
        self.failure: RunFailed | None = None

    def follow(self, trainer: Trainer[Run], member: int | None) -> None:
        """Belong to a trainer, as one of its stack of seeds or alone."""
        self.trainer, self.member = trainer, member

    @property
    def global_step(self) -> int:
        return self.trainer.counters.global_step

    @property
    def gradient_steps(self) -> int:
        return self.trainer.counters.gradient_steps

    @property
    def phase(self) -> str:
        """Name of the present phase: offline, warm-up or online."""
        return self.trainer.phase.name

    @property
    def learner(self) -> Learner:
        """This seed's learner; out of a stack, a copy of the present moment."""
        if self.member is None:
            return self.trainer.learner
        return unstack_member(self.trainer.learner, self.member)

    @property
    def policy(self) -> Policy:
        """The policy as it is now; training on does not change it."""
        return self.trainer.learner.policy.snapshot(self.member)

    def update_metrics(self) -> dict[str, float]:
        """Metrics of the last update as floats: this waits for the device, so it is asked for rarely."""
        tensors = self.trainer.learner.last_metrics
        member = self.member
        return {name: float(value if member is None else value[member]) for name, value in tensors.items()}

    def log(self, name: str, value: float) -> None:
        """A number of your own: it goes with the next row of training metrics to every tracker."""
        self.logged[name] = float(value)

    def request_stop(self, reason: str) -> None:
        """End this run after the present step; the first reason counts."""
        self.stop_reason = self.stop_reason or reason

    def finish(self) -> None:
        """Save, evaluate a last time, and note the final numbers; training of this seed is over."""
        self.emit("on_train_end")
        counters = self.trainer.counters
        self.outcome = {
            **(self.update_metrics() if counters.gradient_steps else {}),
            **self.results,
            "data_return_mean": self.notes.dataset.get("return_mean"),
            "global_step": counters.global_step,
            "gradient_steps": counters.gradient_steps,
            "env_steps": counters.env_steps,
            "stop_reason": self.stop_reason or "finished",
            "signal": self.signal,
        }

    def emit(self, hook: str, *arguments: object) -> None:
        for callback in self.callbacks:
            getattr(callback, hook)(self, *arguments)

    @property
    def interrupted(self) -> bool:
        """Stopped by Ctrl-C or SIGTERM: whatever takes long is left out."""
        return self.signal is not None

    def take_episodes(self) -> list[FinishedEpisode]:
        """Training episodes finished since the last call."""
        return self.trainer.take_episodes(self.member)

    @property
    def can_evaluate(self) -> bool:
        return self.env is not None and self.config.eval_episodes > 0

    def evaluate(self, num_episodes: int | None = None) -> EvalResult:
        """Episodes in environments and with seeds of their own: training randomness is not touched."""
        assert self.env is not None
        return evaluate_run_policy(self.policy, self.env, self.config, self.settings, num_episodes)

    def state_dict(self, *, with_replay: bool) -> State:
        """The whole run, ready for `save_checkpoint`."""
        return {
            "algo": self.config.algo,
            "algo_class": get_recipe(self.config.algo).class_name,
            "algo_package": ALGORITHMS.package_of(self.config.algo),
            "config": self.config.to_dict(),
            "policy": pack_policy(self.trainer.learner.policy, self.member),
            "reference": None if self.reference is None else self.reference.to_dict(),
            "callbacks": {key: saved for key, each in self.named_callbacks() if (saved := each.state_dict())},
            "versions": library_versions(),
            "results": {
                name: value
                for name, value in self.results.items()
                if value is None or isinstance(value, (bool, int, float, str))
            },
            **self.notes.to_dict(),
            **self.trainer.state_dict(self.member, with_replay=with_replay),
        }

    def named_callbacks(self) -> list[tuple[str, Callback]]:
        """Each callback with a name of its own: its class, and its number among those of the class."""
        seen: Counter[str] = Counter()
        named = []
        for callback in self.callbacks:
            kind = type(callback).__name__
            named.append((f"{kind}.{seen[kind]}", callback))
            seen[kind] += 1
        return named


def evaluate_run_policy(
    policy: ActingPolicy,
    env: EnvLike,
    config: RunFields,
    settings: ControlFields,
    num_episodes: int | None = None,
    players: OpenPlayers = open_players,
) -> EvalResult:
    """The one way a run's policy is evaluated, while it trains and from its checkpoint."""
    return evaluate_policy(
        policy,
        env,
        config.env_kwargs,
        config.eval_episodes if num_episodes is None else num_episodes,
        config.seed if settings.eval_seed is None else settings.eval_seed,
        deterministic=settings.eval_deterministic,
        open_players=players,
        costs=settings.costs if isinstance(settings, OfflineDataFields) else None,
    )


NO_EVALUATION: Numbers = {"eval_return_mean": None, "eval_return_std": None, "eval_episodes": 0}


def eval_metrics(result: EvalResult, reference: ReferenceReturns | None, settings: ControlFields) -> Numbers:
    """The numbers reported of an evaluation; a normalised score where its reference is known, and costs."""
    limits = settings.stated_limits if isinstance(settings, OfflineDataFields) else ()
    score = {} if reference is None else reference.score_metrics(result.return_mean)
    return score | {
        "eval_return_mean": result.return_mean,
        "eval_return_std": result.return_std,
        "eval_episodes": len(result.returns),
        "eval_length_mean": float(result.lengths.mean()),
        **result.cost_metrics(limits),
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
        metrics = eval_metrics(run.evaluate(), run.reference, run.settings) if run.can_evaluate else {}
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


def rate_scale(schedule: str, step: int, *, warmup_steps: int, schedule_steps: int) -> float:
    """Factor on the base rate: a rise over the warm-up, then the schedule, constant past its end."""
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    if schedule == "constant":
        return 1.0
    done = min(1.0, (step - warmup_steps) / max(1, schedule_steps - warmup_steps))
    return 1.0 - done if schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))


class LearningRateSchedule(Callback):
    """Sets the learning rates before every step: a pure function of it, so there is nothing to save.

    `schedule_steps` is that of the first run.
    """

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


MOST_BATCHES = 32
"""Batches of one measurement, spread evenly over the held-out rows, so that it costs little."""


class HeldOut:
    """An evaluator, on rows that are not learned from: losses, and how far actions are from the logged ones.

    `validation_constant_error` is the error of always giving the mean action of the training rows, which a
    policy that has learned anything about states is below.
    """

    def __init__(self, rows: TransitionDataset, learned: TransitionDataset, batch_size: int) -> None:
        self.rows, self.batch_size = rows, min(batch_size, len(rows))
        mean = mean_action(learned)
        total = sum(float((actions - mean).square().sum()) for actions in unit_actions(rows))
        self.constant_error = total / (len(rows) * len(mean))

    def __call__(self, run: Run) -> Mapping[str, float | None]:
        learner = run.learner
        sums: dict[str, Tensor] = {}
        count = 0
        for batch in self.batches(learner.device):
            found = {**losses_on(learner, batch), "action_error": action_error(learner, batch)}
            sums = {name: value + sums.get(name, 0.0) for name, value in found.items()}
            count += 1
        means: dict[str, float | None] = {
            f"validation_{name}": float(value) / count for name, value in sums.items()
        }
        return means | {"validation_constant_error": self.constant_error}

    def batches(self, device: torch.device) -> Iterator[dict[str, Tensor]]:
        """Equal batches of rows: the same ones in every measurement."""
        count = min(MOST_BATCHES, len(self.rows) // self.batch_size)
        chosen = torch.linspace(0, len(self.rows) - 1, count * self.batch_size, dtype=torch.float64).long()
        # rows far apart in one batch, as in training
        for rows in chosen.reshape(self.batch_size, count).T:
            batch = self.rows.store.gather(rows.contiguous())
            yield {name: values.to(device) for name, values in batch.items()}


def held_out_evaluators(prepared: PreparedDataset, batch_size: int) -> tuple[Evaluator, ...]:
    """What a run measures beside its evaluation in an environment: nothing, if no episode was held out."""
    if prepared.validation is None:
        return ()
    return (HeldOut(prepared.validation, prepared.dataset, batch_size),)


def mean_action(dataset: TransitionDataset) -> Tensor:
    """The action that is closest to those of all rows."""
    total = sum(actions.sum(dim=0) for actions in unit_actions(dataset))
    return torch.as_tensor(total) / len(dataset)


def unit_actions(dataset: TransitionDataset) -> Iterator[Tensor]:
    """Actions as batches hold them, a few rows at a time, in double precision."""
    transform = dataset.store.on_gather.get("actions")
    for chunk in dataset.store.chunks("actions", CHUNK_ROWS):
        yield (chunk if transform is None else transform.apply(chunk)).double()
