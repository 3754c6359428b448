"""The policy of a checkpoint: read alone, without the learner it came from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from rl_training.core.checkpoints import load_run_state
from rl_training.core.devices import choose_device
from rl_training.core.errors import CheckpointError, UserError
from rl_training.core.feature_names import FeatureNames
from rl_training.core.plain import Facts
from rl_training.policies.packing import unpack_policy
from rl_training.policies.policy import Policy

NOT_FOR_ACTING = ("learner", "replay", "collector", "exploration", "streams", "callbacks")
"""Parts of a checkpoint that nobody who only acts has to read."""


def load_saved_policy(path: str | Path, device: str = "auto") -> Policy:
    """The saved policy, complete: network, scaling, bounds; it computes in double precision."""
    return policy_of_state(load_run_state(path, skip=NOT_FOR_ACTING), choose_device(device), path)


def policy_of_state(
    state: Facts, device: torch.device | str = "cpu", source: str | Path = "checkpoint"
) -> Policy:
    """The policy in a run's state."""
    if "policy" not in state:
        raise CheckpointError(f"{source} holds no policy; give a checkpoint of a training run")
    try:
        policy = unpack_policy(state["policy"], device).snapshot()
    except UserError as problem:
        raise CheckpointError(f"{source}: {problem}") from problem
    data = state.get("dataset")
    policy.features = FeatureNames.from_dict(data.get("features") if isinstance(data, Mapping) else None)
    return policy
