"""One run as its callbacks see it: a seed, a directory, counters, results, and a way to stop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rl_training.algorithms.learner import Learner
from rl_training.algorithms.recipe import get_recipe
from rl_training.algorithms.stacking import unstack_member
from rl_training.config.run_fields import ControlFields
from rl_training.core.algorithms import ALGORITHMS
from rl_training.core.errors import RunFailed
from rl_training.core.plain import Facts, Numbers, State
from rl_training.core.train_config import RunFields, TrainConfig
from rl_training.core.version import library_versions
from rl_training.data.data_info import ReferenceReturns
from rl_training.policies.packing import pack_policy
from rl_training.policies.policy import Policy
from rl_training.runtime.collector import FinishedEpisode
from rl_training.runtime.environments import EnvLike
from rl_training.runtime.evaluation import ActingPolicy, EvalResult, evaluate_policy

if TYPE_CHECKING:
    from rl_training.runtime.callbacks.base import Callback
    from rl_training.runtime.loop import Trainer

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
            "results": {name: value for name, value in self.results.items() if is_plain(value)},
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
) -> EvalResult:
    """The one way a run's policy is evaluated, while it trains and from its checkpoint."""
    return evaluate_policy(
        policy,
        env,
        config.env_kwargs,
        config.eval_episodes if num_episodes is None else num_episodes,
        config.seed if settings.eval_seed is None else settings.eval_seed,
        deterministic=settings.eval_deterministic,
    )


def is_plain(value: object) -> bool:
    return value is None or isinstance(value, (bool, int, float, str))
