"""A policy under judgement, whatever it is: anything that predicts, and what else it happens to offer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from rl_training.core.errors import DataError, UserError, WrongTypeError
from rl_training.core.expressions import Column, Node
from rl_training.core.over_log import rows_since_start
from rl_training.core.spaces import Spaces
from rl_training.core.streams import torch_generator
from rl_training.data.info import DataInfo
from rl_training.judging.log import Float64Array, FloatArray, JudgedLog
from rl_training.judging.settings import JudgeConfig
from rl_training.judging.verdict import Check
from rl_training.models.actors import draw_many, gaussian_log_prob, squashed_log_prob
from rl_training.models.choices import FactoredActor
from rl_training.policies.acting import REMEMBERS, Controller
from rl_training.policies.inputs import RuntimeInput, SignalMemory, rate_limit_of
from rl_training.policies.opened import DeployedPolicy, FileMemory
from rl_training.policies.policy import Policy

_CHUNK = 16_384
OUTSIDE_TOLERANCE = 0.01
"""Share of logged actions that may lie outside the policy's bounds (by more than this share of the range)."""


@dataclass(frozen=True)
class PolicyActions:
    """A policy's actions at every logged state and at every state that followed, in the user's units.

    Both are `[rows, draws, action_dim]`; a deterministic policy has one draw.
    """

    here: FloatArray
    there: FloatArray


class Predicts(Protocol):
    """All that a judgement asks of a policy: deterministic actions in the user's units."""

    def predict(self, obs: Any, /) -> Any: ...


@runtime_checkable
class Distributed(Protocol):
    """A policy that can say how its draws are distributed: mean and log std in [-1, 1] units."""

    spaces: Spaces

    @property
    def has_distribution(self) -> bool: ...

    def distribution(self, obs: Any, /) -> tuple[Any, Any]: ...


