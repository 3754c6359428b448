"""A policy as an ONNX model: written, checked before any runtime acts on it, and evaluated by onnxruntime."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from rl_training.core.errors import UserError, install_hint
from rl_training.core.spaces import FloatArray
from rl_training.core.types import Array, Facts, State
from rl_training.core.version import VERSION
from rl_training.policies.acting import NOTHING_CHOSEN
from rl_training.policies.export.program import (
    FLOAT_CONSTANTS,
    MOST_NODES,
    SQRT_HALF,
    Node,
    Program,
    Shape,
    Step,
    refuse_large,
)
from rl_training.policies.inputs import Given
from rl_training.policies.opened import (
    METADATA_KEY,
    NEXT_STATE,
    STATE,
    DeployedPolicy,
    FileInputs,
    damaged,
    parse_metadata,
)

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

    def whole(self, node: Node, name: str, value: float | int | None) -> str:
        """A whole number that says which part of its input a step takes."""
        return self.constant(f"{node.output}.{name}", np.array([value], dtype=np.int64))


def _columns(writer: GraphWriter, node: Node) -> None:
    limits = [writer.whole(node, name, node.attributes[name]) for name in ("start", "stop")]
    writer.add("Slice", [node.inputs[0], *limits, writer.whole(node, "axis", -1)], node.output)


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


def _not_equal(writer: GraphWriter, node: Node) -> None:
    writer.add("Not", [writer.add("Equal", node.inputs, f"{node.output}.equal")], node.output)


def _nan_is_infinity(writer: GraphWriter, node: Node) -> None:
    """Infinity is computed as 1 / 0: a file that stores it counts as damaged."""
    (x,), out = node.inputs, node.output
    infinity = writer.add("Div", [writer.number(node, 1.0), writer.number(node, 0.0)], f"{out}.infinity")
    writer.add("Where", [writer.add("IsNaN", [x], f"{out}.unknown"), infinity, x], out)


def _best(writer: GraphWriter, node: Node) -> None:
    place = writer.add("ArgMax", node.inputs, f"{node.output}.place", axis=-1, keepdims=1)
    writer.cast(place, "DOUBLE", node.output)


def _equal(writer: GraphWriter, node: Node) -> None:
    writer.cast(writer.add("Equal", node.inputs, f"{node.output}.same"), "DOUBLE", node.output)


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
    "less": "Less",
    "less_equal": "LessOrEqual",
    "greater": "Greater",
    "greater_equal": "GreaterOrEqual",
    "where": "Where",
    "power": "Pow",
    "floor": "Floor",
}
SEVERAL_OPERATORS: dict[str, Callable[[GraphWriter, Node], object]] = {
    "to_double": lambda writer, node: writer.cast(node.inputs[0], "DOUBLE", node.output),
    "to_float": lambda writer, node: writer.cast(node.inputs[0], "FLOAT", node.output),
    "transpose": lambda writer, node: writer.add("Transpose", node.inputs, node.output, perm=[1, 0]),
    "columns": _columns,
    "join": lambda writer, node: writer.add("Concat", node.inputs, node.output, axis=-1),
    "mean": lambda writer, node: writer.add("ReduceMean", node.inputs, node.output, axes=[-1], keepdims=1),
    "sum": lambda writer, node: writer.add(
        "ReduceSum", [*node.inputs, writer.whole(node, "axis", -1)], node.output
    ),
    "smallest": lambda writer, node: writer.add("ReduceMin", node.inputs, node.output, axes=[-1], keepdims=1),
    "best": _best,
    "equal": _equal,
    "silu": _silu,
    "gelu": _gelu,
    "elu": _elu,
    "layer_norm": _layer_norm,
    "nan_is_infinity": _nan_is_infinity,
    "not_equal": _not_equal,
}


def onnx_bytes(program: Program, metadata: Facts) -> bytes:
    """The model: `obs` `[batch, obs_dim]` -> `action` (and `mean`, `log_std`, `novelty`), all float32.

    Inputs such as a dial, `[batch, 1]` each, come beside `obs`; bounds and defaults are in the metadata.
    """
    onnx = _onnx()
    writer = GraphWriter(onnx)
    for name, values in program.constants.items():
        writer.stored(name, values)
    for node in program.nodes:
        writer.step(node)
    for name, result in program.outputs.items():
        writer.add("Identity", [result], name)
    spaces, rows = metadata["spaces"], onnx.TensorProto.FLOAT
    given = FileInputs.of(metadata).widths
    own = {"novelty": 1, NEXT_STATE: given.get(STATE, 0)}
    widths = {name: own.get(name, len(spaces["action_low"])) for name in program.outputs}
    kinds = dict.fromkeys((STATE, NEXT_STATE), onnx.TensorProto.DOUBLE)

    def told(sizes: Mapping[str, int]) -> list[Any]:
        return [
            onnx.helper.make_tensor_value_info(name, kinds.get(name, rows), ["batch", width])
            for name, width in sizes.items()
        ]

    model = onnx.helper.make_model(
        onnx.helper.make_graph(
            writer.nodes,
            "policy",
            told(given),
            told(widths),
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


# What is in an ONNX file, read without the onnx package and before any runtime acts on it.


OPERATIONS = {
    **{operator: operation for operation, operator in ONE_OPERATOR.items()},
    **{
        "Cast": "to_double",
        "Erf": "to_double",
        "Identity": "to_double",
        "IsNaN": "to_double",
        "Not": "to_double",
    },
    **{
        "Slice": "columns",
        "Concat": "join",
        "ReduceMean": "mean",
        "ReduceSum": "sum",
        "ReduceMin": "smallest",
        "ArgMax": "best",
        "Equal": "equal",
        "Transpose": "transpose",
    },
}
"""Operators that exports use, by the operation of ours whose size theirs has."""
TAKES_PART = ("Slice", "ReduceSum")
"""Operators whose further inputs say which part is meant."""
_FLOATS: dict[int, np.dtype[Any]] = {1: np.dtype("<f4"), 11: np.dtype("<f8")}
_VARINT, _EIGHT, _LENGTH, _FOUR = 0, 1, 2, 5

Fields = Iterator[tuple[int, int | bytes]]


@dataclass
class Graph:
    """The steps, and the shapes of the constants they use."""

    steps: list[Step] = field(default_factory=list)
    constants: dict[str, Shape] = field(default_factory=dict)


def read_properties(content: bytes) -> dict[str, str]:
    """The texts that a model carries by name."""
    found = {}
    for number, value in _fields(content):
        if number == 14:
            pair = dict(_fields(_bytes(value)))
            found[_bytes(pair.get(1, b"")).decode()] = _bytes(pair.get(2, b"")).decode()
    return found


def read_graph(content: bytes) -> Graph:
    """The graph of a model; what a policy of ours never has is refused by name."""
    graph = Graph()
    for number, value in _fields(content):
        if number == 25:
            raise UserError("it brings functions of its own")
        if number == 7:
            for part, inner in _fields(_bytes(value)):
                if part == 1:
                    graph.steps.append(_step(_bytes(inner)))
                elif part == 5:
                    name, shape = _constant(_bytes(inner))
                    graph.constants[name] = shape
                elif part == 15:
                    raise UserError("it holds sparse numbers")
    if len(graph.steps) > MOST_NODES:
        raise UserError(f"its graph must have at most {MOST_NODES} steps, got {len(graph.steps)}")
    return graph


def _step(node: bytes) -> Step:
    inputs, outputs, operator, domain = list[str](), list[str](), "", ""
    for number, value in _fields(node):
        if number == 5:
            _check_attribute(_bytes(value))
        elif number in (1, 2, 4, 7):
            text = _bytes(value).decode()
            if number == 4:
                operator = text
            elif number == 7:
                domain = text
            else:
                (inputs if number == 1 else outputs).append(text)
    if operator not in OPERATIONS or domain:
        raise UserError(
            f"it uses the operator {domain + '.' if domain else ''}{operator}, which exports do not"
        )
    if len(outputs) != 1 or not inputs:
        raise UserError(f"a step {operator} must have inputs and one output")
    return OPERATIONS[operator], inputs[:1] if operator in TAKES_PART else inputs, outputs[0]


def _check_attribute(attribute: bytes) -> None:
    for number, _ in _fields(attribute):
        if number in (5, 6, 10, 11, 22, 23):
            raise UserError("a step holds numbers or a graph of its own")


def _constant(tensor: bytes) -> tuple[str, Shape]:
    """Name and shape of stored numbers, which must lie in this file and be numbers."""
    shape, name, kind, raw = list[int](), "", 0, b""
    for number, value in _fields(tensor):
        if number == 1:
            shape += [value] if isinstance(value, int) else list(_varints(value))
        elif number == 2 and isinstance(value, int):
            kind = value
        elif number == 8:
            name = _bytes(value).decode()
        elif number == 9:
            raw = _bytes(value)
        elif number in (13, 14):
            raise UserError(f"{name or 'a tensor'} keeps its numbers in another file, which is refused")
        elif number in (4, 10):
            raise UserError(f"{name or 'a tensor'} is not stored as exports store it")
    if kind in _FLOATS and not np.isfinite(np.frombuffer(raw, _FLOATS[kind])).all():
        raise UserError(f"{name} holds NaN or infinity")
    return name, tuple(shape)


def _fields(message: bytes) -> Fields:
    """Number and value of every field of a protobuf message."""
    position = 0
    while position < len(message):
        key, position = _varint(message, position)
        kind = key & 7
        if kind == _VARINT:
            value, position = _varint(message, position)
            yield key >> 3, value
            continue
        if kind == _LENGTH:
            size, position = _varint(message, position)
        elif kind in (_EIGHT, _FOUR):
            size = 8 if kind == _EIGHT else 4
        else:
            raise UserError("its bytes make no sense")
        if position + size > len(message):
            raise UserError("it ends too early")
        yield key >> 3, message[position : position + size]
        position += size


def _varints(packed: bytes) -> Iterator[int]:
    position = 0
    while position < len(packed):
        value, position = _varint(packed, position)
        yield value


def _varint(message: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while position < len(message) and shift < 64:
        byte = message[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if not byte & 0x80:
            return value, position
    raise UserError("it ends too early")


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise UserError("its bytes make no sense")
    return value


# An ONNX policy file evaluated by onnxruntime; needs onnxruntime and numpy only.


class OnnxPolicy(DeployedPolicy):
    """One session on one thread: the networks are small, and a second thread costs more than it saves."""

    def __init__(self, session: Any, metadata: Facts) -> None:
        super().__init__(metadata)
        self.session = session

    def compute(
        self, obs: FloatArray, names: tuple[str, ...], inputs: Given = NOTHING_CHOSEN
    ) -> list[FloatArray]:
        outputs: list[FloatArray] = self.session.run(names, self.file_inputs.given(obs, inputs))
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
        described = read_properties(content).get(METADATA_KEY)
        if described is None:
            raise UserError(
                f"{path} is not a policy of rl_training: it has no {METADATA_KEY} metadata; "
                "give a file that `rl-training export --format onnx` has written"
            )
        metadata = parse_metadata(described, path)
        graph = read_graph(content)
        refuse_large(graph.steps, graph.constants, FileInputs.of(metadata).widths)
    except (UserError, ValueError, LookupError) as problem:
        if str(path) in str(problem):
            raise
        raise UserError(
            f"{path} is not an ONNX file of ours, or it is damaged ({problem}); export the policy again"
        ) from None
    return metadata


def check_interface(policy: OnnxPolicy, path: Path) -> None:
    """Inputs and outputs must be those that the metadata speaks of."""
    inputs = {each.name: each.shape[-1] for each in policy.session.get_inputs()}
    outputs = {each.name: each.shape[-1] for each in policy.session.get_outputs()}
    if inputs != policy.file_inputs.widths or outputs != policy.widths:
        raise damaged(path, "its graph does not fit its metadata")
    try:
        nothing = np.zeros((2, policy.file_inputs.asked_dim), dtype=np.float32)
        found = policy.compute(nothing, tuple(outputs))
    except Exception as problem:  # of the runtime, again
        raise damaged(path, "it cannot be computed") from problem
    if not all(np.isfinite(values).all() for values in found):
        raise damaged(path, "it gives NaN or infinity")


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
