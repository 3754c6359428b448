"""An update as one compiled graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

Step = Callable[..., dict[str, Tensor]]


def graph_compiler(backend: str, device: torch.device) -> Callable[[Step], Step]:
    """What turns a step into a graph without breaks; on CUDA, one that is captured and replayed."""
    options: dict[str, Any] = {"guard_filter_fn": keep_global_guards}
    if backend == "inductor":
        options |= {"triton.cudagraphs": True} if device.type == "cuda" else {"cpp_wrapper": True}
    # All learners share the code of a step: each compiles for itself, or the ninth one of a process would run
    # into dynamo's limit on recompilations.
    settings: dict[str, Any] = {"backend": backend, "fullgraph": True, "isolate_recompiles": True}
    # Gradients are taken inside the graph; dynamo traces autograd.grad only with this switch.
    torch._dynamo.config.trace_autograd_ops = True
    return lambda step: torch.compile(step, dynamic=False, options=options, **settings)


def keep_global_guards(guards: Sequence[Any]) -> list[bool]:
    """Which of a graph's assumptions are tested again at every call: torch's global state alone.

    Testing all 700 of them takes a fifth of a small network's update. The others cannot fail: a learner's
    networks, settings and optimisers stay the objects they are, and batches of other shapes get a graph of
    their own.
    """
    kept = {"GLOBAL_STATE", "GRAD_MODE", "DEFAULT_DEVICE", "DETERMINISTIC_ALGORITHMS", "TORCH_FUNCTION_STATE"}
    return [guard.guard_type in kept for guard in guards]


def fix_addresses(tensors: Iterable[Tensor]) -> None:
    """CUDA graphs may write to a tensor in place only where its address is promised to stay."""
    for tensor in tensors:
        torch._dynamo.mark_static_address(tensor)
