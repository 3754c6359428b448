"""Mistakes in a log that nothing else notices: each would train a policy that looks good and is not.

Every check is quiet unless a log shows the mistake plainly; which logs it was tried on is written in the
tests. Fits are made on a sample, so that a log of a million rows takes seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from rl_training.core.types import Array
from rl_training.data.episodes import BoolArray, episode_lengths
from rl_training.data.log import EpisodeLog
from rl_training.data.log_sample import (
    Float64,
    LogSample,
    curved,
    held_out_residuals,
    sample_log,
    standardised,
    unexplained,
)
from rl_training.data.reading import matrix

EXTREME = 0.02
"""Share of rows on either side of a column that counts as its end."""

EARLY = 0.9
"""Episodes shorter than this share of a long one end early; nine of ten are no longer than a long one."""

FEWEST, FEWEST_SHARE = 5, 0.02
"""Episodes that end early, at least, and their share of all."""

FEWEST_ROWS = 150
MOST_OF_THEM = 0.6
"""Share of the early ends that lie at the extremes of one column, at least: twice that of other ends."""

_SAMPLED = 50_000


@dataclass(frozen=True)
class EarlyEnds:
    """Episodes that end early without a mark, and the extreme at which most of them end."""

    early: int
    episodes: int
    share: float = 0.0
    """of the early ends that lie at the extreme"""
    column: int = 0
    side: str = ""
    """high, low, or both; empty where they end anywhere"""

    @property
    def are_suspect(self) -> bool:
        return bool(self.side)

    def sentence(self, name_of: Callable[[str, int], str]) -> str:
        return (
            f"{self.early} of {self.episodes} episodes end early without a mark, {self.share:.0%} of them "
            f"where {name_of('observation', self.column)} is as {self.side} as in {EXTREME:.0%} of all rows: "
            "were these trips? Mark the rows in which the task itself ended (--terminated), or values count "
            "on what never came."
        )


def early_ends(obs: Array, next_obs: Array | None, ends: BoolArray, terminated: BoolArray) -> EarlyEnds:
    """Compare where early ends lie with all other rows, by the last observation that is known of each."""
    obs = obs if obs.ndim > 1 else obs[:, None]
    lengths, last = episode_lengths(ends), np.flatnonzero(ends)
    early = ~terminated[last] & (lengths < EARLY * np.quantile(lengths, 0.9))
    found = EarlyEnds(int(early.sum()), len(lengths))
    others = np.ones(len(obs), dtype=bool)
    others[last] = others[np.maximum(last - 1, 0)] = False
    rows = np.flatnonzero(others)
    if early.sum() < FEWEST or early.mean() < FEWEST_SHARE or len(rows) < FEWEST_ROWS:
        return found
    rows = rows[np.linspace(0, len(rows) - 1, min(len(rows), _SAMPLED)).astype(int)]
    seen = np.asarray((obs if next_obs is None else next_obs.reshape(len(obs), -1))[last], dtype=np.float64)
    known = np.where(np.isnan(obs[rows]).all(axis=0), 0.0, obs[rows])
    low, high = np.nanquantile(known, (EXTREME, 1.0 - EXTREME), axis=0)
    # many rows on a bound make no extreme
    above = (seen >= high) & (np.nanmean(known >= high, axis=0) <= 3 * EXTREME)
    below = (seen <= low) & (np.nanmean(known <= low, axis=0) <= 3 * EXTREME)
    shares = (above | below)[early].mean(axis=0)
    rest = (above | below)[~early].mean(axis=0) if (~early).any() else np.zeros_like(shares)
    shares = np.where((shares >= MOST_OF_THEM) & (rest <= shares / 2.0), shares, 0.0)
    column = int(shares.argmax())
    if not shares[column]:
        return found
    sides = {"high": above[early, column].any(), "low": below[early, column].any()}
    side = " or ".join(name for name, is_one in sides.items() if is_one)
    return EarlyEnds(found.early, found.episodes, float(shares[column]), column, side)


MOST_COLUMNS = 60
"""Fits need time that grows with the square of this number; wider logs are looked at column by column."""

ENOUGH_ROWS = 300


def hidden_mistakes(log: EpisodeLog) -> list[str]:
    """Every mistake that the rows show, in plain words."""
    sample = sample_log(log)
    words = []
    clocks = []
    for index in range(sample.obs.shape[1]):
        found = [*_clocks(log.info.name_of("observation", index), sample.obs[:, index], sample)]
        words += found
        clocks += [index] * bool(found)
    words += [*_columns_with_gaps(log, sample), *_copies(log, sample)]
    ends = early_ends(log.obs, log.next_obs, log.ends, log.terminated)
    words += [ends.sentence(log.info.name_of)] if ends.are_suspect else []
    sample = replace(sample, obs=np.delete(sample.obs, clocks, axis=1))
    columns = sample.obs.shape[1] + sample.actions.shape[1]
    if not sample.obs.shape[1] or columns > MOST_COLUMNS or sample.finite.sum() < ENOUGH_ROWS:
        return words
    words += [*_rewards_out_of_step(log, sample), *_actions_late(sample)]
    return words + (_actions_in_other_units(log, sample) or _two_populations(sample))


# ---- single columns


def _columns_with_gaps(log: EpisodeLog, sample: LogSample) -> Iterator[str]:
    """What every row is looked at for; a column at a time, side by side in memory."""
    for kind, values, some in (("observation", log.obs, sample.obs), ("action", log.actions, sample.actions)):
        for index in range(some.shape[1]):
            column = np.ascontiguousarray(matrix(values)[:, index])
            low, high = np.fmin.reduce(column), np.fmax.reduce(column)
            if np.isnan(low) or low == high:
                continue
            name = log.info.name_of(kind, index)
            yield from _sentinels(name, column, some[:, index], (float(low), float(high)))
            if kind == "observation":
                yield from _stuck(name, column, (low, high))


def _clocks(name: str, column: Float64, sample: LogSample) -> Iterator[str]:
    """A counter of rows, or the time since 1970: a policy would learn the date instead of the plant."""
    same = sample.piece[1:] == sample.piece[:-1]
    steps = np.diff(column)
    inside = steps[same & np.isfinite(steps)]
    if len(inside) < 20 or not len(inside[inside > 0]):
        return
    low, high = np.nanmin(column), np.nanmax(column)
    if (inside >= 0).mean() > 0.999 and any(
        1e9 * unit <= low and high <= 3e9 * unit for unit in (1, 1e3, 1e6)
    ):
        yield (
            f"{name} is a clock (seconds since 1970): a policy would learn the date; leave it out, or give "
            "it as the time (--time)."
        )
        return
    across = steps[(sample.episode[1:] == sample.episode[:-1] + 1) & np.isfinite(steps)]
    counts = (np.abs(inside - np.median(inside)) <= 1e-6 * abs(np.median(inside))).mean() > 0.999
    goes_on = len(across) == 0 or (across > 0).all()
    if counts and goes_on and high - low >= 20 * abs(np.median(inside)):
        yield (
            f"{name} counts rows throughout the log: in use it will have numbers that no row has; leave it "
            "out."
        )


SENTINELS = (-9999.0, -999.0, -99.0, 999.0, 9999.0, 99999.0, -99999.0, 32767.0, -32768.0, 65535.0, 1e6, -1e6)
"""Numbers that programs write where there is no value."""

_FAR = 3.0


def _sentinels(name: str, column: Array, some: Float64, extremes: tuple[float, float]) -> Iterator[str]:
    """A value far outside all others that comes back exactly: a code for "no value"."""
    for value in extremes:
        known = any(abs(value - code) < 0.5 for code in SENTINELS)
        rest = some[np.isfinite(some) & (np.abs(some - value) > 1e-6 * abs(value))]
        if len(rest) < 20:
            continue
        gap, span = np.abs(rest - value).min(), rest.max() - rest.min()
        far = gap > _FAR * span if known else gap > 10.0 * span and span > 0
        count = int((column == value).sum()) if far else 0
        if count >= (1 if known else 3):
            yield (
                f"{name} is {value:g} in {count} rows, far from all other values ({rest.min():g} to "
                f"{rest.max():g}): probably a code for no value; empty the cells and set missing_values."
            )


_LONG = 40


def _stuck(name: str, column: Array, extremes: tuple[float, float]) -> Iterator[str]:
    """A sensor that changes from row to row and then holds one value for a long time, off its bounds."""
    moves = column[1:] != column[:-1]
    if len(moves) - np.count_nonzero(moves) < _LONG - 1:
        return
    changes = np.flatnonzero(np.concatenate([[True], moves, [True]]))
    runs = np.diff(changes)
    longest = int(runs.argmax())
    length, value = int(runs[longest]), column[changes[longest]]
    short = runs[runs < _LONG]
    moving = short.sum() and len(short) / short.sum()
    first = int(changes[longest])
    on_bound = value in extremes
    if length < _LONG or moving < 0.9 or on_bound or not np.isfinite(value) or (runs >= _LONG).sum() > 20:
        return
    yield (
        f"{name} changes in nearly every row, but holds {value:g} for {length} rows from row {first} on: a "
        "sensor that was stuck? Leave these rows out."
    )


_FACTORS = (1.0, -1.0, 100.0, 0.01, 1000.0, 0.001)


def _copies(log: EpisodeLog, sample: LogSample) -> Iterator[str]:
    """Columns that hold the same numbers: twice a sensor, or what a policy cannot have yet."""
    rows = np.flatnonzero(sample.finite)
    if len(rows) < 50:
        return
    obs, actions, rewards = sample.obs[rows], sample.actions[rows], sample.rewards[rows]
    name_of = log.info.name_of
    varying = [index for index in range(obs.shape[1]) if np.ptp(obs[:, index]) > 0]
    for place, index in enumerate(varying):
        name = name_of("observation", index)
        for other in varying[place + 1 :]:
            if _same(obs[:, index], obs[:, other]):
                yield (
                    f"{name} and {name_of('observation', other)} hold the same numbers: leave one of "
                    "them out."
                )
        for action in range(actions.shape[1]):
            if np.ptp(actions[:, action]) and _scaled(obs[:, index], actions[:, action]):
                yield (
                    f"{name} is {name_of('action', action)} of the same row: a policy cannot see what it "
                    "is about to decide; leave it out, or give that of the row before (lag)."
                )
        if np.ptp(rewards) and _same(obs[:, index], rewards) and _depends_on_actions(sample, index):
            yield (
                f"{name} is the reward of the same row, which depends on the action: a policy cannot see it "
                "before it acts; leave it out."
            )


def _same(one: Float64, other: Float64) -> bool:
    first = slice(0, 20)  # which nearly always tells
    return all(
        bool((np.abs(a - b) <= 1e-6 * (np.abs(a) + np.abs(b))).all())
        for a, b in ((one[first], other[first]), (one, other))
    )


def _scaled(one: Float64, other: Float64) -> bool:
    return any(_same(one, factor * other) for factor in _FACTORS)


def _depends_on_actions(sample: LogSample, without: int) -> bool:
    """Whether actions say something about rewards that the other observations do not."""
    rows = sample.rows(0, 0)
    others = np.delete(sample.obs[rows], without, axis=1)
    with_actions = np.hstack([others, sample.actions[rows]])
    groups, target = sample.piece[rows], sample.rewards[rows, None]
    plain = np.ones((len(rows), 1)) if not others.shape[1] else curved(others)
    return bool(
        unexplained(curved(with_actions), target, groups)[0] < 0.8 * unexplained(plain, target, groups)[0]
    )


# ---- whole episodes


_EPISODES, _POPULATION = 20, 0.2
_SPLIT, _BETWEEN = 0.82, 8.0
"""Share of the spread between episodes that two groups explain (of one bell curve: 0.64, of an even spread:
0.75), and how much more episodes differ from each other than rows of one episode would let them."""


def _two_populations(sample: LogSample) -> list[str]:
    """Episodes whose next rows follow from observations and actions in two different ways."""
    rows = sample.rows(0)
    episodes, number = np.unique(sample.episode[rows], return_inverse=True)
    counts = np.bincount(number)
    if len(episodes) < _EPISODES or np.median(counts) < 8:
        return []
    inputs = np.hstack([sample.obs[rows], sample.actions[rows]])
    change = sample.obs[rows + 1] - sample.obs[rows]
    left = standardised(held_out_residuals(curved(inputs), standardised(change), sample.piece[rows]))
    ways = np.hstack([np.ones((len(rows), 1)), standardised(inputs)])
    for column in left.T:
        for way in ways.T:
            product = column * way
            split, between, share = _two_groups(product, number, counts)
            if split > _SPLIT and between > _BETWEEN and share > _POPULATION:
                return [
                    f"The episodes fall into two groups ({share:.0%} and {1 - share:.0%}) in which the same "
                    "observations and actions lead to different next rows: two machines or settings that no "
                    "column tells apart? Add a column that says which, or train on each apart."
                ]
    return []


def _two_groups(values: Float64, number: Array, counts: Array) -> tuple[float, float, float]:
    """How well two groups explain the episodes' means, how much those differ, share of the smaller group."""
    means = np.bincount(number, values) / counts
    within = np.bincount(number, values**2) / counts - means**2
    between = float(np.var(means) / max(float(np.mean(within / counts)), 1e-18))
    ordered = np.sort(means)
    sizes = np.arange(1, len(ordered))
    sums = np.cumsum(ordered)[:-1]
    total = ordered.sum()
    explained = sums**2 / sizes + (total - sums) ** 2 / (len(ordered) - sizes) - total**2 / len(ordered)
    best = int(explained.argmax())
    spread = float(((ordered - ordered.mean()) ** 2).sum())
    share = min(sizes[best], len(ordered) - sizes[best]) / len(ordered)
    return float(explained[best]) / max(spread, 1e-18), between, float(share)


