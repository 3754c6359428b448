"""What a file says of its guard, and what is played where an observation is unlike the guard's data.

Numpy only: a deployed policy needs neither torch nor the training code. The distance itself is an output of
the policy's program (`guard_fitting.py` has the formula); `acting.py` applies the fallback.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rl_training.core.errors import UserError
from rl_training.core.schema import SchemaProblem, fact, read_facts
from rl_training.core.spaces import FloatArray, Spaces

METHOD = (
    "distance to the nearest of the centres of the data (k-means), in whitened units (Mahalanobis), divided "
    "by the reach of that centre; 1 is the distance that the stated share of held-out rows stays below"
)
OBSERVATIONS, WITH_ACTIONS = "observations", "observations and actions"
FALLBACKS = ("none", "hold", "action", "rate")
LIMIT = 1.0
"""Novelty beyond which an observation is flagged."""
NO_GUARD = "this policy has no guard: export it with --guard DATA (guard=… in Python)"
OLD_GUARD = (
    "this guard was made by an earlier version and stores no first action: where an observation is flagged "
    "before there is a last action, the middle of the bounds, {}, is played; export with --guard again to "
    "store the mean action of the log, or give fallback_action"
)


@dataclass(frozen=True)
class Fallback:
    """What is played in place of a flagged action, in the action's units.

    `hold` plays the last action again, `action` the stored one, `rate` moves from the last one towards the
    policy's by at most so much a step (0 for a choice, whose last level it holds). Before there is a last
    one, all of them play the stored `action`.
    """

    kind: str
    action: tuple[float, ...]
    """the given one, or else the mean action of the guard's data"""
    rate: tuple[float, ...] | None = None

    def check(self, spaces: Spaces) -> None:
        """Refuse what makes no sense for these actions."""
        if self.kind not in FALLBACKS:
            raise UserError(f"fallback must be one of {', '.join(FALLBACKS)}, got {self.kind!r}")
        if self.kind == "rate" and self.rate is None:
            raise UserError("fallback rate needs fallback_rate, in the action's units")
        for name, values in (("action", self.action), ("rate", self.rate)):
            if values is not None and (
                len(values) != spaces.action_columns or not all(map(math.isfinite, values))
            ):
                raise UserError(
                    f"fallback_{name} must be {spaces.action_columns} finite numbers, got {list(values)}"
                )
        bounds = zip(self.action, spaces.action_low, spaces.action_high, strict=True)
        if any(not low <= value <= high for value, low, high in bounds):
            raise UserError(f"fallback_action must lie inside the action bounds, got {list(self.action)}")
        rates = zip(self.rate or (), spaces.choices or [None] * spaces.action_columns, strict=False)
        if any(value < 0.0 or (value == 0.0 and choice is None) for value, choice in rates):
            raise UserError(f"fallback_rate must be > 0, got {list(self.rate or ())}")

    def played(self, action: FloatArray, flagged: npt.NDArray[np.bool_], last: FloatArray) -> FloatArray:
        """The actions to play, `[n, action_dim]`, given the policy's own (NaN where it has none) and the
        ones before (NaN where there are none).
        """
        unknown = np.isnan(action).any(axis=-1, keepdims=True)
        replaced = flagged[:, None] & (unknown | (self.kind != "none"))
        if not replaced.any():
            return action
        stored = np.array(self.action, dtype=np.float32)
        other = stored if self.kind == "action" else last
        if self.kind == "rate":
            rate = np.array(self.rate, dtype=np.float32)
            other = np.where(unknown, last, np.clip(action, last - rate, last + rate))
        return np.where(replaced, np.where(np.isnan(last), stored, other), action)


@dataclass(frozen=True)
class GuardFacts:
    """What a file says of its guard; the numbers of the formula are constants of the program."""

    points: str
    centres: int = fact(least=1)
    percentile: float = fact()
    threshold: float = fact()
    """distance, in reaches, that this percentage of the held-out rows stays below"""
    rows: int = fact(least=1)
    held_out_rows: int = fact(least=1)
    training_beyond: float = fact()
    """share of the training rows that would be flagged"""
    held_out_beyond: float = fact()
    source: str = fact()
    fallback: Fallback = fact()
    method: str = METHOD

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], spaces: Spaces) -> GuardFacts:
        """Facts out of a file that may say anything; what is missing or odd raises.

        Files of earlier versions need not say a first action: then it is the middle of the bounds.
        """
        fallback = values["fallback"]
        unnamed = isinstance(fallback, Mapping) and fallback.get("action") is None
        if unnamed and fallback["kind"] == "action":
            raise UserError("the guard's fallback must be numbers, got none for fallback action")
        if unnamed:
            fallback = {**fallback, "action": middle_action(spaces)}
        try:
            facts = read_facts(cls, {**values, "fallback": fallback}, others=True)
        except SchemaProblem as problem:
            raise UserError(f"the guard's {problem}") from None
        shares = (facts.training_beyond, facts.held_out_beyond, facts.percentile / 100.0)
        if facts.points not in (OBSERVATIONS, WITH_ACTIONS) or facts.threshold <= 0.0:
            raise UserError("the guard's facts make no sense: unknown points, or a threshold that is not > 0")
        if not all(0.0 <= share <= 1.0 for share in shares):
            raise UserError("the guard's facts make no sense: a share is not between 0 and 1")
        facts.fallback.check(spaces)
        if unnamed:
            warnings.warn(OLD_GUARD.format(list(facts.fallback.action)), stacklevel=2)
        return facts


def middle_action(spaces: Spaces) -> tuple[float, ...]:
    """Half way between the bounds."""
    return tuple(spaces.to_env(np.zeros(spaces.action_dim)).tolist())
