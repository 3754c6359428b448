"""Logs whose observations become signals, while their episodes are still whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from rl_training.core.errors import ConfigError, DataError, did_you_mean
from rl_training.core.expressions import Expression, quoted
from rl_training.core.over_log import IntArray, refuse_long_lags, refuse_no_number, rows_since_start
from rl_training.core.signals import Program, Signals, history_texts
from rl_training.core.spaces import FloatArray
from rl_training.core.types import Array
from rl_training.data.info import DataInfo
from rl_training.data.log import MASKS_ALONE, EpisodeLog
from rl_training.data.reading import Allocate, row_chunks


def in_memory(name: str, shape: tuple[int, ...], dtype: np.dtype[np.float32]) -> Array:
    return np.empty(shape, dtype)


def column_names(info: DataInfo, obs_dim: int, action_dim: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of what is seen and of what is done: those of the log, or `obs_0 …` and `action_0 …`."""
    return (
        info.observation_names or tuple(f"obs_{index}" for index in range(obs_dim)),
        info.action_names or tuple(f"action_{index}" for index in range(action_dim)),
    )


def asked_signals(
    known: Signals | None,
    names: tuple[Sequence[str], Sequence[str]],
    history: int,
    rate: Mapping[str, float],
) -> Signals | None:
    """The signals of a log or an environment with these settings; none where they are its plain columns."""
    if not history and not rate:
        return known
    columns, actions = (tuple(known.program.columns), known.program.actions) if known else names
    for name in rate:
        if name not in actions:
            raise ConfigError(
                f"rate names no action {name!r}{did_you_mean(name, actions)}; there are {', '.join(actions)}"
            )
    program = Program(tuple(columns), tuple(columns), tuple(actions)) if known is None else known.program
    limited = [f"lag({quoted(name)}, 1)" for name in actions if name in rate]
    program = program.with_texts([*limited, *history_texts(columns, actions, history)])
    rates = tuple(rate.get(name) for name in actions) if rate else () if known is None else known.rates
    return Signals(program, () if known is None else known.first_action, rates)


def with_history(log: EpisodeLog, history: int, rate: Mapping[str, float]) -> EpisodeLog:
    """The log, whose signals hold so many rows of history and the last value of limited actions."""
    if log.info.masked and (history or rate):
        raise ConfigError(f"{log.info.source}: {MASKS_ALONE}")
    widths = [values.shape[1] if values.ndim > 1 else 1 for values in (log.obs, log.actions)]
    signals = asked_signals(log.info.signals, column_names(log.info, *widths), history, rate)
    return replace(log, info=replace(log.info, signals=signals))


def mean_action(logs: Sequence[EpisodeLog]) -> tuple[float, ...]:
    """What counts as an action before the first row of an episode: the mean of all rows; of a choice its
    most frequent level.
    """
    total, rows = np.zeros(_matrix(logs[0].actions).shape[1]), 0
    for log in logs:
        for part in row_chunks(len(log)):
            total += _matrix(log.actions[part]).sum(axis=0, dtype=np.float64)
        rows += len(log)
    mean = np.asarray(total / rows)
    for index, choice in enumerate(logs[0].info.choices):
        if choice is not None:
            levels, counts = np.unique(
                np.concatenate([_matrix(log.actions)[:, index] for log in logs]), return_counts=True
            )
            mean[index] = levels[counts.argmax()]
    return tuple(mean.astype(np.float32).tolist())


def log_with_signals(
    log: EpisodeLog,
    first_action: Sequence[float] = (),
    allocate: Allocate = in_memory,
    *,
    lenient: bool = False,
) -> EpisodeLog:
    """The log with its signals as observations, of a row and of what followed it; `first_action` fills the
    past where an episode begins (by default the log's own mean action).
    """
    signals = log.info.signals
    if signals is None or signals.first_action:
        return log
    signals = replace(signals, first_action=tuple(first_action) or mean_action([log]))
    program, since_start = signals.program, rows_since_start(log.ends)
    for text, node in zip(program.names, program.nodes, strict=True):
        refuse_long_lags(Expression(text, node), since_start)
    rows = (_matrix(log.obs), _matrix(log.actions), since_start, signals.first_action)
    shape = (len(log), program.width)
    obs = program.over_log(*rows, out=allocate("obs", shape, np.dtype(np.float32)))
    next_obs = None
    if log.next_obs is not None:
        out = allocate("next_obs", shape, np.dtype(np.float32))
        next_obs = program.after_rows(_matrix(log.next_obs), *rows, out=out)
    if not lenient:
        _refuse_no_numbers(log, signals, since_start, obs, next_obs)
    return replace(log, obs=obs, next_obs=next_obs, info=info_with_signals(log.info, signals))


def info_with_signals(info: DataInfo, signals: Signals) -> DataInfo:
    """What is known of rows whose observations are these signals."""
    units = {**info.units, **signals.program.unit_of(info.units)}
    return replace(info, signals=signals, observation_names=signals.program.names, units=units)


def _refuse_no_numbers(
    log: EpisodeLog, signals: Signals, since_start: IntArray, obs: FloatArray, next_obs: FloatArray | None
) -> None:
    """Name the first row in which a signal is no number, and why."""
    for values in (obs, obs if next_obs is None else next_obs):
        for rows in row_chunks(len(values)):
            with np.errstate(over="ignore", invalid="ignore"):
                total = values[rows].sum()
            if np.isfinite(total):
                continue
            bad = np.flatnonzero(~np.isfinite(values[rows]).all(axis=1))
            if len(bad):
                row = rows.start + int(bad[0])
                _refuse_row(log, signals, since_start, row)
                raise DataError(f"{log.info.source}: row {row} has a signal that is no number, or too large")


def _refuse_row(log: EpisodeLog, signals: Signals, since_start: IntArray, row: int) -> None:
    """Compute the episode of a row again, as far as that row, to say which signal it is."""
    first = row - int(since_start[row])
    part, program = slice(first, row + 1), signals.program
    actions = _matrix(log.actions)[part]
    over = program.over(_matrix(log.obs)[part], actions, since_start[part], signals.first_action)
    with np.errstate(all="ignore"):
        for text, node in zip(program.names, program.nodes, strict=True):
            values = np.broadcast_to(over.value(node), row + 1 - first)
            known = np.ones(len(values), dtype=bool)
            place = partial(_place, log.info.source, first)
            refuse_no_number(Expression(text, node), over, values, known, place)


def _place(source: str, first: int, row: int) -> str:
    return f"{source}: row {first + row}"


def _matrix(values: Array) -> Array:
    return values if values.ndim > 1 else values[:, None]
