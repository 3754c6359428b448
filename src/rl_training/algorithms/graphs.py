"""A step of updates as one compiled graph, and a short way into it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

Values = Mapping[str, Tensor]
Step = Callable[[dict[str, Tensor], dict[str, Tensor]], dict[str, Tensor]]
"""From a batch and its random numbers to metrics."""


class CompiledStep:
    """A step as a graph without breaks, compiled at the first call; on CUDA, one that is replayed.

    At every call torch collects the tensors of a graph from the objects that hold them (IQL has 74) and goes
    through layers of its own: a twentieth of a large network's update, more of a small one's. But networks,
    settings and optimisers of a learner stay the objects they are. So the inputs of the first call are kept,
    and later ones only exchange the batch and the random numbers among them.
    """

    def __init__(self, step: Step, backend: str, device: torch.device) -> None:
        self.watched = Watched(torch._dynamo.lookup_backend(backend), graph_options(backend, device))
        # Replays of captured graphs are counted by torch, on its own way in.
        self.may_be_direct = device.type == "cpu"
        self.direct: Step | None = None
        # Gradients are taken inside the graph; dynamo traces autograd.grad only with this switch.
        torch._dynamo.config.trace_autograd_ops = True
        settings: dict[str, Any] = {
            "backend": self.watched.compile,
            "options": {"guard_filter_fn": keep_global_guards},
            # All learners share the code of a step: each compiles for itself, or the ninth one of a process
            # would run into dynamo's limit on recompilations.
            "isolate_recompiles": True,
        }
        self.by_torch: Step = torch.compile(step, fullgraph=True, dynamic=False, **settings)

    def __call__(self, batch: dict[str, Tensor], noise: dict[str, Tensor]) -> dict[str, Tensor]:
        if self.direct is not None:
            return self.direct(batch, noise)
        # As objects of their own: of one that is given twice, torch would make a single input for ever.
        batch, noise = ({name: value.detach() for name, value in each.items()} for each in (batch, noise))
        metrics = self.by_torch(batch, noise)
        if self.may_be_direct:
            self.direct = self.watched.way_in(batch, noise, metrics)
        return metrics


class Watched:
    """A backend of torch.compile that remembers what its graph was called with, and what came out."""

    def __init__(self, compile_graph: Callable[..., Any], options: Mapping[str, Any]) -> None:
        self.compile_graph, self.options = compile_graph, options
        self.call: tuple[Callable[..., Any], Sequence[Any], Sequence[Any]] | None = None

    def compile(self, graph: Any, examples: Any, **_: object) -> Callable[..., Any]:
        run = self.compile_graph(graph, examples, **self.options)

        def remembering(*arguments: Any) -> Any:
            outputs = run(*arguments)
            self.call = (run, arguments, outputs)
            return outputs

        return remembering

    def way_in(self, batch: Values, noise: Values, metrics: Values) -> Step | None:
        """The same graph for other batches; none where metrics are not what comes out of it."""
        if self.call is None:
            return None
        (run, arguments, outputs), self.call = self.call, None
        given = {id(value): (0, name) for name, value in batch.items()}
        given |= {id(value): (1, name) for name, value in noise.items()}
        made = {id(value): place for place, value in enumerate(outputs)}
        if any(id(value) not in made for value in metrics.values()):
            return None
        exchanged = [(place, *given[id(each)]) for place, each in enumerate(arguments) if id(each) in given]
        named = [(name, made[id(value)]) for name, value in metrics.items()]
        kept = [None if id(each) in given else each for each in arguments]

        def direct(batch: dict[str, Tensor], noise: dict[str, Tensor]) -> dict[str, Tensor]:
            inputs = kept.copy()
            for place, part, name in exchanged:
                inputs[place] = noise[name] if part else batch[name]
            outputs = run(*inputs)
            return {name: outputs[place] for name, place in named}

        return direct


def graph_options(backend: str, device: torch.device) -> dict[str, Any]:
    """What a backend is told."""
    if backend != "inductor":
        return {}
    own = {"triton.cudagraphs": True} if device.type == "cuda" else {"cpp_wrapper": True}
    # Every graph is for one combination of sizes and strides (`Learner.update`): no need to test them again.
    return {"config_patches": {**own, "size_asserts": False}}


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
