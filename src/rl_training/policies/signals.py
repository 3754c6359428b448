"""The memory of a policy that is asked with signals: lags, means, sums of what was seen and done.

Numpy only, as `acting.py`; what files and rollouts need of the same program in torch is in
`torch_signals.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rl_training.core.over_log import BoolArray
from rl_training.core.signals import Signals
from rl_training.core.spaces import FloatArray, Spaces
from rl_training.core.types import Array, Facts


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
