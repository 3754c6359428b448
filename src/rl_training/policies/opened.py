"""What travels with an exported policy, and what every opened policy file offers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rl_training.core.errors import ConfigError, UserError
from rl_training.core.files import parse_json, plain_json
from rl_training.core.schema import MAX_WIDTH, ReferenceFacts, SchemaProblem, fact, read_facts
from rl_training.core.spaces import FeatureNames, FloatArray, Spaces
from rl_training.core.types import Array, Facts, State
from rl_training.core.version import library_versions
from rl_training.policies.acting import NOTHING_CHOSEN, ActingPolicy
from rl_training.policies.export.program import MOST_NODES, upgraded_metadata
from rl_training.policies.guard import GuardFacts
from rl_training.policies.inputs import Given, inputs_of

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
        inputs_of(known.get("inputs"))
    except (SchemaProblem, ConfigError, KeyError, TypeError, ValueError) as problem:
        raise damaged(path, problem) from None
    return known


def input_names(metadata: Facts) -> tuple[str, ...]:
    """What its program is given beside observations."""
    return tuple(each["name"] for each in metadata.get("inputs", ()))


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
        self.inputs = inputs_of(metadata.get("inputs"))
        if metadata.get("guard") is not None:
            self.guard_facts = GuardFacts.from_dict(metadata["guard"], self.spaces)

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
        return dict.fromkeys(names, self.spaces.action_columns) | novelty
