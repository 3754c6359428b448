"""torch's recorded calls as operations of a policy's program."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from rl_training.core.errors import UserError
from rl_training.policies.policy import Policy

if TYPE_CHECKING:
    from rl_training.policies.tracing import Tracer

SAME_IN_BOTH = {
    "clamp_max.default": "minimum",
    "clamp_min.default": "maximum",
    "add.Tensor": "add",
    "sub.Tensor": "subtract",
    "mul.Tensor": "multiply",
    "div.Tensor": "divide",
    "mm.default": "matmul",
    "matmul.default": "matmul",
    "t.default": "transpose",
    "maximum.default": "maximum",
    "minimum.default": "minimum",
    "relu.default": "relu",
    "tanh.default": "tanh",
    "sigmoid.default": "sigmoid",
    "silu.default": "silu",
    "exp.default": "exp",
    "log.default": "log",
    "sqrt.default": "sqrt",
    "neg.default": "negative",
    "abs.default": "absolute",
    "sin.default": "sine",
    "cos.default": "cosine",
}
"""torch's name of an operation -> ours, where the arguments are the same."""

UNCHANGED = ("clone.default", "detach.default", "contiguous.default", "alias.default")

Value = str | Tensor | Any
"""What a recorded call gives: the name of an operation, a constant, or a tuple of them."""
Arguments = list[Any]
Keywords = dict[str, Any]
"""As torch recorded them: tensors, numbers and lists, by the signature of the operation."""

Translation = Callable[["Tracer", Arguments, Keywords], Value]


def _cast(tracer: Tracer, arguments: Arguments, options: Keywords) -> str:
    kinds = {torch.float64: "to_double", torch.float32: "to_float"}
    if options.get("dtype") not in kinds:
        raise UserError(f"{who(tracer.policy)} cannot be exported: it computes in {options.get('dtype')}")
    return tracer.add(kinds[options["dtype"]], arguments[0])


def _linear(tracer: Tracer, arguments: Arguments, options: Keywords) -> str:
    bias, x, weight = arguments
    return tracer.add("linear", x, weight, bias)


def _clamp(tracer: Tracer, arguments: Arguments, options: Keywords) -> str:
    low = arguments[1] if len(arguments) > 1 else options.get("min")
    high = arguments[2] if len(arguments) > 2 else options.get("max")
    x = arguments[0]
    if low is not None:
        x = tracer.add("maximum", x, low)
    return x if high is None else tracer.add("minimum", x, high)


def _layer_norm(tracer: Tracer, arguments: Arguments, options: Keywords) -> tuple[str | None, ...]:
    x, _, scale, shift, epsilon = arguments
    out = tracer.add("layer_norm", x, epsilon=float(epsilon))
    if scale is not None:
        out = tracer.add("multiply", out, scale)
    return (out if shift is None else tracer.add("add", out, shift), None, None)


def _split(tracer: Tracer, arguments: Arguments, options: Keywords) -> tuple[str, ...]:
    x, width, axis = arguments
    if axis not in (-1, 1):
        raise UserError(f"{who(tracer.policy)} cannot be exported: it splits rows")
    total = 2 * width if isinstance(width, int) else sum(width)
    widths = [width, total - width] if isinstance(width, int) else list(width)
    starts = np.cumsum([0, *widths]).tolist()
    return tuple(tracer.add("columns", x, start=starts[i], stop=starts[i + 1]) for i in range(len(widths)))


def _gelu(tracer: Tracer, arguments: Arguments, options: Keywords) -> str:
    if options.get("approximate", "none") != "none":
        raise UserError(f"{who(tracer.policy)} cannot be exported: it uses an approximate gelu")
    return tracer.add("gelu", arguments[0])


def _join(tracer: Tracer, arguments: Arguments, options: Keywords) -> str:
    if arguments[1:] not in ([-1], [1]):
        raise UserError(f"{who(tracer.policy)} cannot be exported: it joins rows")
    return tracer.add("join", *arguments[0])


def _reduce(operation: str) -> Translation:
    def translate(tracer: Tracer, arguments: Arguments, options: Keywords) -> str:
        if arguments[1] not in ([-1], [1]) or arguments[2:] != [True]:
            raise UserError(f"{who(tracer.policy)} cannot be exported: it reduces over rows")
        return tracer.add(operation, arguments[0])

    return translate


SPECIAL: dict[str, Translation] = {
    "_to_copy.default": _cast,
    "addmm.default": _linear,
    "addcmul.default": lambda tracer, arguments, options: tracer.add(
        "add", tracer.add("multiply", *arguments[1:]), arguments[0]
    ),
    "clamp.Tensor": _clamp,
    "transpose.int": lambda tracer, arguments, options: tracer.add("transpose", arguments[0]),
    "clamp.default": _clamp,
    "native_layer_norm.default": _layer_norm,
    "split.Tensor": _split,
    "split_with_sizes.default": _split,
    "gelu.default": _gelu,
    "elu.default": lambda tracer, arguments, options: tracer.add("elu", arguments[0]),
    "cat.default": _join,
    "mean.dim": _reduce("mean"),
    "amin.default": _reduce("smallest"),
    "sum.dim_IntList": _reduce("sum"),
}


def who(policy: Policy) -> str:
    net = getattr(policy.actor, "net", None)
    network = "" if net is None else f" on network {net.plan.network!r}"
    return f"the actor {policy.actor.kind!r}{network}"
