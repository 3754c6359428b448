"""Is something hidden? A log that lacks what its plant or its operators answer to is silently wrong.

Everything that learns from such a log agrees with itself, and is wrong together. It shows in what a model of
the dynamics leaves unexplained of held-out episodes: noise has no memory and is the same in every episode.
And it shows in episodes that end early at extremes without a mark.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from rl_training.algorithms.dynamics import Dynamics
from rl_training.core.streams import derive_seed
from rl_training.data.early_ends import early_ends
from rl_training.data.episodes import IntArray
from rl_training.judging.log import Float64Array, JudgedLog
from rl_training.judging.verdict import Check


@dataclass(frozen=True)
class Limits:
    """What has to be explained before anything is said.

    Shares of the variance of changes (or rewards), and of what the model leaves of it: a model that is merely
    rough does not reach these.
    """

    share: float
    of_the_rest: float
    grave_share: float
    grave_of_the_rest: float
    """from here on a judgement is refused"""


BETWEEN_EPISODES = Limits(0.02, 0.1, 0.05, 0.1)
FROM_THE_PAST = Limits(0.05, 0.5, 0.1, 0.7)
"""Where contacts or bends make a model err, errors of a row before tell a part of the next."""

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

NameOf = Callable[[str, int], str]


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
    return Unexplained(less_what_shows(residuals, inputs, episodes), inputs, episodes, log.steps[chosen])


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
                guess[~fitted] = design[~fitted] @ _ridge(design[fitted], left[fitted])
        better = ((left - guess) ** 2).sum(0) < (left**2).sum(0)
        left -= guess * better
    return left


def is_something_hidden(log: JudgedLog, dynamics: Dynamics, name_of: NameOf) -> dict[str, Check]:
    """Whether episodes differ, and whether the past matters, beyond what observations and actions say."""
    left = unexplained(dynamics, log)

    def name(column: int) -> str:
        return "the reward" if column == left.residuals.shape[1] - 1 else name_of("observation", column)

    return {
        "episodes_alike": told_apart(from_the_first_half(left), name),
        "memory": told_past(from_the_past(left), name),
    }


def from_the_first_half(left: Unexplained) -> list[Found]:
    """What the first half of an episode says of the leftovers of its second half, column by column.

    A level of its own, and slopes of its own in states and actions: plants that differ answer otherwise.
    """
    gains, wholes = [], []
    for rows in _episodes(left.episodes):
        if len(rows) < FEWEST:
            continue
        design = np.concatenate([np.ones((len(rows), 1)), left.inputs[rows]], axis=1)
        half, target = len(rows) // 2, left.residuals[rows]
        guess = design[half:] @ _ridge(design[:half], target[:half])
        gains.append((target[half:] ** 2 - (target[half:] - guess) ** 2).sum(0))
        wholes.append(np.concatenate([[len(rows) - half], (target[half:] ** 2).sum(0)]))
    return _found(gains, wholes, left.residuals.shape[1])


def from_the_past(left: Unexplained) -> list[Found]:
    """What earlier rows say of a row's leftovers: fitted on one half of the episodes, asked of the other."""
    whole = left.steps >= PAST
    rows = np.flatnonzero(whole)
    rows = rows[rows >= PAST]
    rows = rows[left.episodes[rows] == left.episodes[rows - PAST]]
    past = [left.residuals[rows - back] for back in range(1, PAST + 1)]
    past += [left.inputs[rows - back] for back in range(1, PAST + 1)]
    design = np.concatenate([np.ones((len(rows), 1)), left.inputs[rows], *past], axis=1)
    target, side = left.residuals[rows], left.episodes[rows] % 2 == 0
    guess = np.zeros_like(target)
    # What the present row says by itself is the model's business: only what the past adds counts.
    base, width = np.zeros_like(target), 1 + left.inputs.shape[1]
    for fitted in (side, ~side):
        guess[~fitted] = design[~fitted] @ _ridge(design[fitted], target[fitted])
        base[~fitted] = design[~fitted, :width] @ _ridge(design[fitted, :width], target[fitted])
    before, after = (target - base) ** 2, (target - guess) ** 2
    gains, wholes = [], []
    for part in _episodes(left.episodes[rows]):
        gains.append((before[part] - after[part]).sum(0))
        wholes.append(np.concatenate([[len(part)], before[part].sum(0)]))
    return _found(gains, wholes, left.residuals.shape[1])


def _episodes(numbers: IntArray) -> list[IntArray]:
    """Rows of every episode; rows of one lie together."""
    borders = np.flatnonzero(np.diff(numbers)) + 1
    return [rows for rows in np.split(np.arange(len(numbers)), borders) if len(rows)]


def _ridge(design: Float64Array, target: Float64Array) -> Float64Array:
    width = design.shape[1]
    products = design.T @ design + RIDGE * np.eye(width)
    return np.asarray(np.linalg.solve(products, design.T @ target), dtype=np.float64)


def _found(gains: list[Float64Array], wholes: list[Float64Array], columns: int) -> list[Found]:
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


def told_apart(found: list[Found], name: Callable[[int], str]) -> Check:
    """Whether episodes differ by more than observations and actions say."""
    return _told(
        found,
        BETWEEN_EPISODES,
        "Episodes answer alike, as far as the observations say.",
        lambda column, share: (
            "Episodes answer differently to the same observations and actions: knowing the first half of one "
            f"would explain {share:.0%} more of how {name(column)} changes in its second half. Several "
            "plants, products, loads or settings may be in this log that no observation tells apart."
        ),
    )


def told_past(found: list[Found], name: Callable[[int], str]) -> Check:
    """Whether what came before a row matters beyond what the row says."""
    return _told(
        found,
        FROM_THE_PAST,
        "What happened before a row says nothing more of what follows it.",
        lambda column, share: (
            f"The observations lack a memory or a load: the {PAST} rows before would explain {share:.0%} "
            f"more of how {name(column)} changes. Give the past as observations, or what is missing."
        ),
    )


def _told(found: list[Found], limits: Limits, clean: str, reason: Callable[[int, float], str]) -> Check:
    """By the column of which most could be said."""
    beyond = [each.exceeds(limits.share, limits.of_the_rest) for each in found]
    column = int(
        np.argmax([each.share + 9.0 * is_beyond for each, is_beyond in zip(found, beyond, strict=True)])
    )
    worst = found[column]
    numbers = {"share": worst.share, "of_the_rest": worst.of_the_rest, "errors": worst.errors}
    if not any(beyond):
        return Check("passed", clean, numbers)
    grave = any(each.exceeds(limits.grave_share, limits.grave_of_the_rest) for each in found)
    return Check("refused" if grave else "warned", reason(column, worst.share), numbers)


def unmarked_ends(log: JudgedLog, name_of: NameOf) -> Check:
    """Whether episodes that end early without a mark do so where hardly any other row is: at a trip."""
    found = early_ends(log.obs, log.next_obs, log.ends, log.dones)
    numbers = {"early": float(found.early), "at_extremes": found.share}
    if found.are_suspect:
        return Check("refused", found.sentence(name_of), numbers)
    anywhere = "Episodes that end early do so anywhere." if found.early else "No episodes end early."
    return Check("passed", anywhere, numbers)
