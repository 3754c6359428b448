"""A policy as plain numbers: what every exported format computes, written down once.

    x = (obs - obs_mean) / obs_scale           where the training data was normalised
    x = relu(x @ weight + bias)                for every hidden layer
    m = x @ weight + bias                      the last layer
    unit action, mean, log_std                 see `HEADS`
    action = clip(unit * half + middle)        the environment's own units and bounds

Stored in float32, computed in float64: in float32, libraries differ by up to 1e-3 of an action where
observations are far outside the data.

Numpy only: a deployed policy needs neither torch nor the training code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rl_training.core.errors import UserError
from rl_training.core.spaces import FloatArray, Spaces, inner_float32

Array = npt.NDArray[np.floating[Any]]

HEADS = {
    "deterministic": "action = tanh(m); there is no distribution",
    "squashed": "mean = m; action = tanh(mean); a draw is tanh(mean + exp(log_std) * noise)",
    "tanh_mean": "mean = tanh(m); action = mean; a draw is clip(mean + exp(log_std) * noise, -1, 1)",
    "unbounded": "mean = m; action = clip(mean, -1, 1); a draw is clip(mean + exp(log_std) * noise, -1, 1)",
}
"""What follows the last layer. Means, spreads and draws are in [-1, 1] units, before un-scaling."""


@dataclass(frozen=True)
class Layer:
    """y = x @ weight + bias, weight `[in, out]`."""

    weight: Array
    bias: Array


@dataclass(frozen=True)
class Spread:
    """log_std = clip(x @ weight + bias, low, high) of the last hidden x; weight 0 makes it a constant."""

    layer: Layer
    low: float
    high: float


@dataclass(frozen=True)
class PolicyGraph:
    """Everything that the action depends on."""

    spaces: Spaces
    head: str
    hidden: tuple[Layer, ...]
    output: Layer
    obs_mean: Array | None = None
    obs_scale: Array | None = None
    spread: Spread | None = None

    def __post_init__(self) -> None:
        if self.head not in HEADS:
            raise UserError(f"head must be one of {', '.join(HEADS)}, got {self.head!r}")
        if (self.obs_mean is None) != (self.obs_scale is None):
            raise UserError("obs_mean and obs_scale must be given together")
        for vector in (self.obs_mean, self.obs_scale):
            if vector is not None and vector.shape != (self.spaces.obs_dim,):
                raise UserError(f"normalisation must have {self.spaces.obs_dim} numbers, got {vector.shape}")
        width = self.spaces.obs_dim
        for layer in self.hidden:
            width = _checked_width(layer, width)
        for layer in (self.output, *(() if self.spread is None else (self.spread.layer,))):
            if _checked_width(layer, width) != self.spaces.action_dim:
                raise UserError(f"the last layer must have {self.spaces.action_dim} outputs")

    def tensors(self) -> dict[str, Array]:
        """The arrays by name, as the safetensors file stores them."""
        named: dict[str, Array] = {}
        for index, layer in enumerate(self.hidden):
            named |= _named(f"hidden.{index}", layer)
        named |= _named("output", self.output)
        if self.spread is not None:
            named |= _named("log_std", self.spread.layer)
        if self.obs_mean is not None and self.obs_scale is not None:
            named |= {"obs.mean": self.obs_mean, "obs.scale": self.obs_scale}
        return named

    def description(self) -> dict[str, Any]:
        """The rest of the graph, as JSON."""
        spread = self.spread
        return {
            "spaces": self.spaces.to_dict(),
            "head": self.head,
            "hidden_layers": len(self.hidden),
            "log_std_range": None if spread is None else [spread.low, spread.high],
            "normalized": self.obs_mean is not None,
        }

    def in_double(self) -> PolicyGraph:
        """The same numbers, ready to compute with."""
        wide = {name: values.astype(np.float64) for name, values in self.tensors().items()}
        return self.restore(self.description(), wide)

    @classmethod
    def restore(cls, described: Mapping[str, Any], tensors: Mapping[str, Array]) -> PolicyGraph:
        """The inverse of `tensors` and `description`; a missing part raises `KeyError`."""
        bounds = described["log_std_range"]
        normalized = described["normalized"]
        return cls(
            spaces=Spaces.from_dict(described["spaces"]),
            head=described["head"],
            hidden=tuple(_layer(f"hidden.{i}", tensors) for i in range(int(described["hidden_layers"]))),
            output=_layer("output", tensors),
            obs_mean=tensors["obs.mean"] if normalized else None,
            obs_scale=tensors["obs.scale"] if normalized else None,
            spread=None if bounds is None else Spread(_layer("log_std", tensors), *map(float, bounds)),
        )


def _named(name: str, layer: Layer) -> dict[str, Array]:
    return {f"{name}.weight": layer.weight, f"{name}.bias": layer.bias}


def _layer(name: str, tensors: Mapping[str, Array]) -> Layer:
    return Layer(tensors[f"{name}.weight"], tensors[f"{name}.bias"])


def _checked_width(layer: Layer, inputs: int) -> int:
    """The number of outputs of a layer that fits behind `inputs` numbers."""
    shape = layer.weight.shape
    if len(shape) != 2 or shape[0] != inputs or layer.bias.shape != (shape[1],):
        raise UserError(f"a layer behind {inputs} numbers has weight {shape} and bias {layer.bias.shape}")
    return int(shape[1])


def action_scale(spaces: Spaces) -> tuple[Array, Array, FloatArray, FloatArray]:
    """Half width and middle of the action bounds in float64; the bounds in float32, as actions leave."""
    low, high = np.array(spaces.action_low), np.array(spaces.action_high)
    inner = inner_float32(low, upward=True), inner_float32(high, upward=False)
    return (high - low) / 2.0, (high + low) / 2.0, *inner
