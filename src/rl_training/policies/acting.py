"""A policy through time: what it remembers, what was done last, and what is played in place of its action.

Everything that acts steps through here: evaluation, collection, a live loop, files of consecutive rows, a
machine. Numpy only, so that an exported policy acts without torch.

Time has one order, and it is kept here: a policy is asked with what was seen up to now and done *before*
now. What was done is the action that a machine really made, whoever chose it; nothing moves on before it is
known (`follow`), so that a step that failed, or an action that nothing came of, can be tried again.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from types import MappingProxyType
from typing import ClassVar, NamedTuple, Protocol, Self

import numpy as np
import numpy.typing as npt

from rl_training.core.errors import CheckpointError, UserError
from rl_training.core.spaces import FeatureNames, FloatArray, Spaces
from rl_training.core.types import Array, Facts, State
from rl_training.policies.guard import LIMIT, NO_GUARD, Fallback, GuardFacts
from rl_training.policies.inputs import Given, Inputs, SignalMemory, rate_limit_of, with_defaults

BoolArray = npt.NDArray[np.bool_]

REMEMBERS = (
    "this policy remembers what it saw and did before: step it with controller = policy.controller(), "
    "controller.reset() where an episode begins, and controller.act(obs)"
)


NO_SIGNAL = (
    "a signal of this policy has no value for what was observed, as where a formula divides by zero: a guard "
    "(export --guard DATA) flags such observations and falls back, or say in the formula what counts there"
)
COUNTED = ("spent", "steps")
"""Inputs that are counted: the cost of an episode before now, and how many steps it has had."""

NOTHING_CHOSEN: Given = MappingProxyType({})


class Memory(Protocol):
    """How the past becomes part of what a policy is asked with; it holds no state of its own.

    A policy carries one (`Policy(…, memory=…)`), from this package or from any other. Of each row it keeps
    `state_size` numbers, which the caller passes in and out.
    """

    kind: ClassVar[str]
    """the name that `register_memory` makes known to checkpoints"""
    feature_dim: int
    """numbers that the policy is asked with"""
    state_size: int
    first_action: tuple[float, ...]
    """what counts as the last action where an episode begins and nobody says what was done before"""

    def features(
        self, obs: FloatArray, last_action: FloatArray, state: Array, first: BoolArray
    ) -> tuple[Array, Array]:
        """What the policy is asked with, `[n, feature_dim]`, and the state afterwards, `[n, state_size]`.

        `last_action` is in the action's units; the state, in double precision, of a row whose episode begins
        (`first`) is zero.
        """

    def to_dict(self) -> Facts:
        """The keywords that make another one, as plain data."""


class Decision(NamedTuple):
    """Actions with how new their observations are: 1 is the guard's limit, beyond it a row is flagged.

    An observation with NaN, infinity or nothing in a place is infinitely new, and the policy has no action
    for it: that is NaN. Where there is no guard, novelty is NaN and nothing is flagged.
    """

    action: FloatArray
    novelty: FloatArray
    flagged: BoolArray

    def row(self, index: int) -> Decision:
        return Decision(*(values[index] for values in self))


Choose = Callable[..., tuple[FloatArray, FloatArray | None]]
"""What a policy is asked with, `[n, feature_dim]`, and chosen inputs by name -> actions, and novelty `[n, 1]`
where there is a guard."""


def known_rows(obs: FloatArray) -> BoolArray:
    """Which observations of `[n, obs_dim]` are wholly there."""
    return np.atleast_1d(np.isfinite(obs).all(axis=-1))


def watched(spaces: Spaces, asked: FloatArray, known: BoolArray, choose: Choose, inputs: Given) -> Decision:
    """What `choose` says where all of an observation is known.

    It is never asked about another row: libraries differ in what they make of NaN.
    """
    if len(known) and not known.any():
        action = np.full((len(known), spaces.action_columns), np.nan, dtype=np.float32)
        novelty: FloatArray | None = np.zeros((len(known), 1), dtype=np.float32)
    else:
        action, novelty = choose(np.where(known[:, None], asked, np.float32(0.0)), **inputs)
    if novelty is None:
        raise UserError(NO_GUARD)
    distance = np.where(known, novelty[:, 0], np.float32(np.inf))
    return Decision(np.where(known[:, None], action, np.float32(np.nan)), distance, distance > LIMIT)


class Acting:
    """The past of `rows` environments or machines: what each did last, and the state of the memory."""

    def __init__(
        self,
        spaces: Spaces,
        memory: Memory | None = None,
        rows: int = 1,
        counter: SignalMemory | None = None,
    ) -> None:
        """`counter` makes the inputs that are counted of what is seen and done."""
        self.spaces, self.memory, self.rows = spaces, memory, rows
        self.last: FloatArray = np.full((rows, spaces.action_columns), np.nan, dtype=np.float32)
        """NaN where nothing was done yet in this episode"""
        self.state: Array = np.zeros((rows, 0 if memory is None else memory.state_size))
        self.first: BoolArray = np.ones(rows, dtype=np.bool_)
        self.after = (self.state, self.first)
        """State and first once the step under way is done"""
        self.counting = None if counter is None else Acting(spaces, counter, rows)
        self._share_last()

    def _share_last(self) -> None:
        if self.counting is not None:
            self.counting.last = self.last

    def counts(self, obs: FloatArray) -> dict[str, npt.ArrayLike | None]:
        """Inputs that are counted, `[rows, 1]` each, as of what is seen now; none where nothing counts."""
        if self.counting is None:
            return {}
        found = self.counting.features(obs).astype(np.float32)
        return {name: found[:, place : place + 1] for place, name in enumerate(COUNTED)}

    def reset(self, previous_action: npt.ArrayLike | None = None, *, rows: BoolArray | None = None) -> None:
        """An episode begins, in the rows of a mask or in all; `previous_action` is what was done before."""
        chosen: BoolArray | slice = slice(None) if rows is None else rows
        self.last[chosen], self.state[chosen], self.first[chosen] = np.nan, 0.0, True
        if self.counting is not None:
            self.counting.reset(rows=rows)
        if previous_action is not None:
            done = np.broadcast_to(self.checked(previous_action, "previous_action"), self.last.shape)
            self.last[chosen] = done[chosen]

    def features(self, obs: FloatArray) -> FloatArray:
        """What the policy is asked with for `[rows, obs_dim]`; an observation with gaps is not remembered."""
        if self.memory is None:
            return obs
        known = known_rows(obs)
        whole = np.where(known[:, None], obs, np.float32(0.0))
        features, state = self.memory.features(whole, self._last_action(), self.state, self.first)
        known &= np.isfinite(features).all(axis=-1)  # a formula may have no value for what is seen
        self.after = (np.where(known[:, None], state, self.state), self.first & ~known)
        return features

    def following(self, obs: FloatArray, action: FloatArray) -> FloatArray:
        """What it would be asked with next, had `action` come of the features just given; nothing moves."""
        if self.memory is None:
            return obs
        return self.memory.features(obs, action, *self.after)[0]

    def follow(self, action: npt.ArrayLike) -> None:
        """This was done on the features just given: time moves on by a step."""
        self.last[:] = action
        if self.memory is not None:
            self.state, self.first = self.after[0].copy(), self.after[1].copy()
        if self.counting is not None:
            self.counting.follow(action)

    def checked(self, action: npt.ArrayLike, name: str) -> FloatArray:
        """What a machine did, or machines, as float32; also outside the policy's bounds."""
        size, values = self.spaces.action_columns, np.asarray(action, dtype=np.float32)
        if values.shape not in ((size,), (self.rows, size)) or not np.isfinite(values).all():
            raise UserError(
                f"{name} must be the action that was played, {size} finite numbers, got {action!r}"
            )
        return values

    def _last_action(self) -> FloatArray:
        assert self.memory is not None
        return np.where(np.isnan(self.last), np.array(self.memory.first_action, np.float32), self.last)

    def state_dict(self) -> State:
        """Where every row is in its episode; with it another process goes on with the very next step."""
        counting = {} if self.counting is None else {"counting": self.counting.state_dict()}
        past = {"last": self.last.copy(), "state": self.state.copy(), "first": self.first.tolist()}
        return {**past, **counting}

    def load_state_dict(self, saved: Facts) -> None:
        last, state = np.array(saved["last"], dtype=np.float32), np.array(saved["state"], dtype=np.float64)
        if (last.shape, state.shape, len(saved["first"])) != (self.last.shape, self.state.shape, self.rows):
            raise CheckpointError("the saved past must be that of as many rows and of the same memory")
        self.last, self.state, self.first = last, state, np.array(saved["first"], dtype=np.bool_)
        if self.counting is not None:
            self.counting.load_state_dict(saved["counting"])
            self._share_last()


