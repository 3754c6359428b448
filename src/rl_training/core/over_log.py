"""Formulas over the rows of a log, all at once: lags as shifts, recurrences as scans."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from rl_training.core.errors import shown
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
    walk,
)
from rl_training.core.types import Array

Float64Array = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
V = TypeVar("V")


class Evaluator(ABC, Generic[V]):
    """The values of nodes, each computed once; arithmetic is given, time is what differs."""

    def __init__(self, arithmetic: Mapping[str, Callable[..., V]]) -> None:
        self.arithmetic = arithmetic
        self.known: dict[Node, V] = {}

    def value(self, node: Node) -> V:
        if node not in self.known:
            self.known[node] = self._computed(node)
        return self.known[node]

    def _computed(self, node: Node) -> V:
        if isinstance(node, Call):
            return self.arithmetic[node.function](*map(self.value, node.inputs))
        return self.number(node.value) if isinstance(node, Number) else self.timed(node)

    @abstractmethod
    def number(self, value: float) -> V: ...

    @abstractmethod
    def timed(self, node: Node) -> V:
        """The value of a column or of a function of time."""


@dataclass(frozen=True)
class LogRows:
    """Columns of consecutive rows, and where in its episode each row is."""

    columns: Mapping[str, Array]
    since_start: IntArray
    """rows since the episode began"""
    first_actions: Mapping[str, float] = field(default_factory=dict)
    """which columns are actions -> what counts as one before the first row of an episode"""

    def __len__(self) -> int:
        return len(self.since_start)


def rows_since_start(ends: BoolArray) -> IntArray:
    """How many rows of its episode lie before each row."""
    rows = np.arange(len(ends))
    begins = np.concatenate([[True], ends[:-1]])[: len(ends)]
    return rows - np.maximum.accumulate(np.where(begins, rows, 0))


@dataclass
class Past:
    """What rows before a segment leave behind: the last values of lagged nodes, where recurrences stand."""

    tails: dict[Node, Float64Array] = field(default_factory=dict)
    carried: dict[Node, float] = field(default_factory=dict)


class OverLog(Evaluator[Float64Array]):
    """Every row of a segment at once."""

    def __init__(self, rows: LogRows, past: Past | None = None, reach: Mapping[Node, int] | None = None):
        super().__init__(ARITHMETIC)
        self.rows, self.past, self.reach = rows, past or Past(), reach or {}
        self.left_behind = Past()
        self.early: dict[int, IntArray] = {}

    def number(self, value: float) -> Float64Array:
        return np.float64(value)  # type: ignore[return-value]  # spreads over the rows of what it meets

    def timed(self, node: Node) -> Float64Array:
        if isinstance(node, Column):
            return np.ascontiguousarray(self.rows.columns[node.name], dtype=np.float64)
        if isinstance(node, Lag):
            return self.lag(node)
        if isinstance(node, Next):
            following = np.append(np.broadcast_to(self.value(node.of), len(self.rows))[1:], np.nan)
            following[:-1][self.rows.since_start[1:] == 0] = np.nan
            return following
        if isinstance(node, Steps):
            return self.rows.since_start.astype(np.float64)
        assert isinstance(node, Mean | Sum)
        return self.recurrence(node)

    def lag(self, node: Lag) -> Float64Array:
        values, back = np.broadcast_to(self.value(node.of), len(self.rows)), node.rows
        tail = self.past.tails.get(node.of, np.zeros(0))
        reach = max(back, self.reach.get(node.of, 0))
        joined = np.concatenate([np.zeros(max(0, reach - len(tail))), tail, values])
        start = len(joined) - len(values)
        lagged = joined[start - back : len(joined) - back].copy()
        early = self.early_rows(back)
        filled = self.rows.first_actions.get(node.of.name) if isinstance(node.of, Column) else None
        if filled is not None:
            lagged[early] = filled
        else:
            lagged[early] = joined[start + early - self.rows.since_start[early]]
        self.left_behind.tails[node.of] = joined[len(joined) - reach :]
        return lagged

    def early_rows(self, back: int) -> IntArray:
        """Rows whose episode had not begun so many rows before."""
        if back not in self.early:
            self.early[back] = np.flatnonzero(self.rows.since_start < back)
        return self.early[back]

    def recurrence(self, node: Mean | Sum) -> Float64Array:
        values = np.broadcast_to(self.value(node.of), len(self.rows)).astype(np.float64)
        first = self.rows.since_start == 0
        carry = self.past.carried.get(node, 0.0)
        if isinstance(node, Mean):
            keep = np.where(first, 0.0, 1.0 - 1.0 / node.rows)
            found = clipped_scan(keep, np.where(first, values, values / node.rows), -np.inf, np.inf, carry)
        else:
            found = clipped_scan(np.where(first, 0.0, 1.0), values, node.low, node.high, carry)
        self.left_behind.carried[node] = float(found[-1])
        return found


def refuse_long_lags(expression: Expression, since_start: IntArray) -> None:
    """A lag that no row of any episode ever sees is a mistake."""
    longest = int(since_start.max(initial=0))
    most = max((node.rows for node in walk(expression.node) if isinstance(node, Lag)), default=0)
    if most > longest:
        raise ExpressionError(
            f"expression {shown(expression.text)}: a lag of {most} rows is longer than any episode (the "
            f"longest has {longest + 1} rows); choose a smaller one, or say where episodes begin (--episode)"
        )


def refuse_no_number(
    expression: Expression, over: OverLog, values: Array, known: BoolArray, place: Callable[[int], str]
) -> None:
    """Name the row where a formula gives no number, and what in it does so."""
    bad = np.flatnonzero(known & ~np.isfinite(values))
    if len(bad):
        row = int(bad[0])
        why = _fault(expression, over, row)
        raise ExpressionError(
            f"expression {shown(expression.text)}: {place(row)} gives no number ({why}); "
            "leave such rows out, or say what counts there: where(x != 0, y / x, 0)"
        )


def _fault(expression: Expression, over: OverLog, row: int) -> str:
    """The first part that gives no number although all that it is made of does."""

    def at(node: Node) -> float:
        return float(np.broadcast_to(over.value(node), len(over.rows))[row])

    with np.errstate(all="ignore"):
        for node in walk(expression.node):
            inputs = [at(each) for each in children(node)]
            if isinstance(node, Call) and np.isfinite(inputs).all() and not np.isfinite(at(node)):
                given = ", ".join(f"{value:g}" for value in inputs)
                return _FAULTS.get(node.function, f"{node.function} of {{}}").format(given)
    return "a cell is empty or infinite"


_FAULTS = {
    "divide": "division by zero: {}",
    "modulo": "division by zero: {}",
    "log": "log of {}",
    "sqrt": "square root of {}",
    "power": "power of {}",
}


def clipped_scan(
    keep: Float64Array, added: Float64Array, low: float, high: float, carry: float
) -> Float64Array:
    """s_t = clip(keep_t s_{t-1} + added_t, low, high) from s_{-1} = carry, in O(sqrt(n)) vector operations.

    The rows are cut into blocks that are scanned side by side. What a block makes of any s is again a clip of
    a line, so a first pass finds that of each block, a loop over blocks what enters each, a second pass the
    values themselves.
    """
    count = len(added)
    length = max(1, int(np.ceil(np.sqrt(count))))
    blocks = -(-count // length)
    padding = blocks * length - count
    keep_at = np.ascontiguousarray(np.pad(keep, (0, padding)).reshape(blocks, length).T)
    added_at = np.ascontiguousarray(np.pad(added, (0, padding)).reshape(blocks, length).T)
    begins = keep_at == 0.0
    begin_here = begins.any(axis=1).tolist()
    bounded = low > -np.inf or high < np.inf

    def continued(position: int, value: Float64Array) -> None:
        """Multiply in place; nothing of the episode before is left where one begins, not even NaN."""
        np.multiply(keep_at[position], value, out=value)
        if begin_here[position]:
            value[begins[position]] = 0.0

    def clipped(value: Float64Array) -> None:
        np.minimum(np.maximum(value, low, out=value), high, out=value)

    with np.errstate(invalid="ignore", over="ignore"):
        slope, shift = np.ones(blocks), np.zeros(blocks)
        lowest, highest = np.full(blocks, -np.inf), np.full(blocks, np.inf)
        for position, more in enumerate(added_at):
            continued(position, slope)
            for value in (shift, lowest, highest) if bounded else (shift,):
                continued(position, value)
                value += more
            if bounded:
                clipped(lowest)
                clipped(highest)
        entering = []
        for block in zip(slope.tolist(), shift.tolist(), lowest.tolist(), highest.tolist(), strict=True):
            entering.append(carry)
            line = block[1] if block[0] == 0.0 else block[1] + block[0] * carry
            carry = min(max(line, block[2]), block[3]) if bounded else line
        value = np.array(entering)
        for position, more in enumerate(added_at):
            continued(position, value)
            value += more
            if bounded:
                clipped(value)
            added_at[position] = value
    return np.ascontiguousarray(added_at.T).reshape(-1)[:count]
