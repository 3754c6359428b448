"""An ONNX policy file evaluated by onnxruntime; needs onnxruntime and numpy only."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from rl_training.core.errors import UserError
from rl_training.core.plain import Facts
from rl_training.core.spaces import FloatArray
from rl_training.policies.deployed import DeployedPolicy
from rl_training.policies.policy_metadata import METADATA_KEY, parse_metadata


class OnnxPolicy(DeployedPolicy):
    """One session on one thread: the networks are small, and a second thread costs more than it saves."""

    def __init__(self, session: Any, metadata: Facts) -> None:
        super().__init__(metadata)
        self.session = session

    def compute(self, obs: FloatArray, names: tuple[str, ...]) -> list[FloatArray]:
        outputs: list[FloatArray] = self.session.run(names, {"obs": obs})
        return outputs


def read_onnx_file(path: Path) -> OnnxPolicy:
    """Open an exported ONNX file; a foreign one is refused, because its inputs could mean anything."""
    try:
        content = path.read_bytes()
    except OSError as problem:
        raise UserError(f"cannot read policy {path}: {problem.strerror or problem}") from problem
    return open_onnx(content, path)


def open_onnx(content: bytes, path: Path) -> OnnxPolicy:
    """A policy from the bytes of an ONNX file; `path` is for messages."""
    runtime = onnxruntime()
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4  # its complaints come as exceptions, which become one line
    try:
        session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        header = session.get_modelmeta().custom_metadata_map
    except Exception as problem:  # the runtime's exceptions have no common base of their own
        raise UserError(_unreadable(path, str(problem), runtime.__version__)) from problem
    if METADATA_KEY not in header:
        raise UserError(
            f"{path} is not a policy of rl_training: it has no {METADATA_KEY} metadata; "
            "give a file that `rl-training export --format onnx` has written"
        )
    try:
        policy = OnnxPolicy(session, parse_metadata(header[METADATA_KEY], path))
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise UserError(f"policy {path} is damaged: its metadata is incomplete; export it again") from problem
    check_interface(policy, path)
    return policy


def check_interface(policy: OnnxPolicy, path: Path) -> None:
    """Inputs and outputs must be those that the metadata speaks of."""
    inputs = {each.name: each.shape[-1] for each in policy.session.get_inputs()}
    outputs = {each.name: each.shape[-1] for each in policy.session.get_outputs()}
    if inputs != {"obs": policy.spaces.obs_dim} or outputs != policy.widths:
        raise UserError(f"policy {path} is damaged: its graph does not fit its metadata; export it again")


def onnxruntime() -> ModuleType:
    try:
        return import_module("onnxruntime")
    except ImportError:
        raise UserError("an ONNX policy needs onnxruntime: pip install onnxruntime") from None


def _unreadable(path: Path, complaint: str, version: str) -> str:
    words = complaint.lower()
    if "opset" in words or "ir version" in words or "ir_version" in words:
        return (
            f"{path} needs a newer ONNX opset or file version than onnxruntime {version} has; "
            "upgrade onnxruntime, or export the policy again"
        )
    return f"{path} is not an ONNX file, or it is damaged; export the policy again"