class Controller(Acting):
    """A policy in a loop: `act(obs)` gives the action to play now, and why.

    Made for `rows`, it takes an observation of each at a time, `[rows, obs_dim]`. Otherwise it is for one
    machine, and takes one observation `(obs_dim,)` (`None`: it did not come), or several that follow each
    other.
    """

    def __init__(
        self,
        spaces: Spaces,
        choose: Choose,
        memory: Memory | None = None,
        fallback: Fallback | None = None,
        rows: int | None = None,
        counter: SignalMemory | None = None,
    ) -> None:
        super().__init__(spaces, memory, rows or 1, counter)
        self.choose, self.fallback, self.single = choose, fallback, rows is None

    def act(
        self,
        obs: npt.ArrayLike | None,
        applied: npt.ArrayLike | None = None,
        **inputs: npt.ArrayLike | None,
    ) -> Decision:
        """The action to play; `applied` is what was really done in the step before, if something else.

        A policy with inputs of its own, such as a dial, takes them by name, for this step: `dial=0.5`.
        """
        values = self.spaces.check_observations(obs, finite=self.fallback is None)
        if applied is not None:
            self.last[:] = self.checked(applied, "applied")
        if self.single and values.ndim == 2:
            return self._act_on_each(values, inputs)
        if values.shape != (self.rows, self.spaces.obs_dim) and not self.single:
            raise UserError(f"obs must have one row for each of {self.rows}, got shape {values.shape}")
        told = self.decide(np.atleast_2d(values), inputs)
        self.follow(told.action)
        return told.row(0) if self.single else told

    def decide(self, obs: FloatArray, inputs: Given = NOTHING_CHOSEN) -> Decision:
        """The same for checked observations, `[rows, obs_dim]`; time stands still until `follow`."""
        given = {name: value for name, value in inputs.items() if value is not None}
        told = self._told(obs, self.features(obs), {**self.counts(obs), **given})
        if self.fallback is None:
            return told
        action = self._played(told.action, told.flagged, self.last, obs)
        if (limit := rate_limit_of(self.memory)) is not None:
            action = limit.limited(action, self._last_action(), self.spaces)
        return told._replace(action=action)

    def _played(self, own: FloatArray, flagged: BoolArray, last: FloatArray, obs: FloatArray) -> FloatArray:
        """The fallback's actions in place of flagged ones, as far as they may be taken."""
        assert self.fallback is not None
        played = self.fallback.played(own, flagged, last)
        return self.spaces.within_mask(played, own, obs) if self.spaces.masked else played

    def _told(self, obs: FloatArray, asked: FloatArray, inputs: Given) -> Decision:
        if self.fallback is not None:
            return watched(self.spaces, asked, known_rows(obs) & known_rows(asked), self.choose, inputs)
        if self.memory is not None and not known_rows(asked).all():
            raise UserError(NO_SIGNAL)
        action, _ = self.choose(asked, **inputs)
        rows = len(action)
        return Decision(action, np.full(rows, np.nan, dtype=np.float32), np.zeros(rows, dtype=np.bool_))

    def _act_on_each(self, obs: FloatArray, inputs: Given) -> Decision:
        """Of consecutive observations: all at once, as far as none depends on what was done before it."""
        if (self.memory is not None or self.counting is not None) and len(obs):
            told = [self.act(row, **inputs) for row in obs]
            return Decision(*(np.stack(values) for values in zip(*told, strict=True)))
        told_all = self._told(obs, obs, inputs)
        actions = told_all.action.copy()
        if self.fallback is not None:
            for row in np.flatnonzero(told_all.flagged).tolist():
                here, last = slice(row, row + 1), actions[row - 1 : row] if row else self.last
                actions[here] = self._played(actions[here], told_all.flagged[here], last, obs[here])
        if len(actions):
            self.follow(actions[-1])
        return told_all._replace(action=actions)


