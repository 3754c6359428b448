"""What travels with an exported policy, in every format: one JSON text under one key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_training.config.limits import MAX_WIDTH
from rl_training.core.atomic import plain_json
from rl_training.core.errors import UserError
from rl_training.core.facts import FactsProblem, fact, read_facts
from rl_training.core.feature_names import FeatureNames
from rl_training.core.json_text import parse_json
from rl_training.core.plain import Facts, State
from rl_training.core.run_state import ReferenceFacts
from rl_training.core.version import library_versions
from rl_training.policies.program import MOST_NODES
from rl_training.policies.version_1 import upgraded_metadata

if TYPE_CHECKING:  # opening a file needs no torch
    from rl_training.policies.policy import Policy
    from rl_training.policies.program import Program

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
    program: ProgramFacts | None = None
    log_std_range: tuple[float, ...] | None = None


def parse_metadata(text: str, path: Path) -> State:
    """The metadata of a file, every entry checked; one that a later version wrote is refused."""
    try:
        metadata = parse_json(text)
        version = int(metadata["format_version"])
    except (ValueError, TypeError, KeyError, OverflowError) as problem:
        raise UserError(
            f"policy {path} is damaged: its metadata makes no sense; export it again"
        ) from problem
    if version > FORMAT_VERSION:
        raise UserError(
            f"policy {path} was written by a newer version of rl_training (file format {version}, "
            f"this version reads up to {FORMAT_VERSION}); upgrade rl_training"
        )
    try:
        known = upgraded_metadata(metadata) if version == 1 else dict(metadata)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as problem:
        raise UserError(f"policy {path} is damaged: its metadata is incomplete; export it again") from problem
    try:
        read_facts(PolicyFacts, known)
    except FactsProblem as problem:
        raise UserError(f"policy {path} is damaged: {problem}; export it again") from None
    return known
