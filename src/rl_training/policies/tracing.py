"""From a live policy to its program: run the forward pass once and write down what it does."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from rl_training.core.errors import UserError
from rl_training.core.plain import Array
from rl_training.policies.outputs import Outputs, output_names
from rl_training.policies.policy import Policy
from rl_training.policies.program import Node, Program
from rl_training.policies.translating import SAME_IN_BOTH, SPECIAL, UNCHANGED, Arguments, Value, who

ROWS = (7, 11)
"""Rows of the two observations traced: a step that depends on their number shows."""


def trace_policy(policy: Policy, *, distribution: bool = False) -> Program:
    """The program of what `policy.predict` computes; with its mean and log std where asked for."""
    exact = policy.snapshot()
    first, second = (Tracer(exact, distribution).program(rows) for rows in ROWS)
    if first.description() != second.description() or not same_numbers(first, second):
        raise UserError(f"{who(exact)} cannot be exported: its steps depend on the number of observations")
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
        self.policy, self.distribution = policy, distribution
        self.names = {values.data_ptr(): name for name, values in named_numbers(policy)}
        self.nodes: list[Node] = []
        self.constants: dict[str, Array] = {}
        self.values: dict[fx.Node, Value] = {}

    def program(self, rows: int) -> Program:
        graph = self.record(rows)
        for node in graph.nodes:
            if node.op == "placeholder":
                self.values[node] = "obs"
            elif node.op == "get_attr":
                self.values[node] = getattr(graph.owning_module, str(node.target)).detach()
            elif node.op == "call_function":
                self.values[node] = self.step(node)
        (output,) = (node for node in graph.nodes if node.op == "output")
        results = [self.operand(self.values[each]) for each in output.args[0]]
        outputs = dict(zip(output_names(self.policy, self.distribution), results, strict=True))
        return Program(tuple(self.nodes), self.constants, outputs).only(outputs)

    def record(self, rows: int) -> fx.Graph:
        compute = Outputs(self.policy, self.distribution)
        obs = torch.linspace(-1.0, 1.0, rows * self.policy.spaces.obs_dim).reshape(rows, -1)
        with torch.no_grad():
            traced = make_fx(compute)(obs.to(self.policy.device))
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
            raise UserError(f"{who(self.policy)} cannot be exported: it uses torch's {name}")
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
