"""Open an exported policy with no more than the file needs."""

from __future__ import annotations

from pathlib import Path

from rl_training.core.errors import UserError
from rl_training.policies.deployed import DeployedPolicy
from rl_training.policies.policy_metadata import METADATA_KEY


def load_policy(path: str | Path) -> DeployedPolicy:
    """A policy that acts: `load_policy("policy.safetensors").predict(obs)`.

    A `.safetensors` file needs numpy and safetensors, an `.onnx` file numpy and onnxruntime; neither needs
    torch or Gymnasium, and neither can run code.
    """
    file = Path(path)
    if not file.is_file():
        raise UserError(f"policy {path} does not exist; give a file that `rl-training export` has written")
    if file.suffix == ".onnx":
        from rl_training.policies.onnx_policy import read_onnx_file

        return read_onnx_file(file)
    if file.suffix == ".safetensors":
        from rl_training.policies.light_policy import read_policy_file

        return read_policy_file(file)
    if file.suffix == ".pt":
        raise UserError(
            f"{path} is TorchScript, which is a program: open it with torch.jit.load if you trust its "
            "source, or export the policy as .onnx or .safetensors"
        )
    raise UserError(f"a policy file ends in .safetensors or .onnx, got {str(path)!r}")


def is_policy_file(path: Path) -> bool:
    """Whether a path names an exported policy; what cannot be read is left to the loader's message."""
    if path.suffix == ".onnx":
        return True
    start = b'{"__metadata__":{"' + METADATA_KEY.encode()
    try:
        with path.open("rb") as file:
            return file.read(8 + len(start))[8:] == start
    except OSError:
        return False
