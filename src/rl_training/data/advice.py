"""Does the past matter? What a policy should look at besides the present row, read off a log.

Three questions: is the next row known better with the rows before (history), after how many rows does an
action show (dead time), and does something stay off what is wanted (steady offset). History helps where
everything is measured. Where the operators react to something that is not in the log, it does not: what they
did then goes together with what they saw, and no number of lags tells one from the other.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from rl_training.core.types import State
from rl_training.data.episodes import IntArray
from rl_training.data.log import EpisodeLog
from rl_training.data.log_sample import (
    Float64,
    LogSample,
    curved,
    held_out_residuals,
    interacting,
    lagged,
    sample_log,
    standardised,
    unexplained,
    without_outliers,
)

LAGS = (0, 1, 2, 4, 8)
"""Rows looked back."""

_ENOUGH_ROWS = 400
_MOST_COLUMNS = 60

_WORTH = 0.85
"""History matters where it takes the part of some column that is not foreseen below this share of itself."""

_MUCH = 0.7
"""The same for earlier observations beside earlier actions, which alone are the rule for a dead time."""

_SURE = 6.0
"""Standard errors by which an effect must differ from nothing."""

_LASTING, _SHARE = 0.15, (0.02, 0.9)
"""Something unseen lasts where what is not foreseen in the last rows foretells what is not in this one, with
at least such a correlation, and is neither a trifle of the change nor all of it, as of pure noise."""

_RECENT, _SUMMED = 5, 3
"""Actions of so many rows that what is unseen may act through; rows over which it is summed."""

_MOST_INPUTS = 40
"""Columns of which every two are multiplied at most; a wider log is not asked whether operators know more."""

_BEYOND_CHANCE = 2.4
"""Standard errors beyond the largest of as many numbers that are nothing."""


@dataclass(frozen=True)
class Advice:
    """What the past says; errors are shares of the change from row to row that are not foreseen."""

    errors: dict[int, float]
    """rows looked back -> error, the mean over all columns"""
    effects: dict[str, tuple[float, ...]]
    """action -> how sure its effect on the next row is, by rows since it was set (in standard errors)"""
    dead_times: dict[str, int]
    history: int
    """rows to look back, 0 for none"""
    observations: str | None
    """what to write behind --obs"""
    hidden: bool
    """whether the operators react to something that is not in the log"""
    sentences: tuple[str, ...]

    def to_dict(self) -> State:
        """Plain data for JSON."""
        return {**vars(self), "errors": {str(lag): error for lag, error in self.errors.items()}}

    def rows(self) -> list[tuple[str, str]]:
        """The table of errors."""
        return [(str(lag), f"{error:.1%}") for lag, error in self.errors.items()]


def advise(log: EpisodeLog) -> Advice | None:
    """Look at a sample of the log; None where it is too short or too wide to say anything."""
    sample = sample_log(log)
    moving = sample.obs[sample.finite].std(axis=0) > 0 if sample.finite.any() else np.zeros(0, dtype=bool)
    rows = sample.rows(LAGS[-1])
    columns = sample.obs.shape[1] + sample.actions.shape[1]
    if not moving.any() or len(rows) < _ENOUGH_ROWS or columns > _MOST_COLUMNS:
        return None
    change = standardised(sample.obs[rows + 1] - sample.obs[rows])[:, moving]
    present = curved(np.hstack([sample.obs[rows], sample.actions[rows]]))
    both = np.hstack([sample.obs, sample.actions])
    by_column = {
        lag: unexplained(
            np.hstack([present, *([lagged(both, rows, range(1, lag + 1))] if lag else [])]),
            change,
            sample.piece[rows],
        )
        for lag in LAGS
    }
    effects = _effects(log, sample, rows, change)
    dead_times = {name: time for name, sizes in effects.items() if (time := _dead_time(sizes)) is not None}
    history = _history(by_column)
    hidden = _operators_know_more(sample, rows, change)
    found = _Findings(log, history, dead_times, _states_matter(sample, rows, change, by_column), hidden)
    offset = _steady_offsets(log, sample)
    return Advice(
        errors={lag: float(errors.mean()) for lag, errors in by_column.items()},
        effects=effects,
        dead_times=dead_times,
        history=0 if hidden else history,
        observations=found.observations(offset),
        hidden=hidden,
        sentences=(*found.sentences(by_column), *(words for words, _ in offset)),
    )


def _history(by_column: dict[int, Float64]) -> int:
    """The fewest rows with which every column is foreseen nearly as well as with any number of them."""
    none = by_column[0]
    best = np.min(list(by_column.values()), axis=0)
    if not ((best < _WORTH * none) & (none > 1e-3)).any():
        return 0
    return next(lag for lag in LAGS if (by_column[lag] <= 1.1 * best + 1e-3).all() or lag == LAGS[-1])


def _effects(
    log: EpisodeLog, sample: LogSample, rows: IntArray, change: Float64
) -> dict[str, tuple[float, ...]]:
    """How surely each action of the last rows changes the column that answers to it most."""
    lags = range(LAGS[-1] + 1)
    count = sample.actions.shape[1]
    acted = standardised(lagged(sample.actions, rows, lags))
    inputs = np.hstack([acted, curved(sample.obs[rows])])
    inputs = np.hstack([inputs, np.ones((len(inputs), 1))])
    gram = inputs.T @ inputs
    gram[np.diag_indices_from(gram)] += 1e-6 * len(inputs)
    inverse = np.linalg.inv(gram)
    weights = inverse @ (inputs.T @ change)
    noise = (change - inputs @ weights).std(axis=0)
    size = np.sqrt(np.maximum(np.diag(inverse), 0.0))[: acted.shape[1], None] * np.maximum(noise, 1e-9)
    sure = (np.abs(weights[: acted.shape[1]]) / np.maximum(size, 1e-12)).reshape(len(lags), count, -1)
    answering = sure.max(axis=0).argmax(axis=1)
    return {
        log.info.name_of("action", index).removeprefix("action "): tuple(
            float(number) for number in sure[:, index, answering[index]]
        )
        for index in range(count)
    }


def _dead_time(sizes: tuple[float, ...]) -> int | None:
    """The first row since an action in which its effect is plain."""
    return next((lag for lag, size in enumerate(sizes) if size > max(_SURE, 0.3 * max(sizes))), None)


def _left_over(sample: LogSample, rows: IntArray, change: Float64) -> Float64:
    """What is not foreseen from the present row and all actions of the last ones."""
    acted = lagged(sample.actions, rows, range(LAGS[-1] + 1))
    return held_out_residuals(np.hstack([curved(sample.obs[rows]), acted]), change, sample.piece[rows])


def _operators_know_more(sample: LogSample, rows: IntArray, change: Float64) -> bool:
    """Whether something unseen lasts from row to row, and the actions answer to it.

    What remains of a change after the present row and all actions is noise where everything is measured.
    Where it lasts, alone or through the actions (a full tank warms slowly), something is missing. Where the
    next action depends on it, beyond what the row, the actions before and the operators' own habits show,
    whoever acted saw what is missing. A hand that moves slowly is a habit: it knows nothing of what remains.
    """
    count = sample.obs.shape[1] + _RECENT * sample.actions.shape[1]
    if count > _MOST_INPUTS:
        return False
    lags, pieces = range(1, LAGS[-1] + 1), sample.piece
    both = interacting(np.hstack([sample.obs[rows], lagged(sample.actions, rows, range(_RECENT))]))
    earlier = lagged(sample.actions, rows, range(_RECENT, LAGS[-1] + 1))
    left = held_out_residuals(np.hstack([both, earlier]), change, pieces[rows])
    place = np.full(len(sample), -1)
    place[rows] = np.arange(len(rows))
    now = rows[np.all([place[rows - back] >= 0 for back in range(1, _SUMMED + 1)], axis=0)]
    if len(now) < _ENOUGH_ROWS // 2:
        return False

    def through(back: int) -> Float64:
        acted = without_outliers(lagged(sample.actions, now - back, range(_RECENT)))
        return np.hstack([np.ones((len(now), 1)), acted])[:, None, :]

    unseen = np.zeros(1)
    for back in range(1, _SUMMED + 1):
        unseen = unseen + without_outliers(left[place[now - back]])[:, :, None] * through(back)
    foretold = (unseen * through(0)).reshape(len(now), -1)
    remains = standardised(without_outliers(left[place[now]]))
    found = (standardised(foretold).reshape(unseen.shape) * remains[:, :, None]).mean(axis=0).max(axis=1)
    share = left.var(axis=0) / np.maximum(change.var(axis=0), 1e-12)
    lasting = (found > _LASTING) & (share > _SHARE[0]) & (share < _SHARE[1])
    if not lasting.any():
        return False
    whole = sample.rows(0, 0)
    habits = np.zeros_like(sample.actions)
    habits[whole] = held_out_residuals(
        curved(sample.obs[whole]), standardised(sample.actions[whole]), pieces[whole]
    )
    before = lagged(sample.actions, now, range(1, _RECENT))
    known = np.hstack([interacting(np.hstack([sample.obs[now], before])), lagged(sample.actions, now, lags)])
    known = np.hstack([known, lagged(habits, now, lags)])
    acted, missing = (
        without_outliers(held_out_residuals(known, standardised(values), pieces[now]))
        for values in (sample.actions[now], unseen[:, lasting].reshape(len(now), -1))
    )
    together = (acted[:, :, None] * missing[:, None, :]).reshape(len(now), -1)
    # rows of one piece go together: only whole pieces are independent of each other
    sums = np.add.reduceat(together, np.flatnonzero(np.diff(pieces[now], prepend=-1)), axis=0)
    sure = np.abs(sums.sum(axis=0)) / np.maximum(np.sqrt((sums**2).sum(axis=0)), 1e-12)
    return bool(sure.max() > np.sqrt(2.0 * np.log(len(sure))) + _BEYOND_CHANCE)


def _states_matter(sample: LogSample, rows: IntArray, change: Float64, by_column: dict[int, Float64]) -> bool:
    """Whether earlier observations help beyond earlier actions."""
    left = _left_over(sample, rows, change).var(axis=0) / np.maximum(change.var(axis=0), 1e-12)
    best = np.min(list(by_column.values()), axis=0)
    return bool(((best < _MUCH * left) & (left > 1e-3)).any())


@dataclass(frozen=True)
class _Findings:
    """The answers, put into words."""

    log: EpisodeLog
    history: int
    dead_times: dict[str, int]
    states_matter: bool
    hidden: bool

    def observations(self, offsets: list[tuple[str, str]]) -> str | None:
        """What to write behind `--obs`; None where nothing is to be added, or columns have no names."""
        names = self.log.info.observation_names
        late = self._late
        if names is None or self.hidden or not (self.history or offsets):
            return None
        told = [_written(name) for name in names]
        if self.history and (self.states_matter or not late):
            told += [f"lags({name}, {self.history})" for name in told]
            late = dict.fromkeys(self.log.info.action_names or (), self.history)
        told += [f"lags({_written(name)}, {time})" for name, time in late.items() if self.history]
        return ", ".join([*told, *(signal for _, signal in offsets)])

    @property
    def _late(self) -> dict[str, int]:
        return {name: time for name, time in self.dead_times.items() if time}

    def sentences(self, by_column: dict[int, Float64]) -> list[str]:
        if self.hidden:
            return [
                "Something that the operators react to is not in the log: what no column foretells lasts "
                "from row to row, and their actions answer to it. Lags do not cure that, and what a policy "
                "learns may be wrong: log what they see (a load, a feed, an order), and observe it."
            ]
        if not self.history:
            return [
                "The past does not matter: the next row follows from this one as well as from the last 8."
            ]
        none, best = (float(by_column[lag].mean()) for lag in (0, self.history))
        words = [
            f"The past matters: with {self.history} rows of it, {best:.0%} of the changes are not foreseen, "
            f"with this row alone {none:.0%}."
        ]
        words += [
            f"{name} shows after {time + 1} rows (a dead time of {time})."
            for name, time in self._late.items()
        ]
        if self.log.info.observation_names is None:
            words.append(f"Add --history {self.history}.")
        return words


def _written(name: str) -> str:
    """A column name as an expression takes it."""
    return name if re.fullmatch(r"[A-Za-z_]\w*", name) else f"`{name}`"


_WANTED = re.compile(r"(^|_)(set|sp|setpoint|target|wanted|reference|ref)(_|$)|(set|Set)(point|Point)?$")


def _steady_offsets(log: EpisodeLog, sample: LogSample) -> list[tuple[str, str]]:
    """Columns that stay off the column of what is wanted: a sentence and a signal for each."""
    names = log.info.observation_names or ()
    pairs = [
        (names.index(own), index)
        for index, name in enumerate(names)
        if (own := _measured(name, names)) is not None
    ]
    return [found for pair in pairs if (found := _offset(sample, names, *pair)) is not None]


def _measured(name: str, names: tuple[str, ...]) -> str | None:
    """The column that `T_set` or `set_T` is about: the only other one with that stem."""
    stem = _WANTED.sub("_", name).strip("_")
    if stem == name or not stem:
        return None
    fitting = [
        other for other in names if other != name and other.startswith(stem) and not _WANTED.search(other)
    ]
    return fitting[0] if len(fitting) == 1 else None


def _offset(sample: LogSample, names: tuple[str, ...], own: int, wanted: int) -> tuple[str, str] | None:
    gap = sample.obs[:, own] - sample.obs[:, wanted]
    means = []
    for number in np.unique(sample.piece):
        here = gap[(sample.piece == number) & sample.finite]
        if len(here) >= 20:
            means.append(here[len(here) // 2 :].mean())
    if len(means) < 5:
        return None
    mean, spread = float(np.mean(means)), float(np.std(means)) / np.sqrt(len(means))
    if abs(mean) < 4 * spread or abs(mean) < 0.1 * float(np.nanstd(sample.obs[:, own])):
        return None
    side = "below" if mean < 0 else "above"
    one, other = _written(names[own]), _written(names[wanted])
    return (
        f"{names[own]} stays {abs(mean):.3g} {side} {names[wanted]}: a policy that sees the sum of what is "
        "missing can make up for it.",
        f"sum({other} - {one})",
    )
