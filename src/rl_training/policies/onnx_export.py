"""A policy as an ONNX model.

The graph is written from the policy's program: plain operators of opset 13, which every runtime has, without
the exporter of a torch version, and with names that people can read in a viewer.

Weights are stored in float32, each behind a Cast to the float64 that is computed with. The file is half as
large for it, and onnxruntime folds these casts when it opens the file, so that they cost nothing later.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np

from rl_training.core.errors import UserError
from rl_training.core.extras import install_hint
from rl_training.core.plain import Array, Facts
from rl_training.core.version import VERSION
from rl_training.policies.policy_metadata import METADATA_KEY
from rl_training.policies.program import FLOAT_CONSTANTS, SQRT_HALF, Node, Program

OPSET = 13
IR_VERSION = 7


class GraphWriter:
    """Nodes and constants in the order of computation."""

    def __init__(self, onnx: ModuleType) -> None:
        self.onnx = onnx
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, name: str, values: Array) -> str:
        self.constants.append(self.onnx.numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name

    def stored(self, name: str, values: Array) -> None:
        """A constant of the program; float32 ones are cast to the float64 that is computed with."""
        if name in FLOAT_CONSTANTS or values.dtype == np.float64:
            self.constant(name, values)
        else:
            self.cast(self.constant(f"{name}.float", values), "DOUBLE", name)

    def cast(self, x: str, kind: str, output: str) -> str:
        return self.add("Cast", [x], output, to=getattr(self.onnx.TensorProto, kind))

    def add(self, operator: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        name = f"{output}:{operator}"
        self.nodes.append(
            self.onnx.helper.make_node(operator, list(inputs), [output], name=name, **attributes)
        )
        return output

    def step(self, node: Node) -> None:
        """One operation of the program, as one operator or as a few."""
        if node.operation in ONE_OPERATOR:
            self.add(ONE_OPERATOR[node.operation], node.inputs, node.output)
        else:
            SEVERAL_OPERATORS[node.operation](self, node)

    def number(self, node: Node, value: float) -> str:
        """A float64 constant for one step."""
        return self.constant(f"{node.output}.constant.{len(self.constants)}", np.array(value))


def _columns(writer: GraphWriter, node: Node) -> None:
    limits = [
        writer.constant(f"{node.output}.{name}", np.array([value], dtype=np.int64))
        for name, value in (
            ("start", node.attributes["start"]),
            ("stop", node.attributes["stop"]),
            ("axis", -1),
        )
    ]
    writer.add("Slice", [node.inputs[0], *limits], node.output)


def _silu(writer: GraphWriter, node: Node) -> None:
    gate = writer.add("Sigmoid", node.inputs, f"{node.output}.gate")
    writer.add("Mul", [node.inputs[0], gate], node.output)


def _gelu(writer: GraphWriter, node: Node) -> None:
    """x (1 + erf(x / sqrt 2)) / 2; onnxruntime has erf in float32 only, which is exact where it matters."""
    (x,), out = node.inputs, node.output
    scaled = writer.add("Mul", [x, writer.number(node, SQRT_HALF)], f"{out}.scaled")
    narrow = writer.add("Erf", [writer.cast(scaled, "FLOAT", f"{out}.narrow")], f"{out}.erf")
    erf = writer.cast(narrow, "DOUBLE", f"{out}.wide")
    gate = writer.add("Add", [erf, writer.number(node, 1.0)], f"{out}.gate")
    half = writer.add("Mul", [x, writer.number(node, 0.5)], f"{out}.half")
    writer.add("Mul", [half, gate], out)


def _layer_norm(writer: GraphWriter, node: Node) -> None:
    (x,), out = node.inputs, node.output
    epsilon = node.attributes["epsilon"]
    assert epsilon is not None
    mean = writer.add("ReduceMean", [x], f"{out}.mean", axes=[-1], keepdims=1)
    centred = writer.add("Sub", [x, mean], f"{out}.centred")
    square = writer.add("Mul", [centred, centred], f"{out}.square")
    variance = writer.add("ReduceMean", [square], f"{out}.variance", axes=[-1], keepdims=1)
    shifted = writer.add("Add", [variance, writer.number(node, epsilon)], f"{out}.shifted")
    writer.add("Div", [centred, writer.add("Sqrt", [shifted], f"{out}.deviation")], out)


def _elu(writer: GraphWriter, node: Node) -> None:
    """max(x, 0) + min(exp(min(x, 0)) - 1, 0): operators that exist in float64."""
    (x,), out = node.inputs, node.output
    zero = writer.number(node, 0.0)
    below = writer.add("Exp", [writer.add("Min", [x, zero], f"{out}.below")], f"{out}.exp")
    dip = writer.add("Sub", [below, writer.number(node, 1.0)], f"{out}.dip")
    writer.add("Add", [writer.add("Max", [x, zero], f"{out}.above"), dip], out)


ONE_OPERATOR = {
    "add": "Add",
    "subtract": "Sub",
    "multiply": "Mul",
    "divide": "Div",
    "matmul": "MatMul",
    "linear": "Gemm",
    "maximum": "Max",
    "minimum": "Min",
    "relu": "Relu",
    "tanh": "Tanh",
    "sigmoid": "Sigmoid",
    "exp": "Exp",
    "log": "Log",
    "sqrt": "Sqrt",
    "negative": "Neg",
    "absolute": "Abs",
    "sine": "Sin",
    "cosine": "Cos",
}
SEVERAL_OPERATORS: dict[str, Callable[[GraphWriter, Node], object]] = {
    "to_double": lambda writer, node: writer.cast(node.inputs[0], "DOUBLE", node.output),
    "to_float": lambda writer, node: writer.cast(node.inputs[0], "FLOAT", node.output),
    "transpose": lambda writer, node: writer.add("Transpose", node.inputs, node.output, perm=[1, 0]),
    "columns": _columns,
    "join": lambda writer, node: writer.add("Concat", node.inputs, node.output, axis=-1),
    "mean": lambda writer, node: writer.add("ReduceMean", node.inputs, node.output, axes=[-1], keepdims=1),
    "sum": lambda writer, node: writer.add(
        "ReduceSum", [*node.inputs, _last_axis(writer, node)], node.output
    ),
    "smallest": lambda writer, node: writer.add("ReduceMin", node.inputs, node.output, axes=[-1], keepdims=1),
    "silu": _silu,
    "gelu": _gelu,
    "elu": _elu,
    "layer_norm": _layer_norm,
}


def _last_axis(writer: GraphWriter, node: Node) -> str:
    return writer.constant(f"{node.output}.axis", np.array([-1], dtype=np.int64))


def onnx_bytes(program: Program, metadata: Facts) -> bytes:
    """The model: `obs` `[batch, obs_dim]` -> `action` (and `mean`, `log_std`, `novelty`), all float32."""
    onnx = _onnx()
    writer = GraphWriter(onnx)
    for name, values in program.constants.items():
        writer.stored(name, values)
    for node in program.nodes:
        writer.step(node)
    for name, result in program.outputs.items():
        writer.add("Identity", [result], name)
    spaces, rows = metadata["spaces"], onnx.TensorProto.FLOAT
    widths = {name: 1 if name == "novelty" else len(spaces["action_low"]) for name in program.outputs}
    model = onnx.helper.make_model(
        onnx.helper.make_graph(
            writer.nodes,
            "policy",
            [onnx.helper.make_tensor_value_info("obs", rows, ["batch", spaces["obs_dim"]])],
            [onnx.helper.make_tensor_value_info(n, rows, ["batch", width]) for n, width in widths.items()],
            writer.constants,
        ),
        opset_imports=[onnx.helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="rl_training",
        producer_version=VERSION,
    )
    described = {key: value for key, value in metadata.items() if key != "program"}  # it is the graph itself
    onnx.helper.set_model_props(model, {METADATA_KEY: json.dumps(described)})
    onnx.checker.check_model(model, full_check=True)
    content: bytes = model.SerializeToString()
    return content


def _onnx() -> ModuleType:
    try:
        onnx = import_module("onnx")
        for part in ("helper", "numpy_helper", "checker"):
            import_module(f"onnx.{part}")
    except ImportError:
        raise UserError(f"format onnx needs onnx and onnxruntime: {install_hint('export')}") from None
    return onnx
