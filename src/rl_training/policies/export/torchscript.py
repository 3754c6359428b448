"""A policy as a TorchScript module, for libtorch in C++ and for torch without this package."""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from rl_training.core.spaces import FloatArray
from rl_training.core.types import Facts
from rl_training.policies.acting import NOTHING_CHOSEN
from rl_training.policies.export.program import upgraded_metadata
from rl_training.policies.export.trace import Outputs
from rl_training.policies.inputs import Given
from rl_training.policies.opened import FileInputs
from rl_training.policies.policy import Policy

METADATA_FILE = "policy.json"
"""Name of the metadata inside the archive; `torch.jit.load(path, _extra_files={...})` reads it."""


def torchscript_bytes(policy: Policy, metadata: Facts) -> bytes:
    """The archive. The computation has no branch on data, so that tracing it once says everything.

    The weights are stored as the float64 they are computed with: a cast in the program would be done again at
    every call, and cost more than the action.
    """
    exact = policy.snapshot().requires_grad_(False)
    several = len(metadata["outputs"]) > 1  # one output is no tuple
    outputs = Outputs(exact, "log_std" in metadata["outputs"])
    module = outputs if several or exact.memory is not None else exact
    archive = io.BytesIO()
    described = {key: value for key, value in metadata.items() if key != "program"}
    with quiet_deprecation():
        traced = torch.jit.trace(module, tuple(outputs.example(2)))  # type: ignore[no-untyped-call]
        torch.jit.save(traced, archive, _extra_files={METADATA_FILE: json.dumps(described).encode()})
    return archive.getvalue()


def open_torchscript(content: bytes) -> Callable[[FloatArray], FloatArray]:
    """What an archive of ours does with observations `[n, obs_dim]`: its actions."""
    compute = torchscript_outputs(content, ["action"])
    return lambda obs: compute(obs)["action"]


def torchscript_outputs(content: bytes, names: Sequence[str]) -> Callable[..., dict[str, FloatArray]]:
    """The first outputs of an archive of ours, which come in the order of its metadata, by name.

    What it gives takes observations, and inputs by name.
    """
    described = {METADATA_FILE: ""}
    with quiet_deprecation():
        module = torch.jit.load(io.BytesIO(content), _extra_files=described)  # type: ignore[no-untyped-call]
    metadata = json.loads(described[METADATA_FILE])
    inputs = FileInputs.of(upgraded_metadata(metadata) if metadata["format_version"] == 1 else metadata)

    def compute(obs: FloatArray, given: Given = NOTHING_CHOSEN) -> dict[str, FloatArray]:
        columns = inputs.given(obs, given).values()
        with torch.inference_mode():
            out = module(*map(torch.from_numpy, columns))
        values = out if isinstance(out, tuple) else (out,)
        return {name: each.numpy() for name, each in zip(names, values, strict=False)}

    return compute


@contextmanager
def quiet_deprecation() -> Iterator[None]:
    """torch sends those who stay in Python to torch.export; programs in C++ still load TorchScript.

    It also warns of every branch on a shape, those here are of weights, and of constants: levels stay what
    they are.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        for words in ("Converting a tensor to a Python", "torch.tensor results are registered"):
            warnings.filterwarnings("ignore", category=Warning, message=words)
        yield
