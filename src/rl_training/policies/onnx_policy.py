"""An ONNX policy file evaluated by onnxruntime; needs onnxruntime and numpy only."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from rl_training.core.errors import UserError
from rl_training.core.plain import Facts, State
from rl_training.core.spaces import FloatArray
from rl_training.policies.deployed import DeployedPolicy
from rl_training.policies.onnx_graph import read_graph, read_properties
from rl_training.policies.policy_metadata import METADATA_KEY, parse_metadata
from rl_training.policies.program_size import refuse_large


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
    metadata = checked_metadata(content, path)
    runtime = onnxruntime()
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4  # its complaints come as exceptions, which become one line
    try:
        session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as problem:  # the runtime's exceptions have no common base of their own
        raise UserError(_unreadable(path, str(problem), runtime.__version__)) from problem
    policy = OnnxPolicy(session, metadata)
    check_interface(policy, path)
    return policy


def checked_metadata(content: bytes, path: Path) -> State:
    """What the file says of itself, once its graph is known to be one of ours and of a bearable size."""
    try:
        properties = read_properties(content)
        if METADATA_KEY not in properties:
            raise _Foreign
        metadata = parse_metadata(properties[METADATA_KEY], path)
        graph = read_graph(content)
        refuse_large(graph.steps, graph.constants, metadata["spaces"]["obs_dim"])
    except _Foreign:
        raise UserError(
            f"{path} is not a policy of rl_training: it has no {METADATA_KEY} metadata; "
            "give a file that `rl-training export --format onnx` has written"
        ) from None
    except (UserError, ValueError, LookupError) as problem:
        if str(path) in str(problem):
            raise
        raise UserError(
            f"{path} is not an ONNX file of ours, or it is damaged ({problem}); export the policy again"
        ) from None
    return metadata


class _Foreign(Exception):
    """An ONNX file that somebody else wrote."""


def check_interface(policy: OnnxPolicy, path: Path) -> None:
    """Inputs and outputs must be those that the metadata speaks of."""
    inputs = {each.name: each.shape[-1] for each in policy.session.get_inputs()}
    outputs = {each.name: each.shape[-1] for each in policy.session.get_outputs()}
    if inputs != {"obs": policy.spaces.obs_dim} or outputs != policy.widths:
        raise UserError(f"policy {path} is damaged: its graph does not fit its metadata; export it again")
    try:
        found = policy.compute(np.zeros((2, policy.spaces.obs_dim), dtype=np.float32), tuple(outputs))
    except Exception as problem:  # of the runtime, again
        raise UserError(f"policy {path} is damaged: it cannot be computed; export it again") from problem
    if not all(np.isfinite(values).all() for values in found):
        raise UserError(f"policy {path} is damaged: it gives NaN or infinity; export it again")


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
    return f"{path} is not an ONNX file of ours, or it is damaged; export the policy again"
