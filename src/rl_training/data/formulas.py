"""Formulas over a log: what observations, costs, rewards and flags are computed from."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from rl_training.config.data import ColumnsConfig
from rl_training.config.limits import Limit, check_costs_named
from rl_training.core.errors import ConfigError, DataError, did_you_mean
from rl_training.core.expressions import Column, Expression, Next, parse, quoted, split_list, walk
from rl_training.core.over_log import (
    BoolArray,
    Float64Array,
    IntArray,
    LogRows,
    OverLog,
    refuse_long_lags,
    refuse_no_number,
    rows_since_start,
)
from rl_training.core.signals import (
    Program,
    Signals,
    history_texts,
    in_single_precision,
    observed,
    with_moved_lags,
)
from rl_training.core.spaces import FloatArray
from rl_training.core.types import Array, State
from rl_training.data.fields import FIELDS, FORMULA_COLUMNS, all_fields, expanded, matching
from rl_training.data.info import DataInfo
from rl_training.data.log import MASKS_ALONE, EpisodeLog
from rl_training.data.reading import Allocate, matrix, row_chunks


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
    signals = asked_signals(log.info.signals, _names(log), history, rate)
    return replace(log, info=replace(log.info, signals=signals))


def mean_action(logs: Sequence[EpisodeLog]) -> tuple[float, ...]:
    """What counts as an action before the first row of an episode: the mean of all rows; of a choice its
    most frequent level.
    """
    total, rows = np.zeros(matrix(logs[0].actions).shape[1]), 0
    for log in logs:
        for part in row_chunks(len(log)):
            total += matrix(log.actions[part]).sum(axis=0, dtype=np.float64)
        rows += len(log)
    mean = np.asarray(total / rows)
    for index, choice in enumerate(logs[0].info.choices):
        if choice is not None:
            levels, counts = np.unique(
                np.concatenate([matrix(log.actions)[:, index] for log in logs]), return_counts=True
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
    rows = (matrix(log.obs), matrix(log.actions), since_start, signals.first_action)
    shape = (len(log), program.width)
    obs = program.over_log(*rows, out=allocate("obs", shape, np.dtype(np.float32)))
    next_obs = None
    if log.next_obs is not None:
        out = allocate("next_obs", shape, np.dtype(np.float32))
        next_obs = program.after_rows(matrix(log.next_obs), *rows, out=out)
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
    actions = matrix(log.actions)[part]
    over = program.over(matrix(log.obs)[part], actions, since_start[part], signals.first_action)
    with np.errstate(all="ignore"):
        for text, node in zip(program.names, program.nodes, strict=True):
            values = np.broadcast_to(over.value(node), row + 1 - first)
            known = np.ones(len(values), dtype=bool)
            refuse_no_number(
                Expression(text, node), over, values, known, lambda at: f"{log.info.source}: row {first + at}"
            )


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
        everywhere = np.ones(len(log), dtype=bool)
        refuse_no_number(expression, over, values, everywhere, lambda row: f"{source}: row {row}")
        found.append(values)
    further = {**log.further, "costs": np.stack(found, axis=1).astype(np.float32)}
    return replace(log, further=further, info=replace(log.info, cost_names=tuple(costs)))


def _names(log: EpisodeLog) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return column_names(log.info, matrix(log.obs).shape[1], matrix(log.actions).shape[1])


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


_FORMULA = re.compile(r"[-+/%<>=!()`]|\w\s*\*+\s*[\w(]|\b(?:and|or|not|if)\b")
_SINGLE = ("episode", "time")
"""Roles whose columns are no numbers."""


@dataclass(frozen=True)
class Formulas:
    """What of a table's mapping is computed from its columns."""

    signals: Program | None = None
    """the observation, where it is more than columns"""
    computed: Mapping[str, Expression] = field(default_factory=dict)
    """field of one value per row -> its formula"""
    costs: Mapping[str, Expression] = field(default_factory=dict)
    """cost -> its formula, which may be a column alone"""
    actions: tuple[str, ...] = ()

    @property
    def columns(self) -> list[str]:
        """Columns that costs and the fields of one value are computed from."""
        formulas = (*self.computed.values(), *self.costs.values())
        nodes = (node for each in formulas for node in walk(each.node))
        return list(dict.fromkeys(node.name for node in nodes if isinstance(node, Column)))


def is_formula(text: str, names: Sequence[str]) -> bool:
    """Whether an entry of a mapping is neither a column nor a pattern that stands for some."""
    return not matching(text, names) and _FORMULA.search(text) is not None


