"""What a learner makes of rows that it does not learn from: the losses of an update that is not made."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from rl_training.algorithms.learner import Batch, Learner, Losses
from rl_training.algorithms.noise import flat_size, unpack_noise
from rl_training.algorithms.optim import Adam
from rl_training.core.streams import RandomStream, torch_generator


def losses_on(learner: Learner, batch: Batch) -> Losses:
    """Every `…_loss` of a whole update on `[B, …]` tensors; nothing of the learner moves.

    The random numbers are the same in every call, so that two measurements differ by the networks alone.
    """
    shapes = learner.noise_shapes(batch["obs"].shape[-2])
    flat = {
        kind: RandomStream([torch_generator(0, "held out", kind, device=learner.device)], kind).next(count)
        for kind in ("normal", "uniform")
        if (count := flat_size(shapes, kind))
    }
    with at_rest(learner):
        metrics = learner.step(batch, unpack_noise(flat, shapes), "full")
    return {name: value for name, value in metrics.items() if name.endswith("_loss")}


def action_error(learner: Learner, batch: Batch) -> torch.Tensor:
    """Mean squared distance of the deterministic actions from the logged ones, in [-1, 1] units."""
    with torch.no_grad():
        actions = learner.model.actor.mode(batch["obs"])
    return (actions.clamp(-1.0, 1.0) - batch["actions"]).square().mean()


@contextmanager
def at_rest(learner: Learner) -> Iterator[None]:
    """Updates are computed, and nothing moves."""
    everything: list[Learner | Adam] = [learner, *learner.optimizers.values()]
    for each in everything:
        each.resting = True
    try:
        yield
    finally:
        for each in everything:
            each.resting = False
