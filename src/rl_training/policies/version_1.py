"""Policy files of format 1, which held layers and the name of a head, read as a program of today."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rl_training.core.plain import Array, Facts, State
from rl_training.core.spaces import Spaces, inner_float32
from rl_training.policies.program import Node

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
    nodes = [[n.operation, list(n.inputs), n.output, dict(n.attributes)] for n in nodes_of(graph)]
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
