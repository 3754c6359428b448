"""A network of sines: `network: sine`, `network_options: {frequency: 3.0}`."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from rl_training.config import ConfigModel, setting
from rl_training.models import Network


class SineOptions(ConfigModel):
    """Settings of this network alone."""

    frequency: float = setting(1.0, "factor inside the sine", gt=0)


class SineNetwork(Network):
    """Linear -> LayerNorm where chosen -> sin(frequency x) for each hidden size, then a linear output.

    `self.layer`, `self.norm` and `self.output_layer` give every parameter the leading axes of ensembles
    and of stacked seeds; with them a network trains in every algorithm, stacked, compiled and exported.
    """

    options_class = SineOptions

    def build(self, in_features: int, out_features: int) -> None:
        self.frequency = SineOptions.build(self.plan.options, where="network_options").frequency
        widths = [in_features, *self.hidden_sizes]
        self.hidden = nn.ModuleList(self.layer(a, b) for a, b in pairwise(widths))
        self.norms = nn.ModuleList(self.norm(width) for width in self.hidden_sizes)
        self.output = self.output_layer(widths[-1], out_features)

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        for layer, norm in zip(self.hidden, self.norms, strict=True):
            x = torch.sin(self.frequency * norm(layer(x)))
        out: Tensor = self.output(x)
        return out
