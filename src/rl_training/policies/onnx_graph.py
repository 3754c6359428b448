"""What is in an ONNX file, read without the onnx package and before any runtime acts on it.

A file of ours holds plain operations on numbers that lie in the file. One from somebody else could name
numbers in another file, an operator that takes all memory, or a loop without end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rl_training.core.errors import UserError
from rl_training.policies.onnx_export import ONE_OPERATOR
from rl_training.policies.program import MOST_NODES
from rl_training.policies.program_size import Shape, Step

OPERATIONS = {
    **{operator: operation for operation, operator in ONE_OPERATOR.items()},
    **{"Cast": "to_double", "Erf": "to_double", "Identity": "to_double"},
    **{
        "Slice": "columns",
        "Concat": "join",
        "ReduceMean": "mean",
        "ReduceSum": "sum",
        "ReduceMin": "smallest",
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
