"""One object for the whole life of an experiment: set up, train, resume, evaluate, predict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt

from rl_training.core.registry import get_algorithm_spec
from rl_training.core.spaces import FloatArray
from rl_training.core.train_config import TrainConfig
from rl_training.experiment.workflows import resume_training
from rl_training.runtime.callbacks.base import Callback
from rl_training.runtime.run import TrainResult


@dataclass(frozen=True)
class PreparedRun:
    """A run that is ready to train."""

    config: TrainConfig
    callbacks: Sequence[Callback] | None
    quiet: bool = False

    def train(self) -> TrainResult:
        train = get_algorithm_spec(self.config.algo).train_fn
        result: TrainResult = train(self.config, callbacks=self.callbacks, quiet=self.quiet)
        return result


class DefaultExperimentManager:
    """Runs configs through the registry."""

    def setup(
        self, config: TrainConfig, callbacks: Sequence[Callback] | None = None, *, quiet: bool = False
    ) -> PreparedRun:
        return PreparedRun(config, callbacks, quiet)

    def resume(self, path: str | Path, **options: Any) -> TrainResult:
        """`resume_training` with the same options."""
        return resume_training(path, **options)

    def evaluate(self, path: str | Path, **options: Any) -> dict[str, Any]:
        metrics: dict[str, Any] = self._spec_of(path).evaluate_fn(path, **options)
        return metrics

    def predict(self, path: str | Path, obs: npt.ArrayLike, **options: Any) -> FloatArray:
        actions: FloatArray = self._spec_of(path).predict_fn(path, obs, **options)
        return actions

    @staticmethod
    def _spec_of(path: str | Path) -> Any:
        from rl_training.core.checkpoints import read_header

        return get_algorithm_spec(read_header(path)["algo"])
