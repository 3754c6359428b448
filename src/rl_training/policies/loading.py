"""Open a policy with no more than its file needs: an exported one without torch, that of a run with it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from rl_training.core.errors import UserError, WrongTypeError
from rl_training.policies.opened import METADATA_KEY, DeployedPolicy

if TYPE_CHECKING:  # opening an exported file needs no torch
    from rl_training.policies.policy import Policy

CHECKPOINT_KEY = "rl_training"


def load_policy(path: str | os.PathLike[str]) -> Policy | DeployedPolicy:
    """A policy that acts: `load_policy("policy.safetensors").predict(obs)`.

    Opens exported files, checkpoints and run directories (their newest checkpoint). An exported
    `.safetensors` file needs numpy and safetensors, an `.onnx` file numpy and onnxruntime; neither needs
    torch or Gymnasium, and none of them can run code.
    """
    if not isinstance(path, str | os.PathLike):
        raise WrongTypeError(
            f"path must name a policy file, a checkpoint or a run directory, got {type(path).__name__}"
        )
    file = Path(path)
    if not file.exists():
        raise UserError(f"{path} does not exist; give a policy file, a checkpoint or a run directory")
    if file.is_dir() or _starts_with(file, CHECKPOINT_KEY):
        from rl_training.policies.policy import load_saved_policy

        return load_saved_policy(file)
    return load_exported(file)


def load_exported(file: Path) -> DeployedPolicy:
    """The policy of a file that `rl-training export` has written."""
    if file.suffix == ".onnx":
        from rl_training.policies.export.onnx import read_onnx_file

        return read_onnx_file(file)
    if file.suffix == ".safetensors":
        from rl_training.policies.export.numpy import read_policy_file

        return read_policy_file(file)
    if file.suffix == ".pt":
        raise UserError(
            f"{file} is TorchScript, which is a program: open it with torch.jit.load if you trust its "
            "source, or export the policy as .onnx or .safetensors"
        )
    raise UserError(f"a policy file ends in .safetensors or .onnx, got {str(file)!r}")


def is_policy_file(path: Path) -> bool:
    """Whether a path names an exported policy; what cannot be read is left to the loader's message."""
    return path.suffix == ".onnx" or _starts_with(path, METADATA_KEY)


def _starts_with(path: Path, key: str) -> bool:
    """Whether this is the first entry of the metadata of a safetensors file."""
    start = b'{"__metadata__":{"' + key.encode() + b'":'
    try:
        with path.open("rb") as file:
            return file.read(8 + len(start))[8:] == start
    except OSError:
        return False
