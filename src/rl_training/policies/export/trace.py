"""From a live policy to its program: run the forward pass once and write down what it does."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import make_fx

from rl_training.core.errors import UserError
from rl_training.core.types import Array
from rl_training.policies.export.program import Node, Program
from rl_training.policies.inputs import SignalMemory
from rl_training.policies.opened import FIRST, NEXT_STATE, PREVIOUS, STATE
from rl_training.policies.policy import Policy
from rl_training.policies.torch_signals import TorchSignals


class Outputs(nn.Module):
    """`action`, then `mean` and `log_std` where asked for, then `novelty` where the policy has a guard.

    Of a policy with signals, it takes `obs`, `previous_action`, `first` and, where there is one, `state`
    (then other inputs), and gives `next_state` last.
    """

    def __init__(self, policy: Policy, distribution: bool) -> None:
        super().__init__()
        self.policy, self.distribution = policy, distribution
        novelty = () if policy.guard is None else ("novelty",)
        self.names: tuple[str, ...] = ("action", *(("mean", "log_std") if distribution else ()), *novelty)
        self.past: dict[str, int] = {}
        memory = policy.memory
        if isinstance(memory, SignalMemory):
            self.signals = TorchSignals(memory.program)
            self.nothing = torch.zeros(1, 1, dtype=torch.float64, device=policy.device)
            self.past = {PREVIOUS: policy.spaces.action_columns, FIRST: 1}
            if memory.state_size:
                self.past[STATE] = memory.state_size
                self.names = (*self.names, NEXT_STATE)
            self.forward(*self.example(2))  # makes the constants, so that none is made while tracing
        self.inputs = (*self.past, *(each.name for each in policy.inputs))

    def example(self, rows: int) -> list[Tensor]:
        """Inputs to trace with."""
        obs = torch.linspace(-1.0, 1.0, rows * self.policy.spaces.obs_dim).reshape(rows, -1)
        past = [
            torch.full((rows, size), 0.25, dtype=torch.float64 if name == STATE else torch.float32)
            for name, size in self.past.items()
        ]
        chosen = [torch.full((rows, 1), each.default) for each in self.policy.inputs]
        return [each.to(self.policy.device) for each in (obs, *past, *chosen)]

    def forward(self, obs: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
        if not self.past:
            return self.outputs(obs, *given)
        first, chosen = given[1].double() > 0.5, given[len(self.past) :]
        if STATE not in self.past:
            signals, _ = self.signals.step(obs, given[0], self.nothing, first)
            return self.outputs(signals.float(), *chosen)
        state = torch.where(first, self.nothing, given[2])
        signals, after = self.signals.step(obs, given[0], state, first)
        return (*self.outputs(signals.float(), *chosen), after)

    def outputs(self, obs: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
        action: Tensor = self.policy(obs, *inputs)
        spread = self.policy.distribution(obs, *inputs) if self.distribution else ()
        novelty = () if self.policy.guard is None else (self.policy.novelty(obs, action),)
        return (action, *spread, *novelty)


# torch's recorded calls as operations of a policy's program.


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
    "lt.Tensor": "less",
    "le.Tensor": "less_equal",
    "gt.Tensor": "greater",
    "gt.Scalar": "greater",
    "ge.Tensor": "greater_equal",
    "eq.Tensor": "equal",
    "eq.Scalar": "equal",
    "ne.Tensor": "not_equal",
    "ne.Scalar": "not_equal",
    "where.self": "where",
    "pow.Tensor_Tensor": "power",
    "floor.default": "floor",
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
        raise refusal(tracer.policy, f"it computes in {options.get('dtype')}")
    return tracer.add(kinds[options["dtype"]], arguments[0])


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
        raise refusal(tracer.policy, "it splits rows")
    total = 2 * width if isinstance(width, int) else sum(width)
    widths = [width, total - width] if isinstance(width, int) else list(width)
    starts = np.cumsum([0, *widths]).tolist()
    return tuple(tracer.add("columns", x, start=starts[i], stop=starts[i + 1]) for i in range(len(widths)))


def _gelu(tracer: Tracer, arguments: Arguments, options: Keywords) -> str:
    if options.get("approximate", "none") != "none":
        raise refusal(tracer.policy, "it uses an approximate gelu")
    return tracer.add("gelu", arguments[0])


def _join(tracer: Tracer, arguments: Arguments, options: Keywords) -> str:
    if arguments[1:] not in ([-1], [1]):
        raise refusal(tracer.policy, "it joins rows")
    return tracer.add("join", *arguments[0])


def _reduce(operation: str) -> Translation:
    def translate(tracer: Tracer, arguments: Arguments, options: Keywords) -> str:
        if arguments[1] not in ([-1], [1]) or arguments[2:] != [True]:
            raise refusal(tracer.policy, "it reduces over rows")
        return tracer.add(operation, arguments[0])

    return translate


def _nan_is_infinity(tracer: Tracer, arguments: Arguments, options: Keywords) -> str:
    if arguments[1:] != [math.inf, math.inf, -math.inf]:
        raise refusal(tracer.policy, "it turns NaN into a number")
    return tracer.add("nan_is_infinity", arguments[0])


def _best(tracer: Tracer, arguments: Arguments, options: Keywords) -> str:
    if arguments[1:] not in ([-1, True], [1, True]):
        raise refusal(tracer.policy, "it looks for the best of rows")
    return tracer.add("best", arguments[0])


def _columns(tracer: Tracer, arguments: Arguments, options: Keywords) -> str:
    x, axis, start, stop = arguments[:4]
    if axis not in (-1, 1) or arguments[4:] not in ([], [1]) or start < 0 or stop < 0:
        raise refusal(tracer.policy, "it takes a part of the rows")
    return tracer.add("columns", x, start=start, stop=stop)


def _take(tracer: Tracer, arguments: Arguments, options: Keywords) -> str:
    """Columns by number, as the runs in which they follow each other."""
    x, axis, places = arguments
    if axis not in (-1, 1) or not isinstance(places, Tensor):
        raise refusal(tracer.policy, "it chooses rows")
    numbers = places.tolist()
    runs = [[numbers[0], numbers[0] + 1]]
    for number in numbers[1:]:
        if number == runs[-1][1]:
            runs[-1][1] += 1
        else:
            runs.append([number, number + 1])
    parts = [tracer.add("columns", x, start=start, stop=stop) for start, stop in runs]
    return parts[0] if len(parts) == 1 else tracer.add("join", *parts)


SPECIAL: dict[str, Translation] = {
    "index_select.default": _take,
    "_to_copy.default": _cast,
    "addmm.default": lambda tracer, arguments, options: tracer.add("linear", *arguments[1:], arguments[0]),
    "addcmul.default": lambda tracer, arguments, options: tracer.add(
        "add", tracer.add("multiply", *arguments[1:]), arguments[0]
    ),
    "clamp.Tensor": _clamp,
    "transpose.int": lambda tracer, arguments, options: tracer.add("transpose", arguments[0]),
    "clamp.default": _clamp,
    "native_layer_norm.default": _layer_norm,
    "argmax.default": _best,
    "slice.Tensor": _columns,
    "split.Tensor": _split,
    "split_with_sizes.default": _split,
    "gelu.default": _gelu,
    "elu.default": lambda tracer, arguments, options: tracer.add("elu", arguments[0]),
    "cat.default": _join,
    "mean.dim": _reduce("mean"),
    "amin.default": _reduce("smallest"),
    "sum.dim_IntList": _reduce("sum"),
    "nan_to_num.default": _nan_is_infinity,
}


def refusal(policy: Policy, why: str) -> UserError:
    net = getattr(policy.actor, "net", None)
    network = "" if net is None else f" on network {net.plan.network!r}"
    return UserError(f"the actor {policy.actor.kind!r}{network} cannot be exported: {why}")


# From a live policy to its program: run the forward pass once and write down what it does.


ROWS = (7, 11)
"""Rows of the two observations traced: a step that depends on their number shows."""


def trace_policy(policy: Policy, *, distribution: bool = False) -> Program:
    """The program of what `policy.predict` computes; with its mean and log std where asked for."""
    if policy.memory is not None and not isinstance(policy.memory, SignalMemory):
        raise refusal(policy, f"files hold the past as signals, not as the memory {policy.memory.kind!r}")
    exact = policy.snapshot()
    first, second = (Tracer(exact, distribution).program(rows) for rows in ROWS)
    if first.description() != second.description() or not same_numbers(first, second):
        raise refusal(exact, "its steps depend on the number of observations")
    return first


def export_problem(policy: Policy) -> str | None:
    """Why a policy cannot be exported; none if it can."""
    try:
        trace_policy(policy)
    except UserError as problem:
        return str(problem)
    return None


class Tracer:
    """Turns torch's record of one forward pass into operations; what is constant is computed already."""

    def __init__(self, policy: Policy, distribution: bool) -> None:
        self.policy, self.compute = policy, Outputs(policy, distribution)
        self.names = {values.data_ptr(): name for name, values in named_numbers(policy)}
        self.nodes: list[Node] = []
        self.constants: dict[str, Array] = {}
        self.values: dict[fx.Node, Value] = {}

    def program(self, rows: int) -> Program:
        graph = self.record(rows)
        given = iter(("obs", *self.compute.inputs))
        for node in graph.nodes:
            if node.op == "placeholder":
                self.values[node] = next(given)
            elif node.op == "get_attr":
                self.values[node] = getattr(graph.owning_module, str(node.target)).detach()
            elif node.op == "call_function":
                self.values[node] = self.step(node)
        (output,) = (node for node in graph.nodes if node.op == "output")
        results = [self.operand(self.values[each]) for each in output.args[0]]
        outputs = dict(zip(self.compute.names, results, strict=True))
        return Program(tuple(self.nodes), self.constants, outputs, self.compute.inputs).only(outputs)

    def record(self, rows: int) -> fx.Graph:
        with torch.no_grad():
            traced = make_fx(self.compute)(*self.compute.example(rows))
        return traced.graph

    def step(self, node: fx.Node) -> Value:
        """What one recorded call gives: a number that is known now, or the name of a new operation."""
        arguments: Arguments = [self.value(each) for each in node.args]
        if getattr(node.target, "__name__", "") == "getitem":
            parts, index = arguments
            part: str | Tensor = parts[index]
            return part
        if not any(isinstance(each, str) or is_named_tuple(each) for each in flat(arguments)):
            known: Value = node.target(*arguments, **node.kwargs)  # type: ignore[operator]  # an ATen call
            source = next((a for a in flat(arguments) if isinstance(a, Tensor)), None)
            if source is not None and source.data_ptr() in self.names and isinstance(known, Tensor):
                self.names[known.data_ptr()] = self.names[source.data_ptr()]
            return known
        name = str(node.target).removeprefix("aten.")
        translate = SPECIAL.get(name)
        if translate is not None:
            return translate(self, arguments, dict(node.kwargs))
        if name in UNCHANGED:
            return self.operand(arguments[0])
        if name not in SAME_IN_BOTH:
            raise refusal(self.policy, f"it uses torch's {name}")
        return self.add(SAME_IN_BOTH[name], *arguments)

    def value(self, argument: Any) -> Any:
        """An argument of a recorded call, or a list of them."""
        if isinstance(argument, fx.Node):
            return self.values[argument]
        return [self.value(each) for each in argument] if isinstance(argument, list) else argument

    def add(self, operation: str, *inputs: str | Tensor | float, **attributes: float | int | None) -> str:
        """Append an operation, unless the same one is there already; its name counts those of its kind."""
        names = tuple(self.operand(each) for each in inputs)
        if operation == "transpose" and (turned := self.turned_product(names[0])) is not None:
            return turned
        for node in self.nodes:
            if (node.operation, node.inputs, node.attributes) == (operation, names, attributes):
                return node.output
        output = f"{operation}.{sum(node.operation == operation for node in self.nodes)}"
        self.nodes.append(Node(operation, names, output, attributes))
        return output

    def turned_product(self, name: str) -> str | None:
        """(W x')' as x W': training computes narrow layers the other way round, where that is faster."""
        by_name = {node.output: node for node in self.nodes}
        product = by_name.get(name)
        if product is None or product.operation != "matmul" or product.inputs[0] not in self.constants:
            return None
        turned = by_name.get(product.inputs[1])
        if turned is None or turned.operation != "transpose":
            return None
        weight = torch.from_numpy(np.ascontiguousarray(self.constants[product.inputs[0]].T))
        return self.add("matmul", turned.inputs[0], self.store(weight, product.inputs[0]))

    def operand(self, value: str | Tensor | float) -> str:
        """The name of an operation's result, or of a constant that is stored for it."""
        if isinstance(value, str):
            return value
        tensor = value if isinstance(value, Tensor) else torch.tensor(float(value), dtype=torch.float64)
        return self.store(tensor, self.names.get(tensor.data_ptr(), "number"))

    def store(self, tensor: Tensor, name: str) -> str:
        """Keep a constant, in float32 where that loses nothing; another one of its name gets a number."""
        array = tensor.detach().cpu().numpy().copy()
        narrow = array.astype(np.float32)
        stored = narrow if (narrow.astype(np.float64) == array).all() else array
        free = name
        for count in itertools.count(1):
            if free not in self.constants or np.array_equal(self.constants[free], stored):
                break
            free = f"{name}.{count}"
        self.constants[free] = stored
        return free


def named_numbers(policy: Policy) -> Sequence[tuple[str, Tensor]]:
    """Readable names for what the program stores."""
    bounds = ("half", "middle", "low", "high")
    units = [(f"action.{name}", getattr(policy, f"action_{name}")) for name in bounds]
    steps = [
        (f"obs.{name}", values)
        for step in policy.observation_steps
        for name, values in step.state_dict().items()
        if isinstance(values, Tensor)
    ]
    guard = [] if policy.guard is None else policy.guard.state_dict(keep_vars=True).items()
    distances = [(f"guard.{name}", values) for name, values in guard]
    return [*policy.actor.state_dict(keep_vars=True).items(), *units, *steps, *distances]


def same_numbers(first: Program, second: Program) -> bool:
    return first.constants.keys() == second.constants.keys() and all(
        np.array_equal(values, second.constants[name]) for name, values in first.constants.items()
    )


def flat(values: Sequence[Any]) -> list[Any]:
    return [inner for each in values for inner in (each if isinstance(each, list) else [each])]


def is_named_tuple(value: object) -> bool:
    """Whether a value is the results of an operation with several, some of them not known now."""
    return isinstance(value, tuple) and any(isinstance(each, str) for each in value)
