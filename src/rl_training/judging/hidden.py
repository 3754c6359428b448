"""Is something hidden? A log that lacks what its plant or its operators answer to is silently wrong.

Everything that learns from such a log agrees with itself, and is wrong together. It shows in what a model of
the dynamics leaves unexplained of held-out episodes: noise has no memory and is the same in every episode.
And it shows in episodes that end early at extremes without a mark. Where something is hidden, the columns of
the log that no observation holds are asked which of them explains it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch

from rl_training.algorithms.dynamics import Dynamics
from rl_training.core.streams import derive_seed
from rl_training.data.episodes import BoolArray, IntArray
from rl_training.data.log_checks import early_ends
from rl_training.data.read import UnusedColumn
from rl_training.judging.log import Float64Array, JudgedLog, NameOf
from rl_training.judging.verdict import Check

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

MOST_LEVELS = 12
"""Different values up to which each has coefficients of its own; beyond, a number is taken as a number."""

MOST_COEFFICIENTS = 600
"""With more, a value shifts what follows and does not change how it answers."""

ENOUGH = 0.5
"""Share of what is hidden that a column has to explain before it is named."""


# ---- what a model leaves unexplained, and what else could be said of it


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


# ---- which column would explain it


@dataclass(frozen=True)
class Tried:
    """What the unused columns have to say of leftovers."""

    columns: tuple[str, ...] = ()
    """those that were tried"""
    best: str | None = None
    """the one that explains most, where that is enough"""
    has_few_values: bool = False

    def sentence(self, unknown: str) -> str:
        """What to do about it; `unknown` is what can be said where no column explains it."""
        if self.best is not None:
            alone = ", or judge the rows of each of its values alone" if self.has_few_values else ""
            return (
                f"The column {self.best}, which is no observation, explains it: add it to the observations "
                f"(--obs) and train with it{alone}."
            )
        if not self.columns:
            return unknown
        return f"{unknown} No other column of the log explains it (tried: {', '.join(self.columns)})."


def tried(left: Unexplained, target: int, share: float, unused: Iterable[UnusedColumn]) -> Tried:
    """The unused column that explains most of the leftovers in column `target`, of which `share` can be."""
    names, best, few, most = [], None, False, ENOUGH * share
    for column in unused:
        shaped = in_shape(column, left.rows)
        if shaped is None:
            continue
        names.append(column.name)
        found = explained_by(left, shaped)[target]
        if found.share >= most and found.errors > SURE:
            best, most = column.name, found.share
            few = len(np.unique(column.values)) <= MOST_LEVELS
    return Tried(tuple(names), best, few)


def in_shape(column: UnusedColumn, rows: IntArray) -> Float64Array | None:
    """What a fit sees of a column: a place per value where they are few, else the number and its square.

    None where it says nothing: one value everywhere, or words as different as the notes of a day.
    """
    values = np.asarray(column.values, dtype=np.float64)[rows]
    known, places = np.unique(values, return_inverse=True)
    if len(known) < 2 or not np.isfinite(values).all():
        return None
    if len(known) <= MOST_LEVELS:
        return np.eye(len(known))[places]
    if column.words:
        return None
    ordered = np.clip((values - np.median(values)) / max(float(values.std()), 1e-12), -4.0, 4.0)
    return np.stack([np.ones(len(values)), ordered, ordered**2], axis=1)


def explained_by(left: Unexplained, shaped: Float64Array) -> list[Found]:
    """What a column says of leftovers, beyond what states and actions do: fitted on one half of the episodes,
    asked of the other. A level of its own for each value, and slopes of its own in states and actions.
    """
    plain = np.concatenate([np.ones((len(shaped), 1)), left.inputs], axis=1)
    more = shaped
    if shaped.shape[1] * plain.shape[1] <= MOST_COEFFICIENTS:
        more = (shaped[:, :, None] * plain[:, None, :]).reshape(len(shaped), -1)
    draws = np.random.default_rng(derive_seed(0, "judge", "unused"))  # plants may take turns
    side = draws.permutation(int(left.episodes.max()) + 1)[left.episodes] % 2 == 0
    return added_by(more, left.inputs, left.residuals, left.episodes, side)


# ---- what is said of it


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

Unused = Callable[[], Iterable[UnusedColumn]]
Ask = Callable[[int, float], Tried]
"""A column of leftovers, the share of it that could be explained -> what the unused columns say of that."""


def is_something_hidden(
    log: JudgedLog, dynamics: Dynamics, name_of: NameOf, unused: Unused = tuple
) -> dict[str, Check]:
    """Whether episodes differ, and whether the past matters, beyond what observations and actions say.

    Where they do, the columns that nobody sees (`unused`, read only then) are asked which explains it.
    """
    left = unexplained(dynamics, log)
    columns = cache(lambda: tuple(unused()))

    def name(column: int) -> str:
        return "the reward" if column == left.residuals.shape[1] - 1 else name_of("observation", column)

    def ask(column: int, share: float) -> Tried:
        return tried(left, column, share, columns())

    return {
        "episodes_alike": told_apart(from_the_first_half(left), name, ask),
        "memory": told_past(from_the_past(left), name, ask),
    }


def nobody(column: int, share: float) -> Tried:
    """Where no column is at hand."""
    return Tried()


def told_apart(found: list[Found], name: Callable[[int], str], ask: Ask = nobody) -> Check:
    """Whether episodes differ by more than observations and actions say."""
    return _told(
        found,
        BETWEEN_EPISODES,
        "Episodes answer alike, as far as the observations say.",
        lambda column, share: (
            "Episodes answer differently to the same observations and actions: knowing the first half of one "
            f"would explain {share:.0%} more of how {name(column)} changes in its second half."
        ),
        "Several plants, products, loads or settings may be in this log that no observation tells apart.",
        ask,
    )


def told_past(found: list[Found], name: Callable[[int], str], ask: Ask = nobody) -> Check:
    """Whether what came before a row matters beyond what the row says."""
    return _told(
        found,
        FROM_THE_PAST,
        "What happened before a row says nothing more of what follows it.",
        lambda column, share: (
            f"The observations lack a memory or a load: the {PAST} rows before would explain {share:.0%} "
            f"more of how {name(column)} changes."
        ),
        "Give the past as observations, or what is missing.",
        ask,
    )


def _told(
    found: list[Found],
    limits: Limits,
    clean: str,
    reason: Callable[[int, float], str],
    unknown: str,
    ask: Ask,
) -> Check:
    """By the column of which most could be said; what is `unknown` where no unused column explains it."""
    beyond = [each.exceeds(limits.share, limits.of_the_rest) for each in found]
    column = int(
        np.argmax([each.share + 9.0 * is_beyond for each, is_beyond in zip(found, beyond, strict=True)])
    )
    worst = found[column]
    numbers = {"share": worst.share, "of_the_rest": worst.of_the_rest, "errors": worst.errors}
    if not any(beyond):
        return Check("passed", clean, numbers)
    grave = any(each.exceeds(limits.grave_share, limits.grave_of_the_rest) for each in found)
    sentence = f"{reason(column, worst.share)} {ask(column, worst.share).sentence(unknown)}"
    return Check("refused" if grave else "warned", sentence, numbers)


def unmarked_ends(log: JudgedLog, name_of: NameOf) -> Check:
    """Whether episodes that end early without a mark do so where hardly any other row is: at a trip."""
    found = early_ends(log.obs, log.next_obs, log.ends, log.dones)
    numbers = {"early": float(found.early), "at_extremes": found.share}
    if found.are_suspect:
        return Check("refused", found.sentence(name_of), numbers)
    anywhere = "Episodes that end early do so anywhere." if found.early else "No episodes end early."
    return Check("passed", anywhere, numbers)
