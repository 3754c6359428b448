"""A policy as a list of plain operations: what an exported file computes, whoever wrote the network."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from rl_training.core.errors import UserError
from rl_training.core.spaces import Spaces, inner_float32
from rl_training.core.types import Array, Facts, State

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

    def to_list(self) -> list[object]:
        return [self.operation, list(self.inputs), self.output, dict(self.attributes)]


@dataclass(frozen=True)
class Program:
    """Operations in order, the numbers they use, and which results are `action` and the other outputs."""

    nodes: tuple[Node, ...]
    constants: Mapping[str, Array]
    outputs: Mapping[str, str]
    inputs: tuple[str, ...] = ()
    """what is given beside `obs`, `[n, width]` each"""

    def __post_init__(self) -> None:
        if len(self.nodes) > MOST_NODES:
            raise UserError(f"a policy's program must have at most {MOST_NODES} steps, got {len(self.nodes)}")
        known = {"obs", *self.inputs, *self.constants}
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

    def run(self, obs: Array, wanted: str = "action", **inputs: Array) -> Array:
        """One output for observations `[n, obs_dim]`."""
        return self.run_all(obs, **inputs)[self.outputs[wanted]]

    def run_all(self, obs: Array, **inputs: Array) -> dict[str, Array]:
        """The result of every step, by the names that `outputs` refers to."""
        values: dict[str, Array] = {**self.constants, "obs": obs, **inputs}
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
        return Program(nodes, constants, outputs, self.inputs)

    def in_double(self) -> Program:
        """The same numbers, ready to compute with; the bounds of the action stay as they leave."""
        wide = {
            name: values if name in FLOAT_CONSTANTS else values.astype(np.float64)
            for name, values in self.constants.items()
        }
        return Program(self.nodes, wide, self.outputs, self.inputs)

    def description(self) -> State:
        """All but the numbers, as JSON."""
        return {"nodes": [node.to_list() for node in self.nodes], "outputs": dict(self.outputs)}

    @classmethod
    def restore(
        cls, described: Facts, constants: Mapping[str, Array], inputs: tuple[str, ...] = ()
    ) -> Program:
        """The inverse of `description`, which takes `inputs`; what is missing or odd raises."""
        nodes = tuple(
            Node(str(operation), tuple(map(str, inputs)), str(output), dict(attributes))
            for operation, inputs, output, attributes in described["nodes"]
        )
        outputs = {str(name): str(at) for name, at in described["outputs"].items()}
        return cls(nodes, constants, outputs, inputs)


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


def chosen(condition: Array, x: Array, y: Array) -> Array:
    """Element by element, the first where the condition holds."""
    return np.where(condition, x, y)


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
    "best": lambda x: x.argmax(-1)[..., None].astype(np.float64),
    "equal": lambda x, y: np.equal(x, y).astype(np.float64),
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
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "not_equal": np.not_equal,
    "where": chosen,
    "power": np.power,
    "floor": np.floor,
    "nan_is_infinity": lambda x: np.where(np.isnan(x), np.inf, x),
}
"""Every operation that an exported policy may use: name -> the same in numpy."""


# How large the results of a policy's operations get, known before any of them is computed.


Shape = tuple[int, ...]
Step = tuple[str, Sequence[str], str]
"""Operation (a name of ours), names of its inputs, name of its result."""

MOST_VALUES = 2**25
"""Numbers in one result, for two observations."""
MOST_WORK = 10**11
"""Multiplications of all steps together, for two observations."""
_PRODUCTS = ("matmul", "linear")


def refuse_large(steps: Iterable[Step], constants: Mapping[str, Shape], inputs: Mapping[str, int]) -> None:
    """Follow the sizes of all results; upper limits where an operation takes a part of its input."""
    shapes: dict[str, Shape] = {**constants, **{name: (2, width) for name, width in inputs.items()}}
    work = 0
    for operation, names, output in steps:
        given = [shapes[name] for name in names]
        shape = _result(operation, given)
        size = math.prod(shape)
        work += size * (given[0][-1] if operation in _PRODUCTS else 1)
        if size > MOST_VALUES or work > MOST_WORK:
            raise UserError(f"a policy's program is too large: {output!r} would have the shape {shape}")
        shapes[output] = shape


def _result(operation: str, given: Sequence[Shape]) -> Shape:
    if operation in _PRODUCTS:
        left, right = given[0], given[1]
        product = (*_stretched(left[:-2], right[:-2]), *left[-2:-1], *right[-1:])
        return _stretched(product, *given[2:])
    if operation == "transpose":
        return (*given[0][:-2], *given[0][-2:][::-1])
    if operation == "join":
        return (*given[0][:-1], sum(shape[-1] for shape in given))
    if operation in ("columns", "mean", "sum", "smallest", "best"):
        return given[0]
    return _stretched(*given)


def _stretched(*shapes: Shape) -> Shape:
    """As numpy stretches shapes over each other, by the larger one where they do not fit."""
    rank = max(map(len, shapes), default=0)
    filled = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    return tuple(map(max, *filled)) if len(filled) > 1 else filled[0]


# Policy files of format 1, which held layers and the name of a head, read as a program of today.


DRAWS = {
    "deterministic": "action = tanh(m); there is no distribution",
    "squashed": "mean = m; action = tanh(mean); a draw is tanh(mean + exp(log_std) * noise)",
    "tanh_mean": "mean = tanh(m); action = mean; a draw is clip(mean + exp(log_std) * noise, -1, 1)",
    "unbounded": "mean = m; action = clip(mean, -1, 1); a draw is clip(mean + exp(log_std) * noise, -1, 1)",
}


def upgraded_metadata(old: Facts) -> State:
    """The metadata with today's keys; it keeps its version."""
    graph = old["graph"]
    spread = graph["log_std_range"] is not None
    outputs = {"action": "action"} | ({"mean": "mean.float", "log_std": "log_std.float"} if spread else {})
    nodes = [node.to_list() for node in nodes_of(graph)]
    return {
        **{key: value for key, value in old.items() if key not in ("graph", "head")},
        "spaces": graph["spaces"],
        "actor": {"kind": graph["head"], "draws": DRAWS[graph["head"]]},
        "observation_steps": ["normalize"] if graph["normalized"] else [],
        "log_std_range": graph["log_std_range"],
        "outputs": list(outputs),
        "program": {"nodes": nodes, "outputs": outputs},
    }