# ---- what belongs to which row


def _rewards_out_of_step(log: EpisodeLog, sample: LogSample) -> list[str]:
    """Rewards that follow from the row before (or after) and not from their own."""
    rows = sample.rows(1, 2)
    if not log.info.rewards_known or len(rows) < ENOUGH_ROWS or np.ptp(sample.rewards[rows]) == 0:
        return []
    target, groups = sample.rewards[rows, None], sample.piece[rows]

    def left(*shifts: int) -> float:
        step = [np.hstack([sample.obs[rows + at], sample.actions[rows + at]]) for at in shifts[:-1]]
        return float(
            unexplained(curved(np.hstack([*step, sample.obs[rows + shifts[-1]]])), target, groups)[0]
        )

    own, before, after = left(0, 1), left(-1, 0), left(1, 2)
    for other, words, remedy in (
        (before, "late", "follow from the row before"),
        (after, "early", "follow from the row after"),
    ):
        if other < 0.4 * own and own > 0.02 and other < 0.5:
            return [
                f"Rewards are one row {words}: {1 - other:.0%} of their spread {remedy}, "
                f"{max(0.0, 1 - own):.0%} from their own observation and action. Shift the column."
            ]
    return []


def _actions_late(sample: LogSample) -> list[str]:
    """Actions that stand one row below the row in which they acted.

    Then the action of a row says nothing about what comes, that of the next row does; and it answers to the
    row before, which in a log that is right it would only do through the row that it stands in.
    """
    rows = sample.rows(0, 1)
    if len(rows) < ENOUGH_ROWS:
        return []
    groups, now, then = sample.piece[rows], sample.obs[rows], sample.obs[rows + 1]
    change = standardised(then - now)
    alone = unexplained(curved(now), change, groups)
    own = unexplained(curved(np.hstack([now, sample.actions[rows]])), change, groups)
    next_row = unexplained(curved(np.hstack([now, sample.actions[rows + 1]])), change, groups)
    worth = alone > 1e-4
    if not worth.any() or (own[worth] / alone[worth]).min() < 0.97:
        return []
    if (next_row[worth] / alone[worth]).min() > 0.7:
        return []
    answers = unexplained(curved(then), sample.actions[rows + 1], groups)
    earlier = unexplained(curved(np.hstack([then, now])), sample.actions[rows + 1], groups)
    if not (answers > 0.05).any() or (earlier / np.maximum(answers, 1e-9))[answers > 0.05].min() > 0.8:
        return []
    return [
        "Actions are one row late: that of a row says nothing about the next row, the one below it does. "
        "Shift the columns of actions one row up."
    ]


