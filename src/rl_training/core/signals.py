"""Signals: formulas over columns and time as one small program, over a whole log and step by step.

A program is known by its texts. Every function of time is a recurrence with a fixed state (registers of
lags, one number per mean, sum and count), so that what a log's rows become and what a policy is asked with
on a machine are the same numbers. Observations are single precision, as environments give them, and so are
the constants of a formula (`level > 2.4` is false where the level is 2.4); computed is in double precision.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Generic

import numpy as np

from rl_training.core.errors import DataError, shown
from rl_training.core.expressions import (
    ARITHMETIC,
    Call,
    Column,
    Expression,
    ExpressionError,
    Lag,
    Mean,
    Next,
    Node,
    Number,
    Steps,
    Sum,
    children,
    parse_several,
    quoted,
    rebuilt,
    walk,
)
from rl_training.core.over_log import Evaluator, Float64Array, IntArray, LogRows, OverLog, Past, V
from rl_training.core.spaces import FloatArray
from rl_training.core.types import Array, Facts, State

MAX_SIGNALS = 4096
MAX_STATE = 16_384
SEGMENT_ROWS = 1 << 17
"""Rows of a log that are computed together: bounds the working memory."""

BLOCK_ROWS = 4096
"""Columns become rows in blocks that stay in the cache."""


@dataclass(frozen=True)
class StepOperations(Generic[V]):
    """What a step needs of a library of arrays; values are `[n, 1]`, tables `[n, width]`."""

    arithmetic: Mapping[str, Callable[..., V]]
    number: Callable[[float], V]
    where: Callable[[V, V, V], V]
    """rows of the first where the condition `[n, 1]` holds"""
    join: Callable[[Sequence[V]], V]
    """tables side by side"""
    take: Callable[[V, Sequence[int]], V]
    """some columns of a table"""
    clip: Callable[[V, float, float], V]


def _take(table: Array, columns: Sequence[int]) -> Array:
    return np.take(table, columns, axis=1)


NUMPY: StepOperations[Array] = StepOperations(
    arithmetic=ARITHMETIC,
    number=np.array,
    where=np.where,
    join=lambda tables: np.concatenate(list(tables), axis=1),
    take=_take,
    clip=np.clip,
)


@dataclass(frozen=True)
class Layout:
    """Which number of the state is what; fixed once a program is parsed.

    First the registers of plain columns and actions, which move together, then those of other nodes, then one
    number for each mean, sum and count.
    """

    plain: Mapping[Node, int]
    """column -> how many rows back it is kept; an action one less, its last is given"""
    others: Mapping[Node, int]
    recurrences: tuple[Node, ...]

    @cached_property
    def places(self) -> Mapping[tuple[Node, int], int]:
        """(lagged node, rows back) -> the place of its register."""
        kept = [(node, back) for group in (self.plain, self.others) for node, back in group.items()]
        registers = [(node, back) for node, most in kept for back in range(1, most + 1)]
        return {register: place for place, register in enumerate(registers)}

    @cached_property
    def recurrence_places(self) -> Mapping[Node, int]:
        return {node: place for place, node in enumerate(self.recurrences, len(self.places))}

    @property
    def size(self) -> int:
        return len(self.places) + len(self.recurrences)


class OneStep(Evaluator[V]):
    """One row of each of `n` episodes: the signals now, and the state afterwards."""

    def __init__(
        self, program: Program, operations: StepOperations[V], obs: V, last_action: V, state: V, first: V
    ) -> None:
        super().__init__(operations.arithmetic)
        self.program, self.use, self.state, self.first = program, operations, state, first
        seen = operations.join([obs, last_action])
        self.pool = seen
        """columns, last actions, and the registers of both, as they count in this row"""
        if program.plain_registers:
            past = operations.take(state, range(len(program.plain_registers)))
            filled = operations.where(first, operations.take(seen, program.plain_registers), past)
            self.pool = operations.join([seen, filled])

    def number(self, value: float) -> V:
        return self.use.number(value)

    def timed(self, node: Node) -> V:
        place = self.program.pool_place(node)
        if place is not None:
            return self.use.take(self.pool, [place])
        layout = self.program.layout
        if isinstance(node, Lag):
            return self.register(node.of, node.rows)
        before = self.use.take(self.state, [layout.recurrence_places[node]])
        if isinstance(node, Steps):
            return before  # the state of an episode that begins is 0
        assert isinstance(node, Mean | Sum)
        now, add = self.value(node.of), self.arithmetic["add"]
        if isinstance(node, Sum):
            return self.use.clip(add(before, now), node.low, node.high)
        towards = self.arithmetic["divide"](
            self.arithmetic["subtract"](now, before), self.number(float(node.rows))
        )
        return self.use.where(self.first, now, add(before, towards))

    def register(self, of: Node, back: int) -> V:
        kept = self.use.take(self.state, [self.program.layout.places[of, back]])
        return self.use.where(self.first, self.value(of), kept)

    def signals(self) -> V:
        """`[n, width]`"""
        program = self.program
        computed = [self.value(node) for node in program.computed]
        table = self.use.join([self.pool, *computed]) if computed else self.pool
        return self.use.take(table, program.signal_places)

    def state_after(self) -> V:
        """`[n, state_size]`, of a program with one."""
        program, layout = self.program, self.program.layout
        parts = [self.use.take(self.pool, program.shifted_registers)] if program.plain_registers else []
        for node, most in layout.others.items():
            parts += [self.value(node), *(self.register(node, back) for back in range(1, most))]
        for node in layout.recurrences:
            value = self.value(node)
            parts.append(
                self.arithmetic["add"](value, self.number(1.0)) if isinstance(node, Steps) else value
            )
        return self.use.join(parts)


@dataclass(frozen=True)
class Program:
    """The signals of an observation, from texts; `columns` are what is seen, `actions` what is done."""

    texts: tuple[str, ...]
    columns: tuple[str, ...]
    actions: tuple[str, ...]

    def __post_init__(self) -> None:
        nodes = self.nodes
        if not nodes:
            raise DataError("there must be at least one observation")
        if len(nodes) > MAX_SIGNALS or self.layout.size > MAX_STATE:
            raise DataError(
                f"there may be {MAX_SIGNALS} signals with a state of {MAX_STATE} numbers, got {len(nodes)} "
                f"with {self.layout.size}"
            )

    @cached_property
    def _expressions(self) -> tuple[Expression, ...]:
        names = (*self.columns, *self.actions)
        return tuple(each for text in self.texts for each in observed(text, names, self.actions))

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        return tuple(in_single_precision(each.node) for each in self._expressions)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """What each signal is called: its text, of `lags(valve, 2)` `lag(valve, 1)` and `lag(valve, 2)`."""
        return tuple(each.text for each in self._expressions)

    @property
    def width(self) -> int:
        return len(self.nodes)

    def with_texts(self, more: Iterable[str]) -> Program:
        """The program with further signals, those that it does not have yet."""
        nodes, texts = set(self.nodes), list(self.texts)
        for text in more:
            (node,) = Program((text,), self.columns, self.actions).nodes
            if node not in nodes:
                texts.append(text)
                nodes.add(node)
        return Program(tuple(texts), self.columns, self.actions)

    @cached_property
    def plain_places(self) -> list[int]:
        """Which signal is each column itself; empty where a column is seen through formulas alone."""
        places = {node: place for place, node in enumerate(self.nodes)}
        found = [places.get(Column(name)) for name in self.columns]
        return [] if None in found else [place for place in found if place is not None]

    def unit_of(self, units: Mapping[str, str]) -> dict[str, str]:
        """The units of signals that have that of a column."""
        found = {}
        for name, node in zip(self.names, self.nodes, strict=True):
            of = node.of if isinstance(node, Lag | Mean) else node
            if isinstance(of, Column) and of.name in units:
                found[name] = units[of.name]
        return found

    @cached_property
    def layout(self) -> Layout:
        registers: dict[Node, int] = {}
        recurrences: dict[Node, None] = {}
        for node in (inner for signal in self.nodes for inner in walk(signal)):
            if isinstance(node, Lag):
                registers[node.of] = max(registers.get(node.of, 0), node.rows)
            elif isinstance(node, Mean | Sum | Steps):
                recurrences[node] = None
        plain: dict[Node, int] = {
            node: back - (node.name in self.actions)
            for node, back in registers.items()
            if isinstance(node, Column)
        }
        others = {node: back for node, back in registers.items() if node not in plain}
        return Layout(plain, others, tuple(recurrences))

    # ---- places in the pool of a step: columns, last actions, registers of both

    @cached_property
    def _seen(self) -> dict[Node, int]:
        return {Column(name): place for place, name in enumerate((*self.columns, *self.actions))}

    @cached_property
    def _kept(self) -> dict[tuple[Node, int], int]:
        """What each register of plain columns holds -> its place; an action's counts from its last."""
        registers = self.layout.places.items()
        return {register: place for register, place in registers if register[0] in self.layout.plain}

    @cached_property
    def plain_registers(self) -> tuple[int, ...]:
        """Where in the pool the column of each register of plain columns is."""
        return tuple(self._seen[node] for node, _ in self._kept)

    @cached_property
    def shifted_registers(self) -> tuple[int, ...]:
        """Where in the pool each such register finds its next value."""
        return tuple(
            self._seen[node] if back == 1 else len(self._seen) + self._kept[node, back - 1]
            for node, back in self._kept
        )

    def pool_place(self, node: Node) -> int | None:
        """Where in the pool a column or a lag of one is; none for what has to be computed."""
        if isinstance(node, Column):
            return self._seen[node]
        if not isinstance(node, Lag) or node.of not in self.layout.plain:
            return None
        back = node.rows - self._is_action(node.of)
        return self._seen[node.of] if back == 0 else len(self._seen) + self._kept[node.of, back]

    @cached_property
    def computed(self) -> tuple[Node, ...]:
        """Signals that are not in the pool, each once."""
        return tuple(dict.fromkeys(node for node in self.nodes if self.pool_place(node) is None))

    @cached_property
    def signal_places(self) -> tuple[int, ...]:
        """Where each signal is: in the pool, or among the computed ones after it."""
        after = len(self._seen) + len(self._kept)
        computed = {node: place for place, node in enumerate(self.computed, after)}
        places = ((self.pool_place(node), node) for node in self.nodes)
        return tuple(computed[node] if place is None else place for place, node in places)

    # ---- what it computes

    def step(
        self, obs: Array, last_action: Array, state: Array, first: Array
    ) -> tuple[FloatArray, Float64Array]:
        """Signals `[n, width]` and the state afterwards, of observations, what was done before them, and
        whether an episode begins (`first`, `[n]`); the state of a row whose episode begins is zero.
        """
        with np.errstate(all="ignore"):  # what is not finite shows in the signal
            one = OneStep(
                self,
                NUMPY,
                obs.astype(np.float64),
                np.asarray(last_action, dtype=np.float64),
                state.astype(np.float64, copy=False),
                first[:, None],
            )
            signals: FloatArray = one.signals().astype(np.float32)
            return signals, one.state_after() if self.layout.size else np.zeros((len(obs), 0))

    def over_log(
        self,
        obs: Array,
        actions: Array,
        since_start: IntArray,
        first_action: Sequence[float],
        *,
        out: FloatArray | None = None,
    ) -> FloatArray:
        """Signals of every row of a log, `[n, width]`, into `out` where it is given."""
        signals = np.empty((len(obs), self.width), np.float32) if out is None else out
        for rows, over in self._segments(obs, actions, since_start, first_action):
            _into_rows(signals[rows], [over.value(node) for node in self.nodes])
        return signals

    def after_rows(
        self,
        next_obs: Array,
        obs: Array,
        actions: Array,
        since_start: IntArray,
        first_action: Sequence[float],
        *,
        out: FloatArray | None = None,
    ) -> FloatArray:
        """Signals of what followed every row, where that was recorded beside it."""
        signals = np.empty((len(obs), self.width), np.float32) if out is None else out
        for rows, over in self._segments(obs, actions, since_start, first_action):
            going_on = np.zeros(len(obs[rows]), dtype=np.bool_)
            signals[rows] = self.step(next_obs[rows], actions[rows], self._state_after(over), going_on)[0]
        return signals

    def states_over_log(
        self, obs: Array, actions: Array, since_start: IntArray, first_action: Sequence[float]
    ) -> Float64Array:
        """The state after every row of a log, `[n, state_size]`: what a step that follows it begins with."""
        states = np.empty((len(obs), self.layout.size))
        for rows, over in self._segments(obs, actions, since_start, first_action):
            states[rows] = self._state_after(over)
        return states

    def _segments(
        self, obs: Array, actions: Array, since_start: IntArray, first_action: Sequence[float]
    ) -> Iterator[tuple[slice, OverLog]]:
        past = Past()
        for start in range(0, len(obs), SEGMENT_ROWS):
            rows = slice(start, start + SEGMENT_ROWS)
            over = self.over(obs[rows], actions[rows], since_start[rows], first_action, past)
            with np.errstate(all="ignore"):  # what is not finite shows in the signal
                yield rows, over
            past = over.left_behind

    def over(
        self,
        obs: Array,
        actions: Array,
        since_start: IntArray,
        first_action: Sequence[float],
        past: Past | None = None,
    ) -> OverLog:
        """The values of any node in consecutive rows, after what the rows before left behind."""
        fill = np.array(first_action, dtype=np.float32).tolist()
        columns = {name: obs[:, place] for place, name in enumerate(self.columns)}
        columns |= {name: actions[:, place] for place, name in enumerate(self.actions)}
        reach = {
            node: back + self._is_action(node)
            for group in (self.layout.plain, self.layout.others)
            for node, back in group.items()
        }
        rows = LogRows(columns, since_start, dict(zip(self.actions, fill, strict=True)))
        return OverLog(rows, past, reach)

    def _is_action(self, node: Node) -> bool:
        return isinstance(node, Column) and node.name in self.actions

    def _state_after(self, over: OverLog) -> Float64Array:
        """An action's register r holds, once the row is done, what was done r rows before it."""
        nodes = [
            Lag(node, back) if self._is_action(node) else node if back == 1 else Lag(node, back - 1)
            for node, back in self.layout.places
        ]
        columns = [over.value(node) for node in (*nodes, *self.layout.recurrences)]
        state = np.empty((len(over.rows), self.layout.size))
        for place, column in enumerate(columns):
            state[:, place] = column
        for place, node in enumerate(self.layout.recurrences, len(nodes)):
            state[:, place] += isinstance(node, Steps)
        return state


