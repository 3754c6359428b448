"""One object for the whole life of an experiment: set up, train, resume, evaluate, predict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rl_training.config.run import TrainConfig
from rl_training.runs.evaluate import evaluate_checkpoint, predict_checkpoint
from rl_training.runs.resume import resume_training
from rl_training.runs.train import train
from rl_training.runtime.callbacks import Callback, TrainResult


@dataclass(frozen=True)
class PreparedRun:
    """A run that is ready to train."""

    config: TrainConfig
    callbacks: Sequence[Callback] | None = None
    quiet: bool = False

    def train(self) -> TrainResult:
        return train(self.config, callbacks=self.callbacks, quiet=self.quiet)


class DefaultExperimentManager:
    """Runs configs, and goes on with their checkpoints."""

    resume = staticmethod(resume_training)
    evaluate = staticmethod(evaluate_checkpoint)
    predict = staticmethod(predict_checkpoint)

    def setup(
        self, config: TrainConfig, callbacks: Sequence[Callback] | None = None, *, quiet: bool = False
    ) -> PreparedRun:
        return PreparedRun(config, callbacks, quiet)
