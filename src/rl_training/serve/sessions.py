"""Machines that ask for actions: one controller with memory each, numbers by name, gaps never an error."""

from __future__ import annotations

import json
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

import numpy as np

from rl_training.core.drift import RECOMMENDED
from rl_training.core.errors import UserError, did_you_mean, shown
from rl_training.core.spaces import FloatArray
from rl_training.core.types import Facts, State
from rl_training.policies.acting import Controller
from rl_training.policies.inputs import Inputs, settable, with_defaults
from rl_training.policies.opened import DeployedPolicy

Mode = Literal["shadow", "advise", "act"]
MODES: tuple[Mode, ...] = ("shadow", "advise", "act")
MOST_SESSIONS = 10_000
OWN_KEYS = ("session", "applied", "reset")
"""What a call holds beside the columns that the policy observes."""


@dataclass
class Session:
    """One machine: where it is in its episode."""

    controller: Controller
    policy: Served
    episode: str
    """its name and when it began, unique in the decision log"""
    steps: int = 0
    last: FloatArray | None = None
    """what was done in the last step, as far as it is known"""
    last_step: str = ""
    """the decision that `applied` of the next call belongs to"""
    seen: float = field(default_factory=time.monotonic)


@dataclass(frozen=True)
class Answer:
    """What a call comes to: the reply, and the row of the decision log."""

    reply: State
    row: State
    applied_before: tuple[str, State] | None
    """the decision before this one and what was really done in it, where the call says so"""


@dataclass(frozen=True)
class Served:
    """A policy as a service knows it: by the names of its columns."""

    policy: DeployedPolicy
    digest: str
    """sixteen hex digits of its file"""

    @property
    def observations(self) -> tuple[str, ...]:
        named, size = self.policy.features.observations, self.policy.spaces.obs_dim
        return named if len(named) == size else tuple(f"obs_{index}" for index in range(size))

    @property
    def actions(self) -> tuple[str, ...]:
        named, size = self.policy.features.actions, self.policy.spaces.action_columns
        return named if len(named) == size else tuple(f"action_{index}" for index in range(size))

    def named(self, action: FloatArray | None) -> State | None:
        """An action by its names, in the log's words; none where there is none."""
        if action is None or not np.isfinite(action).all():
            return None
        words = self.policy.spaces.in_words(action)
        values = [each.item() if hasattr(each, "item") else each for each in words]
        return dict(zip(self.actions, values, strict=True))


