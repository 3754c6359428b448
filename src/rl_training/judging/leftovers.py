"""What a model of the dynamics leaves unexplained of held-out episodes, and what else could be said of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from rl_training.algorithms.dynamics import Dynamics
from rl_training.core.streams import derive_seed
from rl_training.data.episodes import BoolArray, IntArray
from rl_training.judging.log import Float64Array, JudgedLog

SURE = 3.0
"""Standard errors over episodes."""

FEWEST = 8
"""Rows of an episode that is looked at, and episodes that have to be."""

PAST = 3
"""Rows back that the past is looked for in."""

RIDGE = 5.0
"""Rows' worth of doubt in every coefficient."""

ROWS = 20_000
WAVES = 250
_CHUNK = 4096


@dataclass(frozen=True)
class Unexplained:
    """What the model leaves of logged changes and rewards, by networks that have not seen the episode.

    In units of the spread of each change; the last column is the reward.
    """

    residuals: Float64Array
    """`[rows, O + 1]`"""
    inputs: Float64Array
    """scaled states and actions, `[rows, O + A]`"""
    episodes: IntArray
    steps: IntArray
    rows: IntArray
    """which rows of the log these are"""


@dataclass(frozen=True)
class Found:
    """What else could be said of a column's leftovers: a share of all its variance, and of the leftovers."""

    share: float
    of_the_rest: float
    errors: float
    """by how many standard errors over episodes it is above nothing"""

    def exceeds(self, share: float, of_the_rest: float) -> bool:
        return self.share > share and self.of_the_rest > of_the_rest and self.errors > SURE


@torch.no_grad()
def unexplained(dynamics: Dynamics, log: JudgedLog) -> Unexplained:
    """Held-out residuals of whole episodes, of as many as make about `ROWS` rows."""
    count = np.searchsorted(np.cumsum(log.lengths), ROWS) + 1
    rows = np.flatnonzero(log.numbers < count)
    rewards = torch.from_numpy(log.reward_scale.rewards(log.rewards))
    parts, known = [], []
    for start in range(0, len(rows), _CHUNK):
        part = torch.from_numpy(rows[start : start + _CHUNK])
        obs, actions, after, episodes = (
            log.columns[name][part] for name in ("obs", "actions", "next_obs", "episodes")
        )
        mean, _ = dynamics.dynamics(obs.unsqueeze(0), actions.unsqueeze(0))
        unseen = (dynamics.row_weights(episodes) == 0).unsqueeze(-1)
        change = dynamics.dynamics.change_of(obs, after, rewards[part])
        parts.append(change.reshape(len(part), -1) - (mean * unseen).sum(0) / unseen.sum(0))
        known.append(unseen.any(0).squeeze(-1))
    kept = torch.cat(known).numpy()
    chosen = rows[kept]
    both = [log.columns[name].numpy()[chosen] for name in ("obs", "actions")]
    inputs = np.concatenate(both, axis=1).astype(np.float64)
    residuals, episodes = torch.cat(parts).double().numpy()[kept], log.numbers[chosen]
    return Unexplained(
        less_what_shows(residuals, inputs, episodes), inputs, episodes, log.steps[chosen], chosen
    )


def less_what_shows(residuals: Float64Array, inputs: Float64Array, episodes: IntArray) -> Float64Array:
    """What is left when leftovers of other episodes at like observations and actions are taken away.

    A rough model errs alike wherever a step is alike, so that its errors have a memory too. Ridge on random
    waves (Rahimi and Recht 2007), fitted on one half of the episodes for the other.
    """
    draws = np.random.default_rng(derive_seed(0, "judge", "hidden"))
    width = inputs.shape[1]
    left = residuals.copy()
    for reach in (1.0, 2.0):
        waves = np.cos(
            inputs @ draws.normal(size=(width, WAVES)) / (reach * width**0.5)
            + 2 * np.pi * draws.random(WAVES)
        )
        design = np.concatenate([np.ones((len(inputs), 1)), inputs, waves], axis=1)
        side, guess = episodes % 2 == 0, np.zeros_like(left)
        for fitted in (side, ~side):
            if fitted.any():
                guess[~fitted] = design[~fitted] @ ridge(design[fitted], left[fitted])
        better = ((left - guess) ** 2).sum(0) < (left**2).sum(0)
        left -= guess * better
    return left