@dataclass(frozen=True)
class Signals:
    """What a policy is asked with: a program, what fills the past of an episode that begins, rate limits."""

    program: Program
    first_action: tuple[float, ...] = ()
    """what counts as an action before the first row: the mean of the log; empty: not known yet"""
    rates: tuple[float | None, ...] = ()
    """per action, by how much it may move in a step, in its units; empty: none is limited"""

    def __post_init__(self) -> None:
        for name, values in (("first_action", self.first_action), ("rates", self.rates)):
            numbers = [value for value in values if value is not None]
            if len(values) not in (0, len(self.program.actions)) or not np.isfinite(numbers).all():
                raise DataError(
                    f"{name} must be {len(self.program.actions)} finite numbers, got {list(values)}"
                )
        for name, rate in zip(self.program.actions, self.rates, strict=False):
            if rate is not None and rate <= 0.0:
                raise DataError(f"the rate of {name} must be > 0, got {rate:g}")
            if rate is not None and Lag(Column(name), 1) not in self.program.nodes:
                raise DataError(f"the rate of {name} needs lag({name}) among the observations")

    @property
    def limited(self) -> list[tuple[int, int, float]]:
        """Per limited action: its column, the signal that holds its last value, and its rate."""
        return [
            (column, self.program.nodes.index(Lag(Column(name), 1)), rate)
            for column, (name, rate) in enumerate(zip(self.program.actions, self.rates, strict=False))
            if rate is not None
        ]

    def to_dict(self) -> State:
        """Plain data: texts, and the layout of the state that follows from them."""
        program = self.program
        return {
            "signals": list(program.texts),
            "columns": list(program.columns),
            "actions": list(program.actions),
            "state_size": program.layout.size,
            "first_action": list(self.first_action),
            "rates": list(self.rates),
        }

    @classmethod
    def from_dict(cls, facts: Facts) -> Signals:
        """Read what `to_dict` wrote; texts from a file are data, parsed anew."""
        texts = {name: tuple(map(str, facts[name])) for name in ("signals", "columns", "actions")}
        program = Program(texts["signals"], texts["columns"], texts["actions"])
        if program.layout.size != facts["state_size"]:
            raise DataError(
                f"signals with a state of {facts['state_size']} numbers come from another version: here it "
                f"has {program.layout.size}"
            )
        rates = tuple(None if rate is None else float(rate) for rate in facts["rates"])
        return cls(program, tuple(map(float, facts["first_action"])), rates)