class Sessions:
    """All machines that one service answers, and what it answers them."""

    def __init__(self, served: Served, mode: Mode, idle: float = 3600.0) -> None:
        self.served, self.mode, self.idle = served, mode, idle
        self.open: OrderedDict[str, Session] = OrderedDict()
        self.inputs = defaults_of(served.policy.inputs)
        """what is chosen for every machine, such as the dial"""

    def act(self, call: Facts, clock: Callable[[], float] = time.time) -> Answer:
        """Answer one call; what it says wrongly is a one-line error, and then nothing has moved."""
        started = time.perf_counter()
        name, reset = _session_name(call), _flag(call, "reset")
        applied = self._applied(call.get("applied"))
        obs, missing, ignored = self._observation(call)
        session, fresh = self._session(name, reset)
        before = self._note_applied(session, applied, fresh)
        action, novelty, flagged, reasons = self._decide(session, obs, missing)
        if self.mode == "shadow" and session.steps and applied is None:
            reasons.append("applied is missing: the action recommended before counts as done")
        if fresh:
            reasons.append("an episode begins")
        session.last_step = f"{session.episode}/{session.steps}"
        recommended = session.policy.named(action)
        answered = session.policy.named(applied) if self.mode == "shadow" else recommended
        latency = time.perf_counter() - started
        reply: State = {
            "session": name,
            "step": session.steps,
            "mode": self.mode,
            "action": answered,
            "novelty": None if not math.isfinite(novelty) else novelty,
            "flagged": flagged,
            "reasons": reasons,
            "policy": session.policy.digest,
            **self.inputs,
        }
        if ignored:
            reply["ignored"] = ignored
        row: State = {
            "decision": session.last_step,
            "session": name,
            "episode": session.episode,
            "step": session.steps,
            "at": clock(),
            **dict(zip(session.policy.observations, obs.tolist(), strict=True)),
            **{f"{RECOMMENDED}{key}": value for key, value in (recommended or {}).items()},
            **((recommended or {}) if self.mode == "act" else {}),
            "novelty": reply["novelty"],
            "flagged": int(flagged),
            "policy": session.policy.digest,
            "inputs": json.dumps(self.inputs) if self.inputs else None,
            "served_as": self.mode,
            "latency_ms": latency * 1000.0,
        }
        session.steps += 1
        return Answer(reply, row, before)

    def reset(self, call: Facts) -> str:
        """The next call of this machine begins an episode; returns the machine's name."""
        name, done = _session_name(call), self._applied(call.get("previous_action"), "previous_action")
        session, _ = self._session(name, reset=True)
        session.controller.reset(done)
        session.last = done
        return name

    def choose(self, inputs: Mapping[str, float]) -> None:
        """Another position of the dial, for all machines from their next call on."""
        for name, value in inputs.items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise UserError(f"{name} must be a number, got {shown(value)}")
        known = settable(self.served.policy.inputs)
        self.inputs = defaults_of(with_defaults(known, {**self.inputs, **inputs}))

    def swap(self, served: Served) -> None:
        """Another policy for every machine from its next call on; it must speak of the same columns."""
        for kind in ("observations", "actions"):
            new, old = getattr(served, kind), getattr(self.served, kind)
            if new != old:
                raise UserError(
                    f"the new policy's {kind} must be those of the old one ({', '.join(old)}), "
                    f"it has {', '.join(new)}"
                )
        defaults = defaults_of(served.policy.inputs)
        kept = defaults.keys() & self.inputs.keys()
        self.served, self.inputs = served, {**defaults, **{name: self.inputs[name] for name in kept}}

    # ---- parts of a call

    def _observation(self, call: Facts) -> tuple[FloatArray, list[str], list[str]]:
        """The numbers that the policy observes, NaN where one is missing, and names that nobody asked for."""
        names = self.served.observations
        values = np.array([_number(call.get(name), name) for name in names], dtype=np.float32)
        ignored = [name for name in call if name not in names and name not in OWN_KEYS]
        if ignored and not any(name in call for name in names):
            hint = did_you_mean(ignored[0], names)
            raise UserError(
                f"{shown(ignored[0])} is not a column that the policy observes{hint}; it observes "
                f"{', '.join(names)}"
            )
        return values, [name for name, value in zip(names, values, strict=True) if math.isnan(value)], ignored

    def _applied(self, given: object, key: str = "applied") -> FloatArray | None:
        """What was really done in the step before, in the order of the policy's actions."""
        if given is None:
            return None
        names, spaces = self.served.actions, self.served.policy.spaces
        if not isinstance(given, Mapping) or {*given} != {*names}:
            raise UserError(f"{key} must have a value for each of {', '.join(names)}, got {shown(given)}")
        cells: Sequence[object] = [given[name] for name in names]
        columns = []
        for index, (name, cell) in enumerate(zip(names, cells, strict=True)):
            choice = spaces.choices[index] if spaces.choices else None
            if choice is not None:
                place = int(choice.places(np.array([cell], dtype=object))[0])
                columns.append(float(choice.numbers[place]))
            elif math.isnan(number := _number(cell, f"{key}.{name}")):
                raise UserError(f"{key}.{name} must be a finite number, got {shown(cell)}")
            else:
                columns.append(number)
        return np.array(columns, dtype=np.float32)

    def _session(self, name: str, reset: bool) -> tuple[Session, bool]:
        """The machine of that name; one that was silent for too long, or says so, begins an episode."""
        now = time.monotonic()
        found = self.open.get(name)
        if found is not None and not reset and now - found.seen <= self.idle:
            found.seen = now
            self.open.move_to_end(name)
            if found.policy is not self.served:
                previous = found.last
                found.policy, found.controller = self.served, self.served.policy.controller()
                found.controller.reset(previous)
            return found, False
        self._forget(now)
        begun = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        self.open[name] = Session(self.served.policy.controller(), self.served, f"{name}/{begun}")
        self.open.move_to_end(name)
        return self.open[name], True

    def _forget(self, now: float) -> None:
        """Make room: machines that fell silent first go first."""
        while self.open:
            name, oldest = next(iter(self.open.items()))
            if now - oldest.seen <= self.idle and len(self.open) < MOST_SESSIONS:
                return
            del self.open[name]

    def _note_applied(
        self, session: Session, applied: FloatArray | None, fresh: bool
    ) -> tuple[str, State] | None:
        if applied is None:
            return None
        session.last = applied
        if fresh or not session.last_step:
            session.controller.reset(applied)
            return None
        session.controller.last[:] = session.controller.checked(applied, "applied")
        done = session.policy.named(applied)
        return None if done is None else (session.last_step, done)

    def _decide(
        self, session: Session, obs: FloatArray, missing: list[str]
    ) -> tuple[FloatArray | None, float, bool, list[str]]:
        """Action, novelty, whether it is flagged, and why."""
        reasons = [f"{name} is missing" for name in missing]
        if missing and session.controller.fallback is None:
            return self._standing_in(session, obs), math.inf, True, [*reasons, "the last action stands in"]
        told = session.controller.act(obs, **self.inputs)
        flagged = bool(told.flagged)
        if flagged and not missing:
            reasons.append(f"unlike the guard's data: novelty {float(told.novelty):.3g}, the limit is 1")
        session.last = told.action
        return told.action, float(told.novelty), flagged, reasons

    def _standing_in(self, session: Session, obs: FloatArray) -> FloatArray | None:
        """The last action; where the mask of now rules it out, the first level that may be taken."""
        spaces, last = session.policy.policy.spaces, session.last
        if last is None or not spaces.masked:
            return last
        allowed: FloatArray = spaces.within_mask(last[None], np.full_like(last[None], np.nan), obs[None])[0]
        return allowed


def defaults_of(inputs: Inputs) -> dict[str, float]:
    """What is chosen where nobody chooses."""
    return {each.name: each.default for each in settable(inputs)}


def _session_name(call: Facts) -> str:
    name = call.get("session", "default")
    if not isinstance(name, str) or not 0 < len(name) <= 200 or not name.isprintable():
        raise UserError(f"session must be a name of up to 200 printable characters, got {shown(name)}")
    return name


def _flag(call: Facts, key: str) -> bool:
    value = call.get(key, False)
    if not isinstance(value, bool):
        raise UserError(f"{key} must be true or false, got {shown(value)}")
    return value


def _number(value: object, name: str) -> float:
    """A number as float, NaN for nothing, NaN and infinity; text is a mistake of the caller."""
    if value is None:
        return math.nan
    if isinstance(value, bool):
        return float(value)
    if not isinstance(value, int | float):
        raise UserError(f"{name} must be a number or null, got {shown(value)}")
    try:
        number = float(np.float32(value))
    except OverflowError:
        return math.nan
    return number if math.isfinite(number) else math.nan