def from_the_first_half(left: Unexplained) -> list[Found]:
    """What the first half of an episode says of the leftovers of its second half, column by column.

    A level of its own, and slopes of its own in states and actions: plants that differ answer otherwise.
    """
    gains, wholes = [], []
    for rows in episodes_of(left.episodes):
        if len(rows) < FEWEST:
            continue
        design = np.concatenate([np.ones((len(rows), 1)), left.inputs[rows]], axis=1)
        half, target = len(rows) // 2, left.residuals[rows]
        guess = design[half:] @ ridge(design[:half], target[:half])
        gains.append((target[half:] ** 2 - (target[half:] - guess) ** 2).sum(0))
        wholes.append(np.concatenate([[len(rows) - half], (target[half:] ** 2).sum(0)]))
    return gathered(gains, wholes, left.residuals.shape[1])


def from_the_past(left: Unexplained) -> list[Found]:
    """What earlier rows say of a row's leftovers: fitted on one half of the episodes, asked of the other."""
    whole = left.steps >= PAST
    rows = np.flatnonzero(whole)
    rows = rows[rows >= PAST]
    rows = rows[left.episodes[rows] == left.episodes[rows - PAST]]
    past = [left.residuals[rows - back] for back in range(1, PAST + 1)]
    past += [left.inputs[rows - back] for back in range(1, PAST + 1)]
    inputs, target, episodes = left.inputs[rows], left.residuals[rows], left.episodes[rows]
    return added_by(np.concatenate(past, axis=1), inputs, target, episodes, episodes % 2 == 0)


def added_by(
    more: Float64Array, inputs: Float64Array, target: Float64Array, episodes: IntArray, side: BoolArray
) -> list[Found]:
    """What `more` numbers beside a row's states and actions say of a target, fitted on one `side` of the
    episodes and asked of the other.

    What states and actions say by themselves is the model's business: only what the others add counts.
    """
    design = np.concatenate([np.ones((len(inputs), 1)), inputs, more], axis=1)
    guess, base, width = np.zeros_like(target), np.zeros_like(target), 1 + inputs.shape[1]
    for fitted in (side, ~side):
        guess[~fitted] = design[~fitted] @ ridge(design[fitted], target[fitted])
        base[~fitted] = design[~fitted, :width] @ ridge(design[fitted, :width], target[fitted])
    before, after = (target - base) ** 2, (target - guess) ** 2
    gains, wholes = [], []
    for part in episodes_of(episodes):
        gains.append((before[part] - after[part]).sum(0))
        wholes.append(np.concatenate([[len(part)], before[part].sum(0)]))
    return gathered(gains, wholes, target.shape[1])


def episodes_of(numbers: IntArray) -> list[IntArray]:
    """Rows of every episode; rows of one lie together."""
    borders = np.flatnonzero(np.diff(numbers)) + 1
    return [rows for rows in np.split(np.arange(len(numbers)), borders) if len(rows)]


def ridge(design: Float64Array, target: Float64Array) -> Float64Array:
    width = design.shape[1]
    products = design.T @ design + RIDGE * np.eye(width)
    return np.asarray(np.linalg.solve(products, design.T @ target), dtype=np.float64)


def gathered(gains: list[Float64Array], wholes: list[Float64Array], columns: int) -> list[Found]:
    """Gains of episodes put together; `wholes` are their rows and what there was to explain."""
    if len(gains) < FEWEST:
        return [Found(0.0, 0.0, 0.0)] * columns
    each, whole = np.stack(gains), np.stack(wholes)
    rows, rest = whole[:, 0].sum(), whole[:, 1:].sum(0)
    spread = each.std(axis=0, ddof=1) / len(each) ** 0.5
    errors = each.mean(0) / np.maximum(spread, 1e-12)
    total = each.sum(0)
    return [
        Found(float(total[i] / rows), float(total[i] / max(rest[i], 1e-12)), float(errors[i]))
        for i in range(columns)
    ]
