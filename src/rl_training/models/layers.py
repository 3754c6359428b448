"""Layers whose every tensor may carry free leading axes: `[*seeds, (ensemble), batch, feature]`.

One `Linear` with a weight `[*lead, in, out]` is a plain layer, an ensemble of layers or a stack of seeds, and
costs one batched matrix product in each case.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Init = Literal["default", "xavier", "orthogonal"]

NARROW = 16
"""Layers of fewer columns are computed transposed, with the long side where BLAS vectorises."""


class Linear(nn.Module):
    """y = x @ W + b with W `[*lead, in, out]` and b `[*lead, 1, out]`."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        lead: Sequence[int] = (),
        *,
        init: Init = "default",
        gain: float = math.sqrt(2.0),
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(*lead, in_features, out_features))
        self.bias = nn.Parameter(torch.zeros(*lead, 1, out_features))
        fill_members(self.weight, init, gain, generator)
        if init == "default":
            bound = 1.0 / math.sqrt(in_features)
            nn.init.uniform_(self.bias, -bound, bound, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        return affine(x, self.weight, self.bias)


def affine(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x @ weight + bias, whatever the leading axes; x may lack axes that the weight has.

    Which product is the fast one depends on the shape (docs/performance.md, "Narrow layers").
    """
    width = weight.shape[-1]
    if width == 1 and weight.dim() > 2:
        return (x * weight.mT).sum(-1, keepdim=True) + bias
    if 1 < width < NARROW and weight.dim() == x.dim() == 2:
        # Contiguous, so that the gradient of the weight is computed the same way round.
        return torch.mm(weight.mT.contiguous(), x.mT).mT + bias
    if torch.compiler.is_compiling() or weight.dim() > 3 or x.dim() > weight.dim():
        return product(x, weight) + bias  # compiled, the bias joins the next kernel
    if weight.dim() == 2:
        return torch.addmm(bias, x, weight)
    return torch.baddbmm(bias, x.expand(weight.shape[0], *x.shape[-2:]), weight)


def product(left: Tensor, right: Tensor) -> Tensor:
    """left @ right with broadcast leading axes, as one library call on memory as it is.

    `matmul` would fold a leading axis of one into the rows and pay with a copy of the result; compiled, `mm`
    and a bias would become `addmm`, which copies the bias first, and not one kernel of bias and activation.
    """
    if left.dim() == right.dim() == 2:
        return torch.bmm(left[None], right[None])[0]
    if left.dim() == right.dim() == 3:
        members = max(left.shape[0], right.shape[0])
        return torch.bmm(left.expand(members, -1, -1), right.expand(members, -1, -1))
    return torch.matmul(left, right)


@torch.no_grad()
def fill_members(weight: Tensor, init: Init, gain: float, generator: torch.Generator | None) -> None:
    """Initialise every member of a leading axis on its own, as the matrix it is."""
    for matrix in weight.view(-1, *weight.shape[-2:]):
        if init == "default":  # torch.nn.Linear's: Kaiming-uniform with a = sqrt(5)
            bound = 1.0 / math.sqrt(matrix.shape[0])
            nn.init.uniform_(matrix, -bound, bound, generator=generator)
        elif init == "xavier":
            nn.init.xavier_uniform_(matrix, generator=generator)
        else:
            nn.init.orthogonal_(matrix, gain=gain, generator=generator)


class LayerNorm(nn.Module):
    """Layer normalisation over the last axis with leading axes on its scale and shift."""

    def __init__(self, features: int, lead: Sequence[int] = ()) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(*lead, 1, features))
        self.shift = nn.Parameter(torch.zeros(*lead, 1, features))

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:]) * self.scale + self.shift


def dropout_scale(uniform: Tensor, rate: float) -> Tensor:
    """Inverted dropout from U[-1, 1) numbers: 0 with probability `rate`, else 1 / (1 - rate)."""
    return (uniform >= 2.0 * rate - 1.0).to(uniform.dtype) / (1.0 - rate)


class MLP(nn.Module):
    """Linear -> (LayerNorm) -> ReLU for each hidden size, then a linear output.

    `output_gain` scales the output layer's initialisation (CQL family: 1e-2); None treats it as any layer.
    """

    def __init__(
        self,
        in_features: int,
        hidden_sizes: Sequence[int],
        out_features: int,
        lead: Sequence[int] = (),
        *,
        init: Init = "default",
        output_gain: float | None = None,
        layer_norm: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.hidden_sizes = list(hidden_sizes)
        widths = [in_features, *hidden_sizes]
        self.hidden = nn.ModuleList(
            Linear(a, b, lead, init=init, generator=generator) for a, b in pairwise(widths)
        )
        self.norms = nn.ModuleList(LayerNorm(width, lead) for width in hidden_sizes if layer_norm)
        self.output = Linear(widths[-1], out_features, lead, init=init, generator=generator)
        if output_gain is not None:
            with torch.no_grad():
                self.output.weight.mul_(output_gain if init != "orthogonal" else output_gain / math.sqrt(2.0))

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        """`keep` `[*S, B, hidden_units]` multiplies the hidden units (`dropout_scale`)."""
        return self.from_first(self.hidden[0](x) if self.hidden else x, keep)

    def from_first(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        """The rest of the network from the first layer's product on (see `QEnsemble.many`)."""
        scales = () if keep is None else torch.split(keep, self.hidden_sizes, dim=-1)
        for index in range(len(self.hidden)):
            if index:
                x = self.hidden[index](x)
            if self.norms:
                x = self.norms[index](x)
            x = torch.relu(x)
            if scales:
                x = x * scales[index]
        out: Tensor = self.output(x)
        return out
