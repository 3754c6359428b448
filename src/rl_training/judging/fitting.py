"""The updates of a judge's networks: random rows, a falling learning rate, and word of how far it is."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rl_training.algorithms.learner import Learner
from rl_training.core.streams import RandomStream, derive_seed, torch_generator

LAST_RATE = 0.05
"""Share of the learning rate that is left at the end."""

RATE_STEPS = 100
"""How often the rate changes on the way."""

Told = Callable[[str, int, int], None]
"""(what is being fitted, updates done, updates in all)"""


def fit(
    learner: Learner,
    gather: Callable[[Tensor], dict[str, Tensor]],
    rows: int,
    *,
    name: str,
    updates: int,
    batch_size: int,
    seed: int,
    tell: Told,
    notice: Callable[[int], None] = lambda done: None,
) -> None:
    """Train `learner` on rows drawn with replacement; `notice` is called about `RATE_STEPS` times."""
    rows_drawn = RandomStream([torch_generator(seed, "judge", name)], "unit64")
    every = max(1, updates // RATE_STEPS)
    for done in range(updates):
        if done % every == 0:
            learner.set_learning_rate_scale(1.0 - (1.0 - LAST_RATE) * done / updates)
            tell(name, done, updates)
            notice(done)
        indices = (rows_drawn.next(batch_size) * rows).long()
        learner.update(gather(indices), global_step=done)
    tell(name, updates, updates)
    notice(updates)


def resample_weights(members: int, episodes: int, seed: int) -> Tensor:
    """How often each member sees each episode, `[members, episodes]`: a bootstrap over whole episodes."""
    generator = torch_generator(derive_seed(seed, "judge"), "resamples")
    drawn = torch.randint(episodes, (members, episodes), generator=generator)
    counts = torch.zeros(members, episodes)
    return counts.scatter_add_(1, drawn, torch.ones(members, episodes))