@dataclass(frozen=True)
class JudgedPolicy:
    """One policy by name, asked for actions in pieces and checked on the way."""

    name: str
    predictor: Predicts
    action_dim: int
    parts: Spaces | None = None
    """what the log's actions are, where there are choices among them"""

    @property
    def spaces(self) -> Spaces | None:
        """The policy's own, where it has any."""
        spaces = getattr(self.predictor, "spaces", None)
        return spaces if isinstance(spaces, Spaces) else None

    @property
    def can_draw(self) -> bool:
        return head_of(self.predictor) is not None

    @property
    def counts(self) -> bool:
        """Whether it acts by what an episode has cost so far, which no row of a log says of it."""
        inputs = getattr(self.predictor, "inputs", ())
        return any(isinstance(each, RuntimeInput) and each.counted for each in inputs)

    def asked(self, obs: FloatArray) -> FloatArray:
        """What the policy is asked with, of observations of the log."""
        policy = self.predictor
        return policy.asked(obs) if isinstance(policy, AskedWithSignals) else obs

    def actions(self, obs: FloatArray) -> FloatArray:
        """`[n, obs_dim]` -> `[n, action_dim]`, in the user's units."""
        parts = []
        for start in range(0, len(obs), _CHUNK):
            rows = obs[start : start + _CHUNK]
            given = self.predictor.predict(rows)
            found = np.asarray(given, dtype=np.float32 if self.parts is None else object)
            columns = self.action_dim if self.parts is None else self.parts.action_columns
            if found.shape != (len(rows), columns):
                raise UserError(
                    f"policy {self.name}: predict must give shape {(len(rows), columns)} for "
                    f"{len(rows)} observations of this log, got {found.shape}"
                )
            if self.parts is not None:
                found = self.parts.in_shares(found)
            if not np.isfinite(found).all():
                raise UserError(f"policy {self.name}: predict gave NaN or infinity for logged observations")
            parts.append(found)
        return np.concatenate(parts)

    def log_density(self, obs: FloatArray, unit_actions: FloatArray) -> Float64Array | None:
        """log pi(a|s) in [-1, 1] units, or None where the policy has no density."""
        if not self.can_draw:
            return None
        parts = []
        if (actor := factored(self.predictor)) is not None:
            for rows, mean, log_std in self._distributions(obs):
                given = torch.from_numpy(unit_actions[rows]).double()
                parts.append(actor.density(given, mean, log_std).numpy())
            return np.concatenate(parts)
        density = squashed_log_prob if head_of(self.predictor) == "squashed" else gaussian_log_prob
        for rows, mean, log_std in self._distributions(obs):
            parts.append(density(torch.from_numpy(unit_actions[rows]).double(), mean, log_std).numpy())
        return np.concatenate(parts)

    def drawn(self, obs: FloatArray, noise: Tensor) -> FloatArray:
        """Random actions from N(0, 1) noise `[n, draws, action_dim]`, of its shape, in the user's units."""
        policy, squashed = self.predictor, head_of(self.predictor) == "squashed"
        assert isinstance(policy, Distributed)
        parts = []
        for rows, mean, log_std in self._distributions(obs):
            if (actor := factored(policy)) is not None:
                unit = draw_many(actor, (mean, log_std), noise[rows].to(mean.dtype))
                parts.append(policy.spaces.as_shares.to_env(unit.numpy()))
                continue
            unbounded = mean.unsqueeze(-2) + log_std.exp().unsqueeze(-2) * noise[rows]
            unit = unbounded.tanh() if squashed else unbounded.clamp(-1.0, 1.0)
            parts.append(policy.spaces.to_env(unit.numpy()))
        return np.concatenate(parts)

    def _distributions(self, obs: FloatArray) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Rows and the mean and log std of their actions, piece by piece, in double precision."""
        policy = self.predictor
        assert isinstance(policy, Distributed)
        for start in range(0, len(obs), _CHUNK):
            rows = slice(start, start + _CHUNK)
            given = torch.from_numpy(obs[rows]) if isinstance(policy, Policy) else obs[rows]
            actor = factored(policy)
            spread = policy.distribution(given) if actor is None else in_parts(policy, given)
            mean, log_std = (torch.as_tensor(each).detach().cpu().double() for each in spread)
            if not (mean.isfinite().all() and log_std.isfinite().all()):
                raise UserError(f"policy {self.name}: distribution gave NaN or infinity")
            yield rows, mean, log_std


def factored(policy: Predicts) -> FactoredActor | None:
    """The actor of a policy with choices, where it is at hand and draws."""
    actor = policy.actor if isinstance(policy, Policy) else None
    return actor if isinstance(actor, FactoredActor) else None


@torch.no_grad()
def in_parts(policy: Predicts, obs: FloatArray | Tensor) -> tuple[Tensor, Tensor]:
    """Means of boxes and log-probabilities of levels, and log std."""
    assert isinstance(policy, Policy) and isinstance(policy.actor, FactoredActor)
    return policy.actor.distribution(policy.prepared(torch.as_tensor(obs)))


class AskedWithSignals:
    """A policy asked with the signals of a log, of which its own memory would make some, step by step."""

    def __init__(self, policy: Policy | DeployedPolicy, places: Sequence[int], width: int) -> None:
        self.policy, self.places = policy, list(places)
        self.spaces = replace(policy.spaces, obs_dim=width)
        actor = policy.actor.kind if isinstance(policy, Policy) else policy.metadata["actor"]["kind"]
        self.metadata = {"actor": {"kind": actor}}

    def predict(self, obs: FloatArray) -> FloatArray:
        return self.policy.act(self.asked(obs))

    def asked(self, obs: FloatArray) -> FloatArray:
        return np.ascontiguousarray(obs[:, self.places])

    @property
    def has_distribution(self) -> bool:
        """A rate limit cuts what is drawn, and what is cut has no density; nor are choices drawn here."""
        plain = rate_limit_of(self.policy.memory) is None and not self.policy.spaces.choices
        return self.policy.has_distribution and plain

    def distribution(self, obs: FloatArray) -> tuple[Any, Any]:
        rows = self.asked(obs)
        if isinstance(self.policy, Policy):
            return self.policy.distribution(torch.from_numpy(rows))
        return self.policy.distribution(rows)


class FileWithPast:
    """A policy file that keeps its past itself: stepped through the log with what was seen and done there."""

    def __init__(self, policy: DeployedPolicy, memory: FileMemory, places: Sequence[int], width: int) -> None:
        self.policy, self.memory, self.places = policy, memory, list(places)
        self.spaces = replace(policy.spaces, obs_dim=width)

    def predict(self, obs: FloatArray) -> FloatArray:
        """It has no answer to a row alone."""
        raise UserError(REMEMBERS)

    def in_the_log(self, log: JudgedLog) -> PolicyActions:
        """Its actions in every row and in what followed, had it been asked at every step of the log."""
        memory, since_start = self.memory, rows_since_start(log.ends)
        columns, fill = log.obs[:, self.places], memory.first_action
        after = memory.program.states_over_log(columns, log.actions, since_start, fill)
        first = since_start == 0
        before, previous = np.roll(after, 1, axis=0), np.roll(log.actions, 1, axis=0)
        before[first], previous[first] = 0.0, fill
        here, _ = memory.features(columns, previous, before, first)
        there, _ = memory.features(log.next_obs[:, self.places], log.actions, after, np.zeros_like(first))
        return PolicyActions(*(self.policy.act(asked)[:, None] for asked in (here, there)))

    def through_time(self) -> Callable[[FloatArray], FloatArray]:
        """Its actions from where episodes begin, step by step, each after what it did before."""
        controllers: list[Controller] = []

        def act(obs: FloatArray) -> FloatArray:
            if not controllers:
                controllers.append(self.policy.controller(len(obs), guard=False))
            return controllers[0].act(obs[:, self.places]).action

        return act


def asked_by_log(name: str, policy: Predicts, info: DataInfo) -> Predicts:
    """The policy as it is asked in the rows of a log, whose observations may be signals of more than one."""
    memory = getattr(policy, "memory", None)
    if info.signals is None:
        if isinstance(memory, SignalMemory):
            listed = ", ".join(memory.program.names)
            raise DataError(
                f"policy {name} is asked with {listed}, but {info.source} is read without them: do so "
                f'(--obs "{", ".join(memory.program.texts)}")'
            )
        return policy
    if not isinstance(policy, Policy | DeployedPolicy):
        return policy
    program = info.signals.program
    wanted: Sequence[Node] = [Column(each) for each in policy.features.observations or program.columns]
    if isinstance(memory, SignalMemory):
        wanted = memory.program.nodes
    names = memory.program.names if isinstance(memory, SignalMemory) else policy.features.observations
    places = {node: place for place, node in enumerate(program.nodes)}
    missing = [index for index, node in enumerate(wanted) if node not in places]
    if missing:
        lacks = ", ".join(names[index] for index in missing) if names else "the columns themselves"
        raise DataError(
            f"policy {name} is asked with {lacks}, which {info.source} is read without; read it with all "
            "that the policies are asked with (--obs, --history)"
        )
    if not isinstance(memory, FileMemory):
        return AskedWithSignals(policy, [places[node] for node in wanted], program.width)
    assert isinstance(policy, DeployedPolicy)
    if policy.spaces.choices:
        raise DataError(
            f"policy {name} is a file that keeps its past itself and chooses among levels: judge the run it "
            "was exported from"
        )
    seen = [places.get(Column(each)) for each in memory.program.columns]
    if None in seen:
        hidden = memory.program.columns[seen.index(None)]
        raise DataError(
            f"policy {name} is a file that is asked with {hidden} itself, which {info.source} is read "
            f"without; add it to the observations (--obs)"
        )
    return FileWithPast(policy, memory, [place for place in seen if place is not None], program.width)


def head_of(policy: Predicts) -> str | None:
    """How a draw is made from mean and log std, or None where nothing is drawn."""
    if factored(policy) is not None:
        return FactoredActor.kind
    if not isinstance(policy, Distributed) or not policy.has_distribution:
        return None
    if isinstance(policy, Policy):
        return policy.actor.kind
    kind = getattr(policy, "metadata", {}).get("actor", {}).get("kind")
    return None if kind is None else str(kind)


def check_predicts(name: str, policy: object) -> None:
    """Anything that predicts can be judged, and nothing else."""
    if not callable(getattr(policy, "predict", None)):
        raise WrongTypeError(
            f"policies must have predict(obs), {name} is {type(policy).__name__}; open a file, a checkpoint "
            "or a run with rl_training.load_policy"
        )


def check_fits(policy: JudgedPolicy, log: JudgedLog, source: str, data_spaces: Spaces | None) -> None:
    """A policy of other sizes or action units than the log's cannot be judged with it."""
    spaces = policy.spaces
    if spaces is None:
        return
    if spaces.choices != (() if policy.parts is None else policy.parts.choices):
        raise DataError(
            f"policy {policy.name} acts by {'; '.join(map(str, spaces.parts))}, and the actions of {source} "
            "are not that: give their levels (columns.levels, or --action 'pump{off,on}')"
        )
    sizes = log.obs.shape[1], log.actions.shape[1]
    if (spaces.obs_dim, spaces.action_dim) != sizes:
        raise DataError(
            f"policy {policy.name} has {spaces.obs_dim} observations and {spaces.action_dim} actions, "
            f"{source} has {sizes[0]} and {sizes[1]}: judge it on data of its own kind"
        )
    spaces, data_spaces = spaces.as_shares, None if data_spaces is None else data_spaces.as_shares
    low, high = np.array(spaces.action_low), np.array(spaces.action_high)
    margin = OUTSIDE_TOLERANCE * (high - low)
    outside = ((log.actions < low - margin) | (log.actions > high + margin)).mean(axis=0)
    wrong = int(outside.argmax())
    logged = f"spans [{log.actions[:, wrong].min():g}, {log.actions[:, wrong].max():g}]"
    other_units = False
    if data_spaces is not None:
        stated = np.array(data_spaces.action_low), np.array(data_spaces.action_high)
        logged = f"states the bounds [{stated[0][wrong]:g}, {stated[1][wrong]:g}]"
        other_units = not (np.allclose(stated[0], low) and np.allclose(stated[1], high))
    if outside[wrong] > OUTSIDE_TOLERANCE or other_units:
        raise DataError(
            f"policy {policy.name} acts within [{low[wrong]:g}, {high[wrong]:g}] for action {wrong}, but "
            f"{source} {logged}: are the units the same?"
        )


