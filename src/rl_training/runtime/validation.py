"""Held-out episodes: how a run's losses and actions fare on rows that it does not learn from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from rl_training.algorithms.held_out import action_error, losses_on
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.processing import PreparedDataset
from rl_training.data.validation import CHUNK_ROWS
from rl_training.runtime.run import Evaluator, Run

MOST_BATCHES = 32
"""Batches of one measurement, spread evenly over the held-out rows, so that it costs little."""


class HeldOut:
    """An evaluator: the learner's losses, and how far its actions are from the logged ones.

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
