"""A policy as an ONNX model.

The graph is written directly from the layers: ten kinds of plain operators, no tracing, no dependency on the
exporter of a torch version, and names that people can read in a viewer. Operator set 13, an
old one, has all of them.

Weights are stored in float32, each behind a Cast to the float64 that is computed with. The file is half as
large for it, and onnxruntime folds these casts when it opens the file, so that they cost nothing later.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import numpy as np

from rl_training.core.errors import UserError
from rl_training.core.extras import install_hint
from rl_training.core.spaces import FloatArray
from rl_training.core.version import VERSION
from rl_training.policies.graph import Array, Layer, PolicyGraph, action_scale
from rl_training.policies.policy_metadata import METADATA_KEY

OPSET = 13
IR_VERSION = 7


class GraphWriter:
    """Nodes and constants in the order of computation."""

    def __init__(self, onnx: Any) -> None:
        self.onnx = onnx
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, name: str, values: Any) -> str:
        array = np.ascontiguousarray(values)
        self.constants.append(self.onnx.numpy_helper.from_array(array, name))
        return name

    def number(self, name: str, values: Array) -> str:
        """A float32 constant, as float64."""
        return self.cast(self.constant(f"{name}.float", values), "DOUBLE", name)

    def cast(self, x: str, kind: str, output: str) -> str:
        return self.add("Cast", [x], output, to=getattr(self.onnx.TensorProto, kind))

    def add(self, operator: str, inputs: list[str], output: str, **attributes: int) -> str:
        name = f"{output}:{operator}"
        self.nodes.append(self.onnx.helper.make_node(operator, inputs, [output], name=name, **attributes))
        return output

    def linear(self, x: str, layer: Layer, output: str) -> str:
        weight = self.number(f"{output}.weight", layer.weight)
        bias = self.number(f"{output}.bias", layer.bias)
        return self.add("Gemm", [x, weight, bias], output)

    def clip(self, x: str, low: Any, high: Any, output: str) -> str:
        """Max, then Min: the operator Clip takes one bound for all, actions have one each."""
        raised = self.add("Max", [x, self.constant(f"{output}.low", low)], f"{output}.raised")
        return self.add("Min", [raised, self.constant(f"{output}.high", high)], output)


def onnx_bytes(graph: PolicyGraph, metadata: Mapping[str, Any]) -> bytes:
    """The model: `obs` `[batch, obs_dim]` -> `action` (and `mean`, `log_std`), all float32."""
    onnx = _onnx()
    writer = GraphWriter(onnx)
    outputs = write_graph(writer, graph)
    rows = onnx.TensorProto.FLOAT
    action_shape = ["batch", graph.spaces.action_dim]
    model = onnx.helper.make_model(
        onnx.helper.make_graph(
            writer.nodes,
            "policy",
            [onnx.helper.make_tensor_value_info("obs", rows, ["batch", graph.spaces.obs_dim])],
            [onnx.helper.make_tensor_value_info(name, rows, action_shape) for name in outputs],
            writer.constants,
        ),
        opset_imports=[onnx.helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="rl_training",
        producer_version=VERSION,
    )
    onnx.helper.set_model_props(model, {METADATA_KEY: json.dumps(metadata)})
    onnx.checker.check_model(model, full_check=True)
    content: bytes = model.SerializeToString()
    return content


def write_graph(writer: GraphWriter, graph: PolicyGraph) -> list[str]:
    """All operators; returns the names of the outputs."""
    x = writer.cast("obs", "DOUBLE", "obs.double")
    if graph.obs_mean is not None and graph.obs_scale is not None:
        x = writer.add("Sub", [x, writer.number("obs.mean", graph.obs_mean)], "obs.centred")
        x = writer.add("Div", [x, writer.number("obs.scale", graph.obs_scale)], "obs.normalized")
    for index, layer in enumerate(graph.hidden):
        x = writer.add("Relu", [writer.linear(x, layer, f"hidden.{index}")], f"hidden.{index}.active")
    mean = writer.linear(x, graph.output, "output")
    if graph.head in ("deterministic", "tanh_mean"):
        mean = writer.add("Tanh", [mean], "output.bounded")
    unit = mean
    if graph.head == "squashed":
        unit = writer.add("Tanh", [mean], "unit")
    elif graph.head == "unbounded":
        unit = writer.clip(mean, -1.0, 1.0, "unit")
    write_action(writer, unit, *action_scale(graph.spaces))
    if graph.spread is None:
        return ["action"]
    raw = writer.linear(x, graph.spread.layer, "log_std.raw")
    log_std = writer.clip(raw, graph.spread.low, graph.spread.high, "log_std.clipped")
    return ["action", writer.cast(mean, "FLOAT", "mean"), writer.cast(log_std, "FLOAT", "log_std")]


def write_action(
    writer: GraphWriter, unit: str, half: Array, middle: Array, low: FloatArray, high: FloatArray
) -> None:
    """[-1, 1] -> the environment's units in float32, inside its bounds."""
    scaled = writer.add("Mul", [unit, writer.constant("action.half", half)], "action.scaled")
    moved = writer.add("Add", [scaled, writer.constant("action.middle", middle)], "action.moved")
    writer.clip(writer.cast(moved, "FLOAT", "action.float"), low, high, "action")


def _onnx() -> Any:
    try:
        onnx = import_module("onnx")
        for part in ("helper", "numpy_helper", "checker"):
            import_module(f"onnx.{part}")
    except ImportError:
        raise UserError(f"format onnx needs onnx and onnxruntime: {install_hint('export')}") from None
    return onnx
