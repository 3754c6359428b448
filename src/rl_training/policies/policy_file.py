"""The safetensors policy file: named arrays and one JSON text. Reading it needs numpy and safetensors only.

The file cannot hold code, and it is read by the safetensors library, which checks untrusted offsets.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load, save

from rl_training.core.errors import UserError
from rl_training.policies.graph import PolicyGraph
from rl_training.policies.light_policy import LightPolicy
from rl_training.policies.policy_metadata import METADATA_KEY, parse_metadata

CHECKPOINT_KEY = "rl_training"


def light_policy_bytes(graph: PolicyGraph, metadata: Mapping[str, Any]) -> bytes:
    """The whole file."""
    return save(graph.tensors(), {METADATA_KEY: json.dumps(metadata)})


def open_light(content: bytes, metadata: Mapping[str, Any]) -> LightPolicy:
    """A policy from the bytes of a file that was just made."""
    return LightPolicy(PolicyGraph.restore(metadata["graph"], load(content)), metadata)


def read_policy_file(path: Path) -> LightPolicy:
    """Open a policy file; anything else is refused with what it seems to be."""
    try:
        with safe_open(path, framework="numpy") as file:
            header = file.metadata() or {}
            if METADATA_KEY not in header:
                raise UserError(_not_a_policy(path, header))
            metadata = parse_metadata(header[METADATA_KEY], path)
            tensors = {name: np.asarray(file.get_tensor(name), np.float32) for name in file.keys()}  # noqa: SIM118
        return LightPolicy(PolicyGraph.restore(metadata["graph"], tensors), metadata)
    except UserError:
        raise
    except OSError as problem:
        raise UserError(f"cannot read policy {path}: {problem.strerror or problem}") from problem
    except SafetensorError as problem:
        raise UserError(
            f"{path} is not a safetensors file, or it is damaged; export the policy again"
        ) from problem
    except (KeyError, ValueError, TypeError, AttributeError) as problem:
        raise UserError(
            f"policy {path} is damaged: its parts do not fit together; export it again"
        ) from problem


def _not_a_policy(path: Path, header: Mapping[str, str]) -> str:
    if CHECKPOINT_KEY in header:
        return (
            f"{path} is a training checkpoint, not a policy file; export it first: "
            f"rl-training export --checkpoint {path} --out policy.safetensors"
        )
    return f"{path} is not a policy file of rl_training; give one that `rl-training export` has written"