def nodes_of(graph: Facts) -> Iterator[Node]:
    """normalise, hidden layers with ReLU, the last layer, its head, the action's units."""
    yield Node("to_double", ("obs",), "x")
    x = "x"
    if graph["normalized"]:
        yield Node("subtract", (x, "obs.mean"), "centred")
        yield Node("divide", ("centred", "obs.scale"), "normal")
        x = "normal"
    for index in range(int(graph["hidden_layers"])):
        name = f"hidden.{index}"
        yield Node("linear", (x, f"{name}.weight", f"{name}.bias"), f"{name}.sum")
        yield Node("relu", (f"{name}.sum",), name)
        x = name
    yield Node("linear", (x, "output.weight", "output.bias"), "m")
    yield Node("tanh", ("m",), "tanh")
    yield Node("maximum", ("m", "unit.low"), "raised")
    yield Node("minimum", ("raised", "unit.high"), "clipped")
    unit = "clipped" if graph["head"] == "unbounded" else "tanh"
    yield Node("multiply", (unit, "action.half"), "scaled")
    yield Node("add", ("scaled", "action.middle"), "moved")
    yield Node("to_float", ("moved",), "action.float")
    yield Node("maximum", ("action.float", "action.low"), "action.raised")
    yield Node("minimum", ("action.raised", "action.high"), "action")
    if graph["log_std_range"] is not None:
        yield Node("to_float", ("tanh" if graph["head"] == "tanh_mean" else "m",), "mean.float")
        yield Node("linear", (x, "log_std.weight", "log_std.bias"), "log_std.raw")
        yield Node("maximum", ("log_std.raw", "log_std.low"), "log_std.raised")
        yield Node("minimum", ("log_std.raised", "log_std.high"), "log_std")
        yield Node("to_float", ("log_std",), "log_std.float")


def constants_of(metadata: Facts) -> dict[str, Array]:
    """The numbers that format 1 left to its loader: the action's units and the clips of heads."""
    spaces = Spaces.from_dict(metadata["spaces"])
    low, high = np.array(spaces.action_low), np.array(spaces.action_high)
    spread = metadata["log_std_range"] or (0.0, 0.0)
    return {
        "action.half": (high - low) / 2.0,
        "action.middle": (high + low) / 2.0,
        "action.low": inner_float32(low, upward=True),
        "action.high": inner_float32(high, upward=False),
        "unit.low": np.array(-1.0),
        "unit.high": np.array(1.0),
        "log_std.low": np.array(float(spread[0])),
        "log_std.high": np.array(float(spread[1])),
    }