class ActingPolicy:
    """What a live policy and an exported one have in common: how they are asked, once and through time."""

    spaces: Spaces
    features: FeatureNames = FeatureNames()
    """names and units of its numbers, where the log that it was trained on has them"""
    memory: Memory | None = None
    counter: SignalMemory | None = None
    """how a controller counts the inputs that are counted; none where the columns do not tell"""
    inputs: Inputs = ()
    """numbers that are chosen while it runs; where none is given, each is its default"""

    def with_inputs(self, **chosen: float) -> Self:
        """The same policy with other defaults of its inputs: `policy.with_inputs(dial=0.5)`."""
        other = copy(self)
        other.inputs = with_defaults(self.inputs, chosen)
        return other

    @property
    def asked_spaces(self) -> Spaces:
        """The spaces with as many observations as the policy is asked with, memory and all."""
        if self.memory is None:
            return self.spaces
        return replace(self.spaces, obs_dim=self.memory.feature_dim)

    @property
    def guard_facts(self) -> GuardFacts | None:
        """What is known of its guard."""
        return None

    @abstractmethod
    def act(self, obs: Array, deterministic: bool = True, **inputs: npt.ArrayLike | None) -> FloatArray:
        """`[n, feature_dim]` as the policy is asked -> `[n, action_dim]` actions inside the bounds."""

    @abstractmethod
    def act_with_novelty(
        self, obs: FloatArray, **inputs: npt.ArrayLike | None
    ) -> tuple[FloatArray, FloatArray]:
        """The deterministic actions of a policy with a guard, and how new this is, `[n, 1]`."""

    def predict(
        self, obs: npt.ArrayLike, deterministic: bool = True, **inputs: npt.ArrayLike | None
    ) -> Array:
        """Actions for one observation `(obs_dim,)` or a batch `(n, obs_dim)`, checked; levels by name."""
        if self.memory is not None:
            raise UserError(REMEMBERS)
        values = self.spaces.check_observations(obs)
        actions = self.spaces.in_words(self.act(np.atleast_2d(values), deterministic, **inputs))
        return actions if values.ndim == 2 else actions[0]

    def predict_guarded(self, obs: npt.ArrayLike | None, **inputs: npt.ArrayLike | None) -> Decision:
        """The deterministic actions, how new their observations are, and which are beyond the limit."""
        if self.memory is not None:
            raise UserError(REMEMBERS)
        if self.guard_facts is None:
            raise UserError(NO_GUARD)
        values = self.spaces.check_observations(obs, finite=False)
        rows = np.atleast_2d(values)
        told = watched(self.spaces, rows, known_rows(rows), self.act_with_novelty, inputs)
        return told if values.ndim == 2 else told.row(0)

    def controller(
        self, rows: int | None = None, *, guard: bool = True, deterministic: bool = True
    ) -> Controller:
        """The policy for one machine, or for `rows` of them at once.

        A guard, where there is one, watches and falls back; without `guard`, as evaluations ask for, the
        policy acts alone.
        """
        facts = self.guard_facts if guard else None
        if facts is None:
            return Controller(
                self.spaces,
                lambda asked, **inputs: (self.act(asked, deterministic, **inputs), None),
                self.memory,
                rows=rows,
                counter=self.counter,
            )
        if not deterministic:
            raise UserError("deterministic must be true: a guard watches the policy's own actions")
        return Controller(
            self.spaces, self.act_with_novelty, self.memory, facts.fallback, rows, counter=self.counter
        )

    def guarded(self) -> Controller:
        """The controller of one machine, of a policy that has a guard."""
        if self.guard_facts is None:
            raise UserError(NO_GUARD)
        return self.controller()
