"""What travels with an exported policy, and what every opened policy file offers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from rl_training.core.errors import UserError
from rl_training.core.files import parse_json, plain_json
from rl_training.core.over_log import BoolArray
from rl_training.core.schema import MAX_WIDTH, ReferenceFacts, SchemaProblem, fact, read_facts
from rl_training.core.spaces import FeatureNames, FloatArray, Spaces
from rl_training.core.types import Array, Facts, State
from rl_training.core.version import library_versions
from rl_training.policies.acting import COUNTED, NOTHING_CHOSEN, REMEMBERS, ActingPolicy
from rl_training.policies.export.program import MOST_NODES, upgraded_metadata
from rl_training.policies.guard import GuardFacts
from rl_training.policies.inputs import Given, Inputs, SignalMemory, columns_of, inputs_of

if TYPE_CHECKING:
    from rl_training.policies.export.program import Program
    from rl_training.policies.policy import Policy


METADATA_KEY = "rl_training_policy"
FORMAT_VERSION = 2


def describe_policy(state: Facts, policy: Policy, program: Program, run: str | None) -> State:
    """Where a policy comes from and what its numbers mean, from the checkpoint it is taken from."""
    config = state["config"]
    metadata = {
        "format_version": FORMAT_VERSION,
        "algo": state["algo"],
        "algo_class": state["algo_class"],
        "env_id": config["env_id"],
        "env_kwargs": config["env_kwargs"],
        "spaces": policy.spaces.to_dict(),
        "features": FeatureNames.from_dict((state["dataset"] or {}).get("features")).to_dict(),
        "actor": {"kind": policy.actor.kind, "draws": policy.actor.draws},
        "observation_steps": [step.kind for step in policy.observation_steps],
        "outputs": list(program.outputs),
        "program": program.description(),
        "guard": None if policy.guard is None else policy.guard.facts.to_dict(),
        **({"inputs": [each.to_dict() for each in policy.inputs]} if policy.inputs else {}),
        **({} if policy.memory is None else {"memory": policy.memory.to_dict()}),
        **({} if policy.counter is None else {"counter": policy.counter.to_dict()}),
        "training": {
            "run": run,
            "seed": config["seed"],
            "global_step": state["counters"]["global_step"],
            "gradient_steps": state["counters"]["gradient_steps"],
            "config": config,
            "data": state["dataset"],
            "versions": state["versions"],
        },
        "scores": state["results"],
        "reference_returns": state["reference"],
        "versions": library_versions(),
    }
    plain: State = plain_json(metadata)
    return plain


@dataclass(frozen=True)
class SpacesFacts:
    """Sizes and bounds."""

    obs_dim: int = fact(least=1)
    action_low: tuple[float, ...] = fact(longest=MAX_WIDTH)
    action_high: tuple[float, ...] = fact(longest=MAX_WIDTH)
    action_levels: tuple[tuple[float | str, ...] | None, ...] = fact((), longest=MAX_WIDTH)
    masked: bool = False


@dataclass(frozen=True)
class ActorFacts:
    """The network's kind, and how a draw is made from its outputs."""

    kind: str
    draws: str


@dataclass(frozen=True)
class ProgramFacts:
    """The operations; `Program` checks each."""

    nodes: tuple[Any, ...] = fact(longest=MOST_NODES)
    outputs: Mapping[str, str] = fact()


@dataclass(frozen=True)
class TrainingFacts:
    """Where the policy comes from."""

    run: str | None
    seed: int
    global_step: int = fact(least=0)
    gradient_steps: int = fact(least=0)
    config: Facts = fact()
    data: Facts | None = fact()
    versions: Mapping[str, str] = fact()


@dataclass(frozen=True)
class PolicyFacts:
    """Every entry of an exported policy's metadata; an ONNX file has its program as its graph."""

    format_version: int
    algo: str
    algo_class: str
    env_id: str | None
    env_kwargs: Facts
    spaces: SpacesFacts
    actor: ActorFacts
    observation_steps: tuple[str, ...]
    outputs: tuple[str, ...]
    training: TrainingFacts
    scores: Facts
    reference_returns: ReferenceFacts | None
    versions: Mapping[str, str]
    features: FeatureNames | None = None
    guard: Facts | None = None
    inputs: tuple[Facts, ...] = ()
    memory: Facts | None = None
    counter: Facts | None = None
    program: ProgramFacts | None = None
    log_std_range: tuple[float, ...] | None = None


