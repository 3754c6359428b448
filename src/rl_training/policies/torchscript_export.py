"""A policy as a TorchScript module, for libtorch in C++ and for torch without this package."""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from rl_training.core.spaces import FloatArray
from rl_training.policies.graph import PolicyGraph, action_scale

METADATA_FILE = "policy.json"
"""Name of the metadata inside the archive; `torch.jit.load(path, _extra_files={...})` reads it."""


class PolicyModule(nn.Module):
    """The graph in torch operators; every number is a buffer, so that `.to(device)` moves all of them.

    The weights are stored as the float64 they are computed with: a cast in the program would be done again at
    every call, and cost more than the action.
    """

    def __init__(self, graph: PolicyGraph) -> None:
        super().__init__()
        self.head, self.hidden_layers = graph.head, len(graph.hidden)
        self.normalized = graph.obs_mean is not None
        self.log_std_range = None if graph.spread is None else (graph.spread.low, graph.spread.high)
        named = graph.in_double().tensors()
        scale = zip(("half", "middle", "low", "high"), action_scale(graph.spaces), strict=True)
        named |= {f"action.{name}": values for name, values in scale}
        for name, values in named.items():
            self.register_buffer(buffer_name(name), torch.tensor(values))

    def forward(self, obs: Tensor) -> Tensor | tuple[Tensor, Tensor, Tensor]:
        """`action`, or `(action, mean, log_std)` where the distribution is exported."""
        x = obs.double()
        if self.normalized:
            x = (x - self.number("obs.mean")) / self.number("obs.scale")
        for index in range(self.hidden_layers):
            x = self.linear(x, f"hidden.{index}").relu()
        mean = self.linear(x, "output")
        if self.head in ("tanh_mean", "deterministic"):
            mean = mean.tanh()
        unit = mean.tanh() if self.head == "squashed" else mean.clamp(-1.0, 1.0)
        action = (unit * self.number("action.half") + self.number("action.middle")).float()
        action = torch.minimum(torch.maximum(action, self.number("action.low")), self.number("action.high"))
        if self.log_std_range is None:
            return action
        log_std = self.linear(x, "log_std").clamp(*self.log_std_range)
        return action, mean.float(), log_std.float()

    def linear(self, x: Tensor, name: str) -> Tensor:
        return torch.addmm(self.number(f"{name}.bias"), x, self.number(f"{name}.weight"))

    def number(self, name: str) -> Tensor:
        return self.get_buffer(buffer_name(name))


def torchscript_bytes(graph: PolicyGraph, metadata: Mapping[str, Any]) -> bytes:
    """The archive. The computation has no branch on data, so that tracing it once says everything."""
    module = PolicyModule(graph).requires_grad_(False)
    example = torch.zeros(2, graph.spaces.obs_dim)
    archive = io.BytesIO()
    with quiet_deprecation():
        traced = torch.jit.trace(module, example)  # type: ignore[no-untyped-call]
        torch.jit.save(traced, archive, _extra_files={METADATA_FILE: json.dumps(metadata).encode()})
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
    """torch sends those who stay in Python to torch.export; programs in C++ still load TorchScript."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def buffer_name(name: str) -> str:
    return name.replace(".", "_")