def history_texts(columns: Sequence[str], actions: Sequence[str], rows: int) -> list[str]:
    """What `history: k` stands for: k lags of every column and every action."""
    names = (quoted(name) for name in (*columns, *actions))
    return [f"lag({name}, {back})" for name in names for back in range(1, rows + 1)]


def _into_rows(out: FloatArray, columns: Sequence[Float64Array]) -> None:
    """Columns into rows, a block at a time."""
    whole = [np.broadcast_to(column, len(out)) for column in columns]
    for start in range(0, len(out), BLOCK_ROWS):
        block = slice(start, start + BLOCK_ROWS)
        for place, column in enumerate(whole):
            out[block, place] = column[block]


def observed(text: str, names: Sequence[str], actions: Sequence[str]) -> list[Expression]:
    """Entries of a list of observations; what is to be decided and what comes next are not among them."""
    found = []
    for each in parse_several(text, names):
        if any(isinstance(node, Next) for node in walk(each.node)):
            raise ExpressionError(
                f"expression {shown(each.text)}: next(x) is not known when the policy is asked; it stands in "
                "rewards, costs and flags only"
            )
        if isinstance(each.node, Number):
            raise ExpressionError(
                f"expression {shown(each.text)}: a constant says nothing; name a column, or leave it out"
            )
        found.append(replace(each, node=with_past_actions(each, actions)))
    return found


