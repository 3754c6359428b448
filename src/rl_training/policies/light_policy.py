"""A policy file evaluated with numpy alone.

No buffers are kept between calls: a few arrays of one row cost about a microsecond, and without them one
object serves several threads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rl_training.core.spaces import FloatArray
from rl_training.policies.deployed import DeployedPolicy
from rl_training.policies.graph import Array, PolicyGraph


class LightPolicy(DeployedPolicy):
    """The graph, one matrix product per layer, in float64 as the live policy acts."""

    def __init__(self, graph: PolicyGraph, metadata: Mapping[str, Any]) -> None:
        super().__init__(metadata)
        self.graph = graph.in_double()

    def compute(self, obs: FloatArray) -> FloatArray:
        output = self.graph.output
        means = self._features(obs) @ output.weight + output.bias
        unit = np.clip(means, -1.0, 1.0) if self.graph.head == "unbounded" else np.tanh(means)
        return self.spaces.to_env(unit)

    def compute_distribution(self, obs: FloatArray) -> tuple[FloatArray, FloatArray]:
        output, spread = self.graph.output, self.graph.spread
        assert spread is not None
        features = self._features(obs)
        mean = features @ output.weight + output.bias
        log_std = np.clip(features @ spread.layer.weight + spread.layer.bias, spread.low, spread.high)
        if self.graph.head == "tanh_mean":
            mean = np.tanh(mean)
        return mean.astype(np.float32), log_std.astype(np.float32)

    def _features(self, obs: FloatArray) -> Array:
        """What the last layer sees."""
        x: Array = obs.astype(np.float64)
        if self.graph.obs_mean is not None and self.graph.obs_scale is not None:
            x = (x - self.graph.obs_mean) / self.graph.obs_scale
        for layer in self.graph.hidden:
            x = x @ layer.weight
            x += layer.bias
            np.maximum(x, 0.0, out=x)
        return x
