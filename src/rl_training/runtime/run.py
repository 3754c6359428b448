"""One run as its callbacks see it: a seed, a directory, counters, results, and a way to stop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rl_training.algorithms.learner import Learner
from rl_training.algorithms.stacking import unstack_member
from rl_training.core.errors import RunFailed
from rl_training.core.registry import get_algorithm_spec
from rl_training.core.spaces import Spaces
from rl_training.core.train_config import TrainConfig
from rl_training.core.transforms import ObservationNormalizer
from rl_training.data.data_info import ReferenceReturns
from rl_training.experiment.runs import library_versions
from rl_training.policies.policy import Policy
from rl_training.runtime.collector import FinishedEpisode
from rl_training.runtime.evaluation import EvalResult, evaluate_policy

if TYPE_CHECKING:
    from rl_training.runtime.callbacks.base import Callback
    from rl_training.runtime.loop import Trainer


@dataclass(frozen=True)
class TrainResult:
    """What a finished run leaves: its directory, its last checkpoint and its final numbers.

    Of several seeds trained together, `members` holds one result each; the rest speaks of the first seed,
    but for the evaluation return, which is the mean over seeds.
    """

    run_dir: Path
    checkpoint_path: Path | None
    metrics: dict[str, Any]
    members: tuple[TrainResult, ...] = ()


class Acting(Protocol):
    """What is needed to act and to be judged: spaces, scaling, reference returns."""

    spaces: Spaces
    normalizer: ObservationNormalizer | None
    reference: ReferenceReturns | None


class Run:
    """State of one seed. Seeds trained as a stack share the trainer and its learner, nothing else."""

    def __init__(
        self,
        config: TrainConfig,
        settings: Any,
        run_dir: Path,
        material: Acting,
        callbacks: Sequence[Callback],
        notes: dict[str, Any],
    ) -> None:
        self.config, self.settings, self.run_dir = config, settings, run_dir
        self.spaces, self.normalizer = material.spaces, material.normalizer
        self.reference = material.reference
        self.callbacks = list(callbacks)
        self.notes = notes
        self.trainer: Trainer
        self.member: int | None = None
        self.stop_reason: str | None = None
        self.signal: int | None = None
        self.checkpoint_path: Path | None = None
        self.results: dict[str, Any] = {}
        self.outcome: dict[str, Any] | None = None
        self.failure: RunFailed | None = None

    @property
    def global_step(self) -> int:
        return self.trainer.counters.global_step

    @property
    def gradient_steps(self) -> int:
        return self.trainer.counters.gradient_steps

    @property
    def learner(self) -> Learner:
        """This seed's learner; out of a stack, a copy of the present moment."""
        if self.member is None:
            return self.trainer.learner
        return unstack_member(self.trainer.learner, self.member)

    @property
    def policy(self) -> Policy:
        return Policy(self.learner, self.spaces, self.normalizer)

    def update_metrics(self) -> dict[str, float]:
        """Metrics of the last update as floats: this waits for the device, so it is asked for rarely."""
        tensors = self.trainer.learner.last_metrics
        member = self.member
        return {name: float(value if member is None else value[member]) for name, value in tensors.items()}

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
            "data_return_mean": self.notes["dataset"].get("return_mean"),
            "global_step": counters.global_step,
            "gradient_steps": counters.gradient_steps,
            "env_steps": counters.env_steps,
            "stop_reason": self.stop_reason or "finished",
            "signal": self.signal,
        }

    def emit(self, hook: str, *arguments: Any) -> None:
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
        return self.config.env_id is not None and self.config.eval_episodes > 0

    def evaluate(self, num_episodes: int | None = None) -> EvalResult:
        """Episodes in environments and with seeds of their own: training randomness is not touched."""
        return evaluate_run_policy(self.policy, self.config, self.settings, num_episodes)

    def state_dict(self, *, with_replay: bool) -> dict[str, Any]:
        """The whole run, ready for `save_checkpoint`."""
        return {
            "algo": self.config.algo,
            "algo_class": get_algorithm_spec(self.config.algo).class_name,
            "config": self.config.model_dump(mode="json"),
            "spaces": self.spaces.to_dict(),
            "normalizer": None if self.normalizer is None else self.normalizer.state_dict(),
            "reference": None if self.reference is None else self.reference.to_dict(),
            "callbacks": {type(c).__name__: state for c in self.callbacks if (state := c.state_dict())},
            "versions": library_versions(),
            "results": {name: value for name, value in self.results.items() if is_plain(value)},
            **self.notes,
            **self.trainer.state_dict(self.member, with_replay=with_replay),
        }


def evaluate_run_policy(
    policy: Policy, config: TrainConfig, settings: Any, num_episodes: int | None = None
) -> EvalResult:
    """The one way a run's policy is evaluated, while it trains and from its checkpoint."""
    assert config.env_id is not None
    return evaluate_policy(
        policy,
        config.env_id,
        config.env_kwargs,
        config.eval_episodes if num_episodes is None else num_episodes,
        config.seed if settings.eval_seed is None else settings.eval_seed,
        deterministic=settings.eval_deterministic,
    )


def is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, str))
