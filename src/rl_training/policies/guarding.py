"""What a policy does about observations that its data never saw: facts of a guard, flags, fallbacks.

Numpy only: a deployed policy needs neither torch nor the training code. The distance itself is an output of
the policy's program (`guard.py` has the formula).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from rl_training.core.errors import UserError
from rl_training.core.spaces import FloatArray, Spaces

METHOD = (
    "distance to the nearest of the centres of the data (k-means), in whitened units (Mahalanobis), divided "
    "by the reach of that centre; 1 is the distance that the stated share of held-out rows stays below"
)
OBSERVATIONS, WITH_ACTIONS = "observations", "observations and actions"
FALLBACKS = ("none", "hold", "action", "rate")
LIMIT = 1.0
"""Novelty beyond which an observation is flagged."""


@dataclass(frozen=True)
class Fallback:
    """What is played in place of a flagged action, in the action's units.

    `hold` plays the last action again, `action` a given one, `rate` moves from the last one towards the
    policy's by at most so much a step. Before there is a last one, a given `action` is played, if any.
    """

    kind: str = "none"
    action: tuple[float, ...] | None = None
    rate: tuple[float, ...] | None = None

    def check(self, spaces: Spaces) -> None:
        """Refuse what makes no sense for these actions."""
        if self.kind not in FALLBACKS:
            raise UserError(f"fallback must be one of {', '.join(FALLBACKS)}, got {self.kind!r}")
        for name, values in (("action", self.action), ("rate", self.rate)):
            if values is None:
                if self.kind == name:
                    raise UserError(f"fallback {name} needs fallback_{name}, in the action's units")
            elif len(values) != spaces.action_dim or not all(map(math.isfinite, values)):
                raise UserError(
                    f"fallback_{name} must be {spaces.action_dim} finite numbers, got {list(values)}"
                )
        bounds = zip(self.action or (), spaces.action_low, spaces.action_high, strict=False)
        if any(not low <= value <= high for value, low, high in bounds):
            raise UserError(
                f"fallback_action must lie inside the action bounds, got {list(self.action or ())}"
            )
        if any(value <= 0.0 for value in self.rate or ()):
            raise UserError(f"fallback_rate must be > 0, got {list(self.rate or ())}")

    def played(self, action: FloatArray, flagged: bool, last: FloatArray | None) -> FloatArray:
        """The action to play, given the policy's own and the one played before."""
        if not flagged or self.kind == "none":
            return action
        given = action if self.action is None else np.array(self.action, dtype=np.float32)
        if self.kind == "action" or last is None:
            return given
        if self.kind == "hold":
            return last
        rate = np.array(self.rate, dtype=np.float32)
        limited: FloatArray = np.clip(action, last - rate, last + rate)
        return limited


@dataclass(frozen=True)
class GuardFacts:
    """What a file says of its guard; the numbers of the formula are constants of the program."""

    points: str
    centres: int
    percentile: float
    threshold: float
    """distance, in reaches, that this percentage of the held-out rows stays below"""
    rows: int
    held_out_rows: int
    training_beyond: float
    """share of the training rows that would be flagged"""
    held_out_beyond: float
    source: str
    fallback: Fallback = Fallback()
    method: str = METHOD

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], spaces: Spaces) -> GuardFacts:
        """Facts out of a file that may say anything; what is missing or odd raises."""
        kind, action, rate = (values["fallback"][name] for name in ("kind", "action", "rate"))
        facts = cls(
            str(values["points"]),
            *(_counted(values, "centres"), _number(values, "percentile"), _number(values, "threshold")),
            *(_counted(values, "rows"), _counted(values, "held_out_rows")),
            *(_number(values, "training_beyond"), _number(values, "held_out_beyond")),
            source=str(values["source"]),
            fallback=Fallback(str(kind), _numbers(action), _numbers(rate)),
            method=str(values["method"]),
        )
        shares = (facts.training_beyond, facts.held_out_beyond, facts.percentile / 100.0)
        if facts.points not in (OBSERVATIONS, WITH_ACTIONS) or facts.threshold <= 0.0:
            raise UserError("the guard's facts make no sense: unknown points, or a threshold that is not > 0")
        if not all(0.0 <= share <= 1.0 for share in shares):
            raise UserError("the guard's facts make no sense: a share is not between 0 and 1")
        facts.fallback.check(spaces)
        return facts


class Guarded(NamedTuple):
    """Actions with how new their observations are: 1 is the limit, beyond it a row is flagged."""

    action: FloatArray
    novelty: FloatArray
    flagged: npt.NDArray[np.bool_]


def guarded(action: FloatArray, novelty: FloatArray, *, single: bool) -> Guarded:
    """Of `[n, action_dim]` and `[n, 1]`; of a single observation without the first axis."""
    told = Guarded(action, novelty[:, 0], novelty[:, 0] > LIMIT)
    return Guarded(told.action[0], told.novelty[0], told.flagged[0]) if single else told


class PredictsGuarded(Protocol):
    """A live or an exported policy."""

    spaces: Spaces

    @property
    def guard_facts(self) -> GuardFacts | None: ...

    def predict_guarded(self, obs: npt.ArrayLike) -> Guarded: ...


class Watch:
    """Remembers the last action of one loop and applies the fallback; one object per machine."""

    def __init__(self, fallback: Fallback) -> None:
        self.fallback = fallback
        self.last: FloatArray | None = None

    def reset(self) -> None:
        """A new episode: there is nothing to hold."""
        self.last = None

    def played(self, told: Guarded) -> Guarded:
        """The same with the action to play."""
        self.last = self.fallback.played(told.action, bool(told.flagged), self.last)
        return told._replace(action=self.last)


class GuardedLoop:
    """A policy in a loop: `act(obs)` gives the action to play, with the fallback, and why."""

    def __init__(self, policy: PredictsGuarded) -> None:
        facts = policy.guard_facts
        if facts is None:
            raise UserError(NO_GUARD)
        self.policy, self.watch = policy, Watch(facts.fallback)

    def reset(self) -> None:
        """Call it where an episode begins."""
        self.watch.reset()

    def act(self, obs: npt.ArrayLike) -> Guarded:
        """For one observation, or for the consecutive observations of a batch, one after another."""
        told = self.policy.predict_guarded(obs)
        if told.action.ndim == 1:
            return self.watch.played(told)
        rows = [self.watch.played(Guarded(*row)).action for row in zip(*told, strict=True)]
        return told._replace(action=np.stack(rows) if rows else told.action)


NO_GUARD = "this policy has no guard: export it with --guard DATA (guard=… in Python)"


def _number(values: Mapping[str, Any], name: str) -> float:
    value = values[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise UserError(f"the guard's {name} must be a finite number, got {value!r}")
    return float(value)


def _counted(values: Mapping[str, Any], name: str) -> int:
    value = values[name]
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UserError(f"the guard's {name} must be a whole number >= 1, got {value!r}")
    return value


def _numbers(values: Any) -> tuple[float, ...] | None:
    if values is None:
        return None
    if not isinstance(values, list | tuple):
        raise UserError(f"the guard's fallback must be numbers, got {values!r}")
    return tuple(_number({"fallback": value}, "fallback") for value in values)
