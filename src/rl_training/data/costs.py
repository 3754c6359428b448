"""Costs of rows: computed where they are declared, summed per step and per episode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from rl_training.config.limits import Limit, check_costs_named
from rl_training.core.errors import DataError
from rl_training.core.expressions import Expression, quoted
from rl_training.core.over_log import LogRows, OverLog, refuse_long_lags, refuse_no_number, rows_since_start
from rl_training.core.signals import Program, Signals, in_single_precision
from rl_training.core.types import Array, State
from rl_training.data.log import EpisodeLog
from rl_training.data.signals import column_names
from rl_training.data.tables.formulas import cost_expression, has_next

FEWEST_COSTLY = 10
"""Episodes with a cost from which resampling shows how rare it is; with fewer, a resample may hold none."""

TOLD = "cost"
"""What formulas call the one cost that came with the rows."""


def log_with_costs(log: EpisodeLog, costs: Mapping[str, str]) -> EpisodeLog:
    """The log with these costs, computed from what its rows hold; those of a table are there already.

    A formula sees observations and actions by name, `reward`, and the costs that came with the rows.
    """
    if not costs or log.info.cost_names == tuple(costs):
        return log
    source, columns = log.info.source, _columns(log)
    action_names = tuple(name for name in columns if name in _names(log)[1])
    since_start = rows_since_start(log.ends)
    mean = {name: float(columns[name].mean()) for name in action_names}
    over = OverLog(LogRows(columns, since_start, mean))
    found = []
    for name, text in costs.items():
        expression = cost_expression(name, text, tuple(columns), action_names)
        expression = Expression(expression.text, in_single_precision(expression.node))
        if has_next(expression):
            raise DataError(
                f"{source}: cost {name} must not use next(x), which only tables know; got {text!r}"
            )
        refuse_long_lags(expression, since_start)
        with np.errstate(all="ignore"):
            values = np.broadcast_to(over.value(expression.node), len(log))
        place = partial("{}: row {}".format, source)
        refuse_no_number(expression, over, values, np.ones(len(log), dtype=bool), place)
        found.append(values)
    further = {**log.further, "costs": np.stack(found, axis=1).astype(np.float32)}
    return replace(log, further=further, info=replace(log.info, cost_names=tuple(costs)))


def _names(log: EpisodeLog) -> tuple[tuple[str, ...], tuple[str, ...]]:
    widths = [values.shape[1] if values.ndim > 1 else 1 for values in (log.obs, log.actions)]
    return column_names(log.info, *widths)


def _columns(log: EpisodeLog) -> dict[str, Array]:
    """What the rows hold, by name."""
    seen, done = _names(log)
    found = dict(zip(seen, log.obs.reshape(len(log), -1).T, strict=True))
    found |= zip(done, log.actions.reshape(len(log), -1).T, strict=True)
    found.setdefault("reward", log.rewards)
    if "costs" in log.further:
        told = log.further["costs"].reshape(len(log), -1)
        names = log.info.named_costs(told.shape[1])
        found |= {name: values for name, values in zip(names, told.T, strict=True) if name not in found}
        if told.shape[1] == 1:
            found.setdefault(TOLD, told[:, 0])
    return found


def counted_signals(
    costs: Mapping[str, str], columns: Sequence[str], actions: Sequence[str], first_action: Sequence[float]
) -> Signals | None:
    """What an episode has cost before now, and how many steps it has had; none where columns do not tell.

    They do not where an environment tells the cost, or it is read from a column that nobody observes or from
    the next row.
    """
    if len(costs) != 1:
        return None
    (text,) = costs.values()
    formula = quoted(text) if text in (*columns, *actions) else text
    try:
        program = Program(
            (f"sum(lag({formula}, 1) if steps() > 0 else 0)", "steps()"), tuple(columns), tuple(actions)
        )
    except DataError:
        return None
    return Signals(program, tuple(first_action))


def penalised(rewards: Array, costs: Array, weights: Sequence[float]) -> Array:
    """reward - sum of weight x cost, row by row."""
    taken = costs.astype(np.float64) @ np.asarray(weights, dtype=np.float64)
    return np.asarray(rewards - taken, dtype=np.float32)


def penalty_weights(penalty: Mapping[str, float], names: Sequence[str], source: str) -> tuple[float, ...]:
    """The weight of every cost, in the order of the column; 0 where none is given."""
    check_costs_named("penalty", tuple(penalty), names, source)
    return tuple(penalty.get(name, 0.0) for name in names)


def described_costs(
    names: Sequence[str], totals: Array, steps: Array, limits: Sequence[Limit] = ()
) -> dict[str, State]:
    """What rows cost on average, what episodes do, how many cost more than the least, and the share of them
    that kept a limit; by the names of costs.

    `totals` are what each cost adds up to in each episode, `[episodes, costs]`, and `steps` in how many.
    """
    stated, found = {each.name: each for each in limits}, {}
    for name, sums in zip(names, totals.T, strict=True):
        limit = stated.get(name)
        within = None if limit is None else float((limit.of_episodes(sums, steps) <= limit.bound).mean())
        found[name] = {
            "per_step": float(sums.sum() / steps.sum()),
            "per_episode": float(sums.mean()),
            "costly_episodes": int((sums / steps > (sums / steps).min()).sum()),
            "limit": None if limit is None else str(limit),
            "episodes_within": within,
        }
    return found