_PARTS = 12


def _actions_in_other_units(log: EpisodeLog, sample: LogSample) -> list[str]:
    """An action that does the opposite, or a multiple, in a part of the log."""
    rows = sample.rows(0, 1)
    if len(rows) < ENOUGH_ROWS:
        return []
    part = np.minimum(np.arange(len(rows)) * _PARTS // len(rows), _PARTS - 1)
    change = standardised(sample.obs[rows + 1] - sample.obs[rows])
    words = []
    for index in range(sample.actions.shape[1]):
        gains, trust, spread = _gains(sample, rows, part, change, index)
        name = log.info.name_of("action", index)
        if _turns_round(gains, trust):
            words.append(
                f"{name} does the opposite in a part of the log: has it another sign there? Make it one."
            )
        elif _other_scale(gains, trust, spread):
            words.append(
                f"{name} spreads {spread.max() / spread.min():.0f} times as far in a part of the log as in "
                "the rest, and each unit does that much less there: other units? Make them the same."
            )
    return words


def _gains(
    sample: LogSample, rows: Array, part: Array, change: Float64, index: int
) -> tuple[Float64, Float64, Float64]:
    """What one unit of an action does in each part of the log, how surely, and how far the action spreads."""
    gains, trust, spread = (np.zeros((_PARTS, change.shape[1])) for _ in range(3))
    others = np.delete(sample.actions[rows], index, axis=1)
    inputs = np.hstack([standardised(sample.obs[rows]), standardised(others), np.ones((len(rows), 1))])
    for number in range(_PARTS):
        here = part == number
        both = np.hstack([sample.actions[rows[here], index : index + 1], change[here]])
        left = both - inputs[here] @ np.linalg.lstsq(inputs[here], both, rcond=None)[0]
        power = float((left[:, 0] ** 2).sum())
        spread[number] = np.ptp(both[:, 0])
        if power <= 1e-12 * max(1.0, float((both[:, 0] ** 2).sum())):
            continue
        gains[number] = left[:, 0] @ left[:, 1:] / power
        rest = left[:, 1:] - left[:, :1] * gains[number]
        trust[number] = np.abs(gains[number]) * np.sqrt(power) / np.maximum(rest.std(axis=0), 1e-9)
    clearest = int(np.median(trust, axis=0).argmax())
    return gains[:, clearest], trust[:, clearest], spread[:, 0]


def _turns_round(gains: Float64, trust: Float64) -> bool:
    sure = trust > 8.0
    signs = np.sign(gains[sure])
    if sure.sum() < _PARTS - 2 or (signs > 0).sum() < 2 or (signs < 0).sum() < 2 or _borders(signs) > 2:
        return False
    sizes = np.abs(gains[sure])
    ratio = np.median(sizes[signs > 0]) / np.median(sizes[signs < 0])
    return bool(0.6 < ratio < 1.67)


def _other_scale(gains: Float64, trust: Float64, spread: Float64) -> bool:
    sure = (trust > 8.0) & (spread > 0)
    if sure.sum() < _PARTS - 2:
        return False
    gains, spread = np.abs(gains[sure]), spread[sure]
    wide = spread > np.sqrt(spread.min() * spread.max())
    if spread.max() < 8.0 * spread.min() or min(wide.sum(), (~wide).sum()) < 2 or _borders(wide) > 2:
        return False
    far = np.median(spread[wide]) / np.median(spread[~wide])
    weak = np.median(gains[~wide]) / np.median(gains[wide])
    return bool(0.5 < far / weak < 2.0)


def _borders(marks: npt.NDArray[np.generic]) -> int:
    """How often neighbours differ."""
    return int((marks[1:] != marks[:-1]).sum())
