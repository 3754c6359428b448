"""What a run that learned inside a model of the plant says of that model, by episodes that it never saw."""

from __future__ import annotations

from dataclasses import asdict

import torch

from rl_training.algorithms.dynamics import MOST_ROWS, ColumnErrors, ModelLearner, column_errors
from rl_training.core.transforms import RewardTransform
from rl_training.core.types import State
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.runtime.callbacks import Callback, Run


class ModelErrors(Callback):
    """Measures the model in the end, column by column."""

    def __init__(self, rows: TransitionDataset, rewards: RewardTransform) -> None:
        self.rows, self.rewards = rows, rewards

    def on_train_end(self, run: Run) -> None:
        learner = run.learner
        if run.interrupted or not isinstance(learner, ModelLearner):
            return
        told: State = {"model_errors": [asdict(each) for each in self.errors(learner)]}
        run.results |= told

    def errors(self, learner: ModelLearner) -> tuple[ColumnErrors, ...]:
        count = min(len(self.rows), MOST_ROWS)
        batch = self.rows.store.gather(torch.arange(count))
        width, info = learner.dynamics.obs_dim, self.rows.info
        nothing = torch.zeros(1, width)
        units = torch.ones(1, width)
        for step in reversed(learner.policy.observation_steps):
            nothing, units = step.undo(nothing), step.undo(units)
        names = [info.name_of("observation", index) for index in range(width)]
        return column_errors(
            learner.kept_dynamics,
            batch,
            torch.as_tensor(self.rows.episode_ends())[:count],
            [*names, "reward"],
            torch.cat([(units - nothing).flatten(), torch.tensor([1.0 / self.rewards.scale])]),
            learner=learner,
        )
