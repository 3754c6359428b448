"""What a policy is given beside what it sees now: numbers chosen while it runs, and signals of the past.

Numpy only, as `acting.py`; the same signals in torch, for files and rollouts, are in `torch_signals.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from rl_training.core.errors import ConfigError, UserError, did_you_mean
from rl_training.core.over_log import BoolArray
from rl_training.core.signals import Signals
from rl_training.core.spaces import FloatArray, Spaces
from rl_training.core.types import Array, Facts, State

Given = Mapping[str, npt.ArrayLike | None]
"""Name -> one number, or one per row; nothing stands for the default."""

LARGEST = 1e9
"""Bound of a number that could be anything."""

RESERVED = ("obs", "action", "applied", "deterministic", "first", "novelty", "previous_action", "state")
"""Names that calls and files use for other things."""


@dataclass(frozen=True)
class RuntimeInput:
    """One such number: between which bounds, and what it is where nobody chooses."""

    name: str
    low: float
    high: float
    default: float
    counted: bool = False
    """whether a controller that knows how gives it by itself, such as what was spent in an episode"""

    def __post_init__(self) -> None:
        if not self.name.isidentifier() or self.name in RESERVED:
            raise ConfigError(
                f"the name of an input must be a word of its own such as dial, got {self.name!r}"
            )
        numbers = (self.low, self.default, self.high)
        if not all(map(math.isfinite, numbers)) or not self.low <= self.default <= self.high:
            raise ConfigError(
                f"input {self.name} must have low <= default <= high, got {self.low}, {self.default}, "
                f"{self.high}"
            )

    @classmethod
    def from_dict(cls, values: Facts) -> RuntimeInput:
        low, high, default = (float(values[name]) for name in ("low", "high", "default"))
        return cls(str(values["name"]), low, high, default, bool(values.get("counted", False)))

    def to_dict(self) -> State:
        return {name: value for name, value in asdict(self).items() if value is not False}

    def column(self, given: npt.ArrayLike | None, rows: int) -> FloatArray:
        """`[rows, 1]`: what was chosen, for all rows or for each, or the default."""
        if given is None:
            return np.full((rows, 1), self.default, dtype=np.float32)
        try:
            values = np.asarray(given, dtype=np.float32)
        except (TypeError, ValueError):
            values = np.array(np.nan, dtype=np.float32)
        if (
            values.shape not in ((), (1,), (rows,), (rows, 1))
            or not ((values >= self.low) & (values <= self.high)).all()
        ):
            raise UserError(
                f"{self.name} must be a number from {self.low:g} to {self.high:g}, or one per row, "
                f"got {given!r}"
            )
        return np.array(np.broadcast_to(values.reshape(-1, 1), (rows, 1)))


Inputs = tuple[RuntimeInput, ...]


def settable(inputs: Inputs) -> Inputs:
    """Those that people choose; the others are counted."""
    return tuple(each for each in inputs if not each.counted)


def columns_of(inputs: Inputs, given: Given, rows: int) -> dict[str, FloatArray]:
    """A column `[rows, 1]` for every input; a name that no input has is refused."""
    refuse_unknown(inputs, given)
    return {each.name: each.column(given.get(each.name), rows) for each in inputs}


def with_defaults(inputs: Inputs, chosen: Mapping[str, float]) -> Inputs:
    """The inputs with other defaults."""
    refuse_unknown(inputs, chosen)
    for each in inputs:
        each.column(chosen.get(each.name), 1)  # says so where it is out of bounds
    return tuple(replace(each, default=float(chosen.get(each.name, each.default))) for each in inputs)


def refuse_unknown(inputs: Inputs, given: Mapping[str, Any]) -> None:
    known = [each.name for each in inputs]
    for name, value in given.items():
        if name not in known and value is not None:
            has = f"its inputs are {', '.join(known)}" if known else "it has no inputs beside observations"
            raise UserError(f"this policy has no {name}{did_you_mean(name, known)}; {has}")


def inputs_of(described: Sequence[Facts] | None) -> Inputs:
    """The inverse of `to_dict` for each."""
    return tuple(RuntimeInput.from_dict(each) for each in described or ())


@dataclass(frozen=True)
class RateLimit:
    """By how much actions may move in a step from what was done before it: the last step of acting.

    The action that runs is clip(action, before - rate, before + rate), where what was done before counts as
    on the bounds if it lies outside of them, so that no action ever does.
    """

    columns: tuple[int, ...]
    """which actions are limited"""
    signals: tuple[int, ...]
    """which signal holds the last value of each"""
    rates: FloatArray

    @classmethod
    def of(cls, signals: Signals) -> RateLimit | None:
        """The limits of a policy; none where no action has one."""
        if not (limited := signals.limited):
            return None
        columns, places, rates = zip(*limited, strict=True)
        return cls(tuple(columns), tuple(places), np.array(rates, dtype=np.float32))

    def limited(self, actions: FloatArray, before: FloatArray, spaces: Spaces) -> FloatArray:
        """Actions `[n, action_columns]` as they may run after `before`, of the same shape."""
        low, high = (
            np.array(bounds, dtype=np.float32)[list(self.columns)]
            for bounds in (spaces.action_low, spaces.action_high)
        )
        last = np.clip(before[:, self.columns], low, high).astype(np.float64)
        least, most = np.float32(last - self.rates), np.float32(last + self.rates)
        limited = actions.copy()
        limited[:, self.columns] = np.clip(actions[:, self.columns], least, most)
        return limited

    def before(self, asked: FloatArray, spaces: Spaces) -> FloatArray:
        """What was done before, out of the signals; where nothing is limited, nothing is said."""
        last = np.zeros((len(asked), spaces.action_columns), dtype=np.float32)
        last[:, self.columns] = asked[:, self.signals]
        return last


class SignalMemory:
    """`Memory` of a program of signals, known to checkpoints by its texts."""

    kind: ClassVar[str] = "signals"

    def __init__(
        self,
        signals: Sequence[str],
        columns: Sequence[str],
        actions: Sequence[str],
        state_size: int,
        first_action: Sequence[float],
        rates: Sequence[float | None] = (),
    ) -> None:
        facts = {"signals": signals, "columns": columns, "actions": actions, "state_size": state_size}
        self.signals = Signals.from_dict({**facts, "first_action": first_action, "rates": rates})
        self.program = self.signals.program
        self.first_action = self.signals.first_action
        self.feature_dim, self.state_size = self.program.width, self.program.layout.size
        self.rate_limit = RateLimit.of(self.signals)

    @classmethod
    def of(cls, signals: Signals) -> SignalMemory:
        return cls(**signals.to_dict())

    def features(
        self, obs: FloatArray, last_action: FloatArray, state: Array, first: BoolArray
    ) -> tuple[FloatArray, Array]:
        return self.program.step(obs, last_action, state, first)

    def to_dict(self) -> Facts:
        return self.signals.to_dict()


def rate_limit_of(memory: object) -> RateLimit | None:
    """The limits that a policy's memory holds; a memory of others has none."""
    limit = getattr(memory, "rate_limit", None)
    return limit if isinstance(limit, RateLimit) else None