def damaged(path: Path, why: object) -> UserError:
    return UserError(f"policy {path} is damaged: {why}; export it again")


def parse_metadata(text: str, path: Path) -> State:
    """The metadata of a file, every entry checked; one that a later version wrote is refused."""
    try:
        metadata = parse_json(text)
        version = int(metadata["format_version"])
    except (ValueError, TypeError, KeyError, OverflowError) as problem:
        raise damaged(path, "its metadata makes no sense") from problem
    if version > FORMAT_VERSION:
        raise UserError(
            f"policy {path} was written by a newer version of rl_training (file format {version}, "
            f"this version reads up to {FORMAT_VERSION}); upgrade rl_training"
        )
    try:
        known = upgraded_metadata(metadata) if version == 1 else dict(metadata)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as problem:
        raise damaged(path, "its metadata is incomplete") from problem
    try:
        read_facts(PolicyFacts, known)
        FileInputs.of(known)
    except (SchemaProblem, UserError, KeyError, TypeError, ValueError) as problem:
        raise damaged(path, problem) from None
    return known


PREVIOUS, FIRST, STATE, NEXT_STATE = "previous_action", "first", "state", "next_state"
"""What a file with a past takes beside observations, and gives beside actions."""


class FileMemory(SignalMemory):
    """The past as a file takes it: `[obs, previous_action, first, state]`, of which the file makes signals.

    The state afterwards is the file's own output `next_state`, computed here too, as it is wanted before the
    file is asked.
    """

    def __init__(self, settings: Facts, spaces: Spaces) -> None:
        super().__init__(**settings)
        refuse_other_columns(self, spaces)
        self.feature_dim = spaces.obs_dim + spaces.action_columns + 1 + self.state_size

    def features(
        self, obs: FloatArray, last_action: FloatArray, state: Array, first: BoolArray
    ) -> tuple[Array, Array]:
        signals, after = super().features(obs, last_action, state, first)
        sound = np.isfinite(signals).all(axis=1, keepdims=True)
        table = np.concatenate([obs, last_action, first[:, None], state], axis=1, dtype=np.float64)
        return np.where(sound, table, np.nan), after


def refuse_other_columns(memory: SignalMemory, spaces: Spaces) -> None:
    sizes = (len(memory.program.columns), len(memory.program.actions))
    if sizes != (spaces.obs_dim, spaces.action_columns) or not memory.first_action:
        raise UserError("its signals do not fit its observations and actions")


def counter_of(settings: Facts, spaces: Spaces) -> SignalMemory:
    """What a controller of a file counts the inputs that are counted with."""
    counter = SignalMemory(**settings)
    refuse_other_columns(counter, spaces)
    if counter.feature_dim != len(COUNTED):
        raise UserError(f"what it counts must be {' and '.join(COUNTED)}")
    return counter


