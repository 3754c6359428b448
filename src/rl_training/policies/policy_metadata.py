"""What travels with an exported policy, in every format: one JSON text under one key."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rl_training.core.atomic import plain_json
from rl_training.core.errors import UserError
from rl_training.core.feature_names import FeatureNames
from rl_training.core.json_text import parse_json
from rl_training.core.plain import Facts, State
from rl_training.core.version import library_versions
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
        "features": FeatureNames.from_dict(state["dataset"].get("features")).to_dict(),
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


def parse_metadata(text: str, path: Path) -> State:
    """The metadata of a file; one that a later version wrote is refused."""
    try:
        metadata = parse_json(text)
        version = int(metadata["format_version"])
    except (ValueError, TypeError, KeyError) as problem:
        raise UserError(
            f"policy {path} is damaged: its metadata makes no sense; export it again"
        ) from problem
    if version > FORMAT_VERSION:
        raise UserError(
            f"policy {path} was written by a newer version of rl_training (file format {version}, "
            f"this version reads up to {FORMAT_VERSION}); upgrade rl_training"
        )
    try:
        return upgraded_metadata(metadata) if version == 1 else dict(metadata)
    except (ValueError, TypeError, KeyError, AttributeError) as problem:
        raise UserError(f"policy {path} is damaged: its metadata is incomplete; export it again") from problem