def split_formulas(
    names: Sequence[str], columns: ColumnsConfig, source: str, costs: Mapping[str, str] | None = None
) -> tuple[ColumnsConfig, Formulas]:
    """The mapping with columns alone, and the formulas that stood in it."""
    actions = tuple(
        name
        for entry in columns.actions
        for name in (expanded(entry, names, "actions", source) if matching(entry, names) else ())
    )
    computed: dict[str, Expression] = {}
    plain: dict[str, None] = {}
    fields = dict(columns.fields)
    for each in all_fields():
        given = getattr(columns, each.role) if each.role else columns.fields.get(each.name)
        text = given if isinstance(given, str) else given[0] if given and len(given) == 1 else None
        if text is None or each.kind == "vector" or each.role in _SINGLE or not is_formula(text, names):
            continue
        computed[each.name] = one_expression(each.name, text, names, actions)
        if each.role:
            plain[each.role] = None
        else:
            del fields[each.name]
    listed = ([given] if given in names else split_list(given) for given in columns.observations)
    entries = [entry for each in listed for entry in each]
    signals = None
    if any(is_formula(entry, names) for entry in entries):
        signals = _program(entries, names, actions, source)
        entries = list(signals.columns)
    found = columns.model_copy(update={**plain, "fields": fields, "observations": tuple(entries)})
    formulas = {name: cost_expression(name, text, names, actions) for name, text in (costs or {}).items()}
    return found, Formulas(signals, computed, formulas, actions)


def cost_expression(name: str, text: str, names: Sequence[str], actions: Sequence[str]) -> Expression:
    """What a cost is: a column by its plain name, or a formula."""
    if text in names:
        return Expression(text, Column(text))
    return one_expression(f"cost {name}", text, names, actions)


def one_expression(what: str, text: str, names: Sequence[str], actions: Sequence[str]) -> Expression:
    """The formula of one value per row, in which an action of the past is one that ran."""
    if len(entries := split_list(text)) != 1:
        raise DataError(f"{what} must be one expression, got {len(entries)} in {text!r}")
    found = parse(text, names)
    return Expression(found.text, with_moved_lags(found.node, actions))


def _program(entries: Sequence[str], names: Sequence[str], actions: Sequence[str], source: str) -> Program:
    """The signals of an observation, over the columns that stand in them, in the order in which they do."""
    if not actions:
        raise DataError(f"{source}: observations with formulas need the columns of the actions (--action)")
    texts: list[str] = []
    for entry in entries:
        texts += [entry] if is_formula(entry, names) else expanded(entry, names, "observations", source)
    nodes = (node for text in texts for each in observed(text, names, actions) for node in walk(each.node))
    used = dict.fromkeys(node.name for node in nodes if isinstance(node, Column))
    seen = tuple(name for name in used if name not in actions)
    if not seen:
        raise DataError(f"{source}: an observation needs a column beside past actions")
    return Program(tuple(texts), seen, tuple(actions))


# ---- once the rows are there


@dataclass(frozen=True)
class FormulaRows:
    """The columns of a table's formulas, where its episodes end, and how a row of it is told."""

    formulas: Formulas
    values: Array
    ends: BoolArray
    place: Callable[[int], str]

    def computed(self, kind: str, *, lenient: bool = False) -> dict[str, Float64Array]:
        """The fields of a kind; a value that is no number is refused, unless it could only come later."""
        chosen = {
            name: each for name, each in self.formulas.computed.items() if FIELDS.get(name).kind == kind
        }
        return self._values(chosen, checked=kind == "number" and not lenient)

    def costs(self, *, lenient: bool = False) -> list[Float64Array]:
        """The values of every cost."""
        return list(self._values(self.formulas.costs, checked=not lenient).values())

    def _values(self, chosen: Mapping[str, Expression], *, checked: bool) -> dict[str, Float64Array]:
        if not chosen:
            return {}
        columns = dict(zip(self.formulas.columns, self.values.T, strict=True))
        mean = {name: _mean(columns[name]) for name in self.formulas.actions if name in columns}
        rows = LogRows(columns, rows_since_start(self.ends), mean)
        over, found = OverLog(rows), {}
        with np.errstate(all="ignore"):
            for name, each in chosen.items():
                refuse_long_lags(each, rows.since_start)
                found[name] = np.broadcast_to(over.value(each.node), len(rows)).copy()
        for name, each in chosen.items():
            if checked:
                known = ~self.ends if has_next(each) else np.ones(len(rows), dtype=bool)
                refuse_no_number(each, over, found[name], known, self.place)
        return found

    def without_successor(self) -> BoolArray:
        """Rows for which a number needs a row that never came."""
        computed = self.formulas.computed
        numbers = [each for name, each in computed.items() if FIELDS.get(name).kind == "number"]
        return self.ends & any(map(has_next, (*numbers, *self.formulas.costs.values())))


def _mean(values: Array) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else 0.0


def has_next(expression: Expression) -> bool:
    return any(isinstance(node, Next) for node in walk(expression.node))


def formula_rows(
    formulas: Formulas, columns: dict[str, Array], ends: BoolArray, place: Callable[[int], str]
) -> FormulaRows:
    values = columns.get(FORMULA_COLUMNS, np.zeros((len(ends), 0)))
    if values.shape[1] != len(formulas.columns):
        listed = ", ".join(formulas.columns)
        raise DataError(
            f"{place(0).rpartition(': ')[0]}: a formula needs one number per row of each {listed}"
        )
    return FormulaRows(formulas, values, ends, place)