@dataclass(frozen=True)
class FileInputs:
    """What a file's program is given: observations, the past where it has one, numbers chosen meanwhile."""

    spaces: Spaces
    chosen: Inputs
    memory: FileMemory | None
    counter: SignalMemory | None = None

    @classmethod
    def of(cls, metadata: Facts) -> FileInputs:
        spaces, past = Spaces.from_dict(metadata["spaces"]), metadata.get("memory")
        memory = None if past is None else FileMemory(past, spaces)
        counts = metadata.get("counter")
        counter = None if counts is None else counter_of(counts, spaces)
        return cls(spaces, inputs_of(metadata.get("inputs")), memory, counter)

    @property
    def asked_dim(self) -> int:
        """Numbers that a controller asks with."""
        return self.spaces.obs_dim if self.memory is None else self.memory.feature_dim

    @property
    def widths(self) -> dict[str, int]:
        """Every input by name, in the order of the program's, with how many numbers it has for a row."""
        found = {"obs": self.spaces.obs_dim}
        if self.memory is not None:
            found |= {PREVIOUS: self.spaces.action_columns, FIRST: 1}
            found |= {STATE: self.memory.state_size} if self.memory.state_size else {}
        return found | {each.name: 1 for each in self.chosen}

    def given(self, asked: Array, chosen: Given) -> dict[str, Array]:
        """The inputs for what a controller asks with, `[n, …]`."""
        columns: dict[str, Array] = dict(columns_of(self.chosen, chosen, len(asked)))
        if self.memory is None:
            return {"obs": asked, **columns}
        sizes = {name: size for name, size in self.widths.items() if name not in columns}
        ends = np.cumsum(list(sizes.values()))
        found = {
            name: np.ascontiguousarray(part, dtype=np.float64 if name == STATE else np.float32)
            for name, part in zip(sizes, np.split(asked, ends[:-1], axis=1), strict=True)
        }
        return {**found, **columns}


# What every opened policy file offers, whatever computes it.


ACTION = ("action",)
DISTRIBUTION = ("mean", "log_std")
GUARDED = ("action", "novelty")


class DeployedPolicy(ActingPolicy, ABC):
    """`predict(obs)`: raw observations in, actions in the environment's units and bounds out."""

    guard_facts: GuardFacts | None = None

    def __init__(self, metadata: Facts) -> None:
        self.metadata = dict(metadata)
        self.spaces = Spaces.from_dict(metadata["spaces"])
        self.features = FeatureNames.from_dict(metadata.get("features"))
        self.file_inputs = FileInputs.of(metadata)
        self.inputs, self.memory = self.file_inputs.chosen, self.file_inputs.memory
        self.counter = self.file_inputs.counter
        if metadata.get("guard") is not None:
            self.guard_facts = GuardFacts.from_dict(metadata["guard"], self.spaces)

    def with_inputs(self, **chosen: float) -> Self:
        other = super().with_inputs(**chosen)
        other.file_inputs = replace(self.file_inputs, chosen=other.inputs)
        return other

    def act(self, obs: Array, deterministic: bool = True, **inputs: npt.ArrayLike | None) -> FloatArray:
        if not deterministic:
            raise UserError("deterministic must be true: an exported policy has no random stream")
        (actions,) = self.compute(obs, ACTION, inputs)
        return actions

    def act_with_novelty(
        self, obs: FloatArray, **inputs: npt.ArrayLike | None
    ) -> tuple[FloatArray, FloatArray]:
        action, novelty = self.compute(obs, GUARDED, inputs)
        return action, novelty

    def distribution(self, obs: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
        """Mean and log std in [-1, 1] units; `metadata["actor"]["draws"]` says how to draw from them."""
        if not self.has_distribution:
            raise UserError("this file holds no distribution: export it with --distribution")
        if self.memory is not None:
            raise UserError(REMEMBERS)
        values = self.spaces.check_observations(obs)
        mean, log_std = self.compute(np.atleast_2d(values), DISTRIBUTION)
        return (mean, log_std) if values.ndim == 2 else (mean[0], log_std[0])

    @property
    def has_distribution(self) -> bool:
        return "log_std" in self.metadata["outputs"]

    @abstractmethod
    def compute(
        self, obs: FloatArray, names: tuple[str, ...], inputs: Given = NOTHING_CHOSEN
    ) -> list[FloatArray]:
        """Named outputs for checked observations `[n, obs_dim]`, and for inputs where some are chosen."""

    @property
    def widths(self) -> dict[str, int]:
        """Every output that the metadata speaks of, and how many numbers it has for an observation."""
        names = [*ACTION, *(DISTRIBUTION if self.has_distribution else ())]
        novelty = {} if self.guard_facts is None else {"novelty": 1}
        size = 0 if self.memory is None else self.memory.state_size
        state = {NEXT_STATE: size} if size else {}
        return dict.fromkeys(names, self.spaces.action_columns) | novelty | state