def actions_in_the_log(
    policies: Sequence[JudgedPolicy], log: JudgedLog, config: JudgeConfig
) -> list[PolicyActions]:
    """Drawn once for the whole log, as the behaviour's next actions were: rows average the chance out.

    All policies use the same noise, so that their order does not depend on luck of their own. A policy that
    cannot be drawn from beside one that can repeats its action.
    """
    draws = config.action_draws if any(each.can_draw for each in policies) else 0

    def actions(policy: JudgedPolicy, obs: FloatArray, name: str) -> FloatArray:
        if not draws or not policy.can_draw:
            return np.repeat(policy.actions(obs)[:, None], max(1, draws), axis=1)
        generator = torch_generator(config.seed, "judge", "drawn actions", name)
        return policy.drawn(obs, torch.randn((len(obs), draws, policy.action_dim), generator=generator))

    def both(policy: JudgedPolicy) -> PolicyActions:
        if isinstance(policy.predictor, FileWithPast):
            found = policy.predictor.in_the_log(log)
            return PolicyActions(
                *(np.repeat(each, max(1, draws), axis=1) for each in (found.here, found.there))
            )
        return PolicyActions(actions(policy, log.obs, "here"), actions(policy, log.next_obs, "there"))

    return [both(each) for each in policies]


def rollout_actions(
    policy: JudgedPolicy, worlds: int, config: JudgeConfig
) -> Callable[[FloatArray], FloatArray]:
    """A policy inside the model, `[worlds * n, obs_dim]` -> `[worlds * n, action_dim]`: one action per row
    and step, a fresh draw where it is judged by draws. Worlds share their noise."""
    if isinstance(policy.predictor, FileWithPast):
        return policy.predictor.through_time()
    if not config.action_draws or not policy.can_draw:
        return policy.actions
    generator = torch_generator(config.seed, "judge", "rollout actions")

    def draw(obs: FloatArray) -> FloatArray:
        noise = torch.randn((len(obs) // worlds, 1, policy.action_dim), generator=generator)
        return policy.drawn(obs, noise.repeat(worlds, 1, 1))[:, 0]

    return draw


def counting_check() -> Check:
    """What a policy that counts was judged as."""
    return Check(
        "warned",
        "It acts by what an episode has cost so far, and is judged as in the first step of one: what it will "
        "cost while it counts cannot be told.",
    )


def draws_check(policy: JudgedPolicy, config: JudgeConfig) -> Check:
    """Whether the policy was judged as was asked: by its draws."""
    if policy.can_draw:
        return Check("passed", f"Judged as it draws its actions, {config.action_draws} draws per state.")
    reason = "It says nothing of how it draws its actions: judged by the deterministic ones."
    return Check("warned", reason)