def with_past_actions(expression: Expression, actions: Collection[str]) -> Node:
    """The formula as the policy can be asked with it: no action in it is that of the row itself."""
    node = with_moved_lags(expression.node, actions)
    inside = (each.of for each in walk(node) if isinstance(each, Lag | Mean | Sum))
    for each in (node, *(each for each in inside if not isinstance(each, Column))):
        if (name := decided(each, actions)) is not None:
            raise ExpressionError(
                f"expression {shown(expression.text)}: {name} is an action, which is what is to be decided; "
                f"an observation may have its past: lag({quoted(name)})"
            )
    return node


def with_moved_lags(node: Node, actions: Collection[str]) -> Node:
    """The formula with lags moved to the actions in it, whose past is filled otherwise than columns'."""

    def moved(node: Node) -> Node:
        if isinstance(node, Lag) and decided(node.of, actions):
            return pushed(node.of, node.rows)
        return rebuilt(node, moved)

    def pushed(node: Node, rows: int) -> Node:
        """A lag of a call is the call of lags; before the first row too."""
        if isinstance(node, Call):
            return rebuilt(node, lambda each: pushed(each, rows))
        if isinstance(node, Lag):
            return moved(Lag(node.of, node.rows + rows))
        return node if isinstance(node, Number) else Lag(moved(node), rows)

    return moved(node)


def decided(node: Node, actions: Collection[str]) -> str | None:
    """An action of the row itself in a formula."""
    if isinstance(node, Column):
        return node.name if node.name in actions else None
    inside = () if isinstance(node, Lag) else children(node)
    return next((name for each in inside if (name := decided(each, actions))), None)


def in_single_precision(node: Node) -> Node:
    """The formula with constants rounded as observations are."""
    if isinstance(node, Number):
        return Number(float(np.float32(node.value)))
    return rebuilt(node, in_single_precision)
