"""A policy as a TorchScript module, for libtorch in C++ and for torch without this package."""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from rl_training.core.plain import Facts
from rl_training.core.spaces import FloatArray
from rl_training.policies.policy import Policy

METADATA_FILE = "policy.json"
"""Name of the metadata inside the archive; `torch.jit.load(path, _extra_files={...})` reads it."""


class Outputs(nn.Module):
    """`action`, or `(action, mean, log_std)` where the distribution is exported."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return (self.policy(obs), *self.policy.distribution(obs))


def torchscript_bytes(policy: Policy, metadata: Facts) -> bytes:
    """The archive. The computation has no branch on data, so that tracing it once says everything.

    The weights are stored as the float64 they are computed with: a cast in the program would be done again at
    every call, and cost more than the action.
    """
    exact = policy.snapshot().requires_grad_(False)
    module = Outputs(exact) if "log_std" in metadata["outputs"] else exact
    archive = io.BytesIO()
    described = {key: value for key, value in metadata.items() if key != "program"}
    with quiet_deprecation():
        traced = torch.jit.trace(module, torch.zeros(2, policy.spaces.obs_dim))  # type: ignore[no-untyped-call]
        torch.jit.save(traced, archive, _extra_files={METADATA_FILE: json.dumps(described).encode()})
    return archive.getvalue()


def open_torchscript(content: bytes) -> Callable[[FloatArray], FloatArray]:
    """What an archive of ours does with observations `[n, obs_dim]`: its actions."""
    with quiet_deprecation():
        module = torch.jit.load(io.BytesIO(content))  # type: ignore[no-untyped-call]

    def act(obs: FloatArray) -> FloatArray:
        with torch.inference_mode():
            out = module(torch.from_numpy(obs))
        actions: FloatArray = (out[0] if isinstance(out, tuple) else out).numpy()
        return actions

    return act


@contextmanager
def quiet_deprecation() -> Iterator[None]:
    """torch sends those who stay in Python to torch.export; programs in C++ still load TorchScript.

    It also warns of every branch on a shape; those here are on the shapes of weights, which do not change.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.filterwarnings("ignore", category=Warning, message="Converting a tensor to a Python")
        yield
