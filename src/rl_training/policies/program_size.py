"""How large the results of a policy's operations get, known before any of them is computed.

A small file can describe a huge product: a column times a row. Sizes are followed from step to step, for a
program of ours and for an ONNX graph alike, and one that no policy needs is refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from rl_training.core.errors import UserError

Shape = tuple[int, ...]
Step = tuple[str, Sequence[str], str]
"""Operation (a name of ours), names of its inputs, name of its result."""

MOST_VALUES = 2**25
"""Numbers in one result, for two observations."""
MOST_WORK = 10**11
"""Multiplications of all steps together, for two observations."""
_PRODUCTS = ("matmul", "linear")


def refuse_large(steps: Iterable[Step], constants: Mapping[str, Shape], obs_dim: int) -> None:
    """Follow the sizes of all results; upper limits where an operation takes a part of its input."""
    shapes: dict[str, Shape] = {**constants, "obs": (2, obs_dim)}
    work = 0
    for operation, inputs, output in steps:
        given = [shapes[name] for name in inputs]
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
    if operation in ("columns", "mean", "sum", "smallest"):
        return given[0]
    return _stretched(*given)


def _stretched(*shapes: Shape) -> Shape:
    """As numpy stretches shapes over each other, by the larger one where they do not fit."""
    rank = max(map(len, shapes), default=0)
    filled = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    return tuple(map(max, *filled)) if len(filled) > 1 else filled[0]
