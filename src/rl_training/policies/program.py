"""A policy as a list of plain operations: what an exported file computes, whoever wrote the network.

The list is traced from the policy's one forward pass in torch (`tracing`); ONNX files and the numpy loader
are made from it. Numbers are stored in float32 where that loses nothing and computed in float64: in float32,
libraries differ by up to 1e-3 of an action where observations are far outside the data.

Numpy only: a deployed policy needs neither torch nor the training code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from rl_training.core.errors import UserError
from rl_training.core.plain import Array, Facts, State

Attributes = Mapping[str, float | int | None]
Operation = Callable[..., Array]

MOST_NODES = 10_000
SQRT_HALF = math.sqrt(0.5)
_erf = np.frompyfunc(math.erf, 1, 1)


@dataclass(frozen=True)
class Node:
    """`output = operation(*inputs, **attributes)`; inputs are names of constants or of earlier outputs."""

    operation: str
    inputs: tuple[str, ...]
    output: str
    attributes: Attributes = field(default_factory=dict)


@dataclass(frozen=True)
class Program:
    """Operations in order, the numbers they use, and which results are `action` and the other outputs."""

    nodes: tuple[Node, ...]
    constants: Mapping[str, Array]
    outputs: Mapping[str, str]

    def __post_init__(self) -> None:
        if len(self.nodes) > MOST_NODES:
            raise UserError(f"a policy's program must have at most {MOST_NODES} steps, got {len(self.nodes)}")
        known = {"obs", *self.constants}
        for node in self.nodes:
            if node.operation not in OPERATIONS:
                raise UserError(f"a policy's program cannot do {node.operation!r}")
            missing = [name for name in node.inputs if name not in known]
            if missing:
                raise UserError(f"a policy's program uses {missing[0]!r} before it exists")
            known.add(node.output)
        unknown = [name for name in self.outputs.values() if name not in known]
        if unknown or "action" not in self.outputs:
            raise UserError(f"a policy's program must give an action, it gives {', '.join(self.outputs)}")

    def run(self, obs: Array, wanted: str = "action") -> Array:
        """One output for observations `[n, obs_dim]`."""
        return self.run_all(obs)[self.outputs[wanted]]

    def run_all(self, obs: Array) -> dict[str, Array]:
        """The result of every step, by the names that `outputs` refers to."""
        values: dict[str, Array] = {**self.constants, "obs": obs}
        for node in self.nodes:
            arguments = [values[name] for name in node.inputs]
            values[node.output] = OPERATIONS[node.operation](*arguments, **node.attributes)
        return values

    def only(self, wanted: Iterable[str]) -> Program:
        """The program of some outputs, without what none of them needs; the action is always one."""
        outputs = {name: at for name, at in self.outputs.items() if name in {"action", *wanted}}
        needed = set(outputs.values())
        for node in reversed(self.nodes):
            if node.output in needed:
                needed.update(node.inputs)
        nodes = tuple(node for node in self.nodes if node.output in needed)
        constants = {name: values for name, values in self.constants.items() if name in needed}
        return Program(nodes, constants, outputs)

    def in_double(self) -> Program:
        """The same numbers, ready to compute with; the bounds of the action stay as they leave."""
        wide = {
            name: values if name in FLOAT_CONSTANTS else values.astype(np.float64)
            for name, values in self.constants.items()
        }
        return Program(self.nodes, wide, self.outputs)

    def description(self) -> State:
        """All but the numbers, as JSON."""
        nodes = [[n.operation, list(n.inputs), n.output, dict(n.attributes)] for n in self.nodes]
        return {"nodes": nodes, "outputs": dict(self.outputs)}

    @classmethod
    def restore(cls, described: Facts, constants: Mapping[str, Array]) -> Program:
        """The inverse of `description`; what is missing or odd raises."""
        nodes = tuple(
            Node(str(operation), tuple(map(str, inputs)), str(output), dict(attributes))
            for operation, inputs, output, attributes in described["nodes"]
        )
        return cls(nodes, constants, {str(name): str(at) for name, at in described["outputs"].items()})


FLOAT_CONSTANTS = ("action.low", "action.high")
"""Constants of the last steps, which work on the float32 action."""


def layer_norm(x: Array, *, epsilon: float) -> Array:
    """Over the last axis, without scale and shift, which are operations of their own."""
    centred = x - x.mean(-1, keepdims=True)
    normed: Array = centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + epsilon)
    return normed


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)) without overflow."""
    small = np.exp(-np.abs(x))
    value: Array = np.where(x >= 0, 1.0, small) / (1.0 + small)
    return value


def gelu(x: Array) -> Array:
    erf: Array = np.asarray(_erf(x * SQRT_HALF), dtype=np.float64)
    value: Array = 0.5 * x * (1.0 + erf)
    return value


def elu(x: Array) -> Array:
    value: Array = np.maximum(x, 0.0) + np.expm1(np.minimum(x, 0.0))
    return value


OPERATIONS: dict[str, Operation] = {
    "to_double": lambda x: x.astype(np.float64),
    "to_float": lambda x: x.astype(np.float32),
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "matmul": np.matmul,
    "linear": lambda x, weight, bias: x @ weight + bias,
    "transpose": lambda x: x.swapaxes(-1, -2),
    "columns": lambda x, *, start, stop: x[..., start:stop],
    "join": lambda *parts: np.concatenate(parts, axis=-1),
    "mean": lambda x: x.mean(-1, keepdims=True),
    "sum": lambda x: x.sum(-1, keepdims=True),
    "smallest": lambda x: x.min(-1, keepdims=True),
    "maximum": np.maximum,
    "minimum": np.minimum,
    "relu": lambda x: np.maximum(x, 0.0),
    "tanh": np.tanh,
    "sigmoid": sigmoid,
    "silu": lambda x: x * sigmoid(x),
    "gelu": gelu,
    "elu": elu,
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "negative": np.negative,
    "absolute": np.abs,
    "sine": np.sin,
    "cosine": np.cos,
    "layer_norm": layer_norm,
}
"""Every operation that an exported policy may use: name -> the same in numpy."""
