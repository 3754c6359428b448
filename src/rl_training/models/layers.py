"""Layers whose every tensor may carry free leading axes: `[*seeds, (ensemble), batch, feature]`.

One `Linear` with a weight `[*lead, in, out]` is a plain layer, an ensemble of layers or a stack of seeds, and
costs one batched matrix product in each case.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Init = Literal["torch", "xavier", "orthogonal"]

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
        init: Init = "torch",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(*lead, in_features, out_features))
        self.bias = nn.Parameter(torch.zeros(*lead, 1, out_features))
        fill_members(self.weight, init, generator)
        if init == "torch":
            bound = 1.0 / math.sqrt(in_features)
            nn.init.uniform_(self.bias, -bound, bound, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        return affine(x, self.weight, self.bias)


def affine(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x @ weight + bias, whatever the leading axes; x may lack axes that the weight has.

    Which product is the fast one depends on the shape (docs/performance.md, "Narrow layers").
    """
    width = weight.shape[-1]
    # Compiled, the sums join the kernels around them; eager, `addmm` is the faster one.
    if width == 1 and (weight.dim() > 2 or torch.compiler.is_compiling()):
        return (x * weight.mT).sum(-1, keepdim=True) + bias
    if 1 < width < NARROW and weight.dim() == x.dim() == 2:
        # Contiguous, so that the gradient of the weight is computed the same way round.
        return torch.mm(weight.mT.contiguous(), x.mT).mT + bias
    if torch.compiler.is_compiling() and weight.dim() == x.dim() == 2:
        # Compiled, the bias joins the next kernel: behind an axis of one, as `mm` and a bias would become
        # `addmm`, which copies the bias first.
        return (torch.mm(x, weight)[None] + bias)[0]
    separate = torch.compiler.is_compiling() or weight.dim() > 3 or x.dim() > weight.dim()
    # Of factors that are rounded to bf16, `addmm` would round the sum with the bias as well.
    if separate or torch.is_autocast_enabled(x.device.type):
        return product(x, weight) + bias
    if weight.dim() == 2:
        return torch.addmm(bias, x, weight)
    return torch.baddbmm(bias, x.expand(weight.shape[0], *x.shape[-2:]), weight)


def product(left: Tensor, right: Tensor) -> Tensor:
    """left @ right with broadcast leading axes, as one library call on memory as it is.

    `matmul` would fold a leading axis of one into the rows and pay with a copy of the result.
    """
    if left.dim() == right.dim() == 3:
        members = max(left.shape[0], right.shape[0])
        left, right = left.expand(members, -1, -1), right.expand(members, -1, -1)
        if torch.compiler.is_compiling():
            # oneDNN copies factors that are repeated or cut out, at every call and slowly; here the copy
            # joins the kernel before, and serves the gradients too.
            left, right = left.contiguous(), right.contiguous()
        return torch.bmm(left, right)
    return torch.matmul(left, right)


@torch.no_grad()
def fill_members(weight: Tensor, init: Init, generator: torch.Generator | None, gain: float = 1.0) -> None:
    """Initialise every member of a leading axis on its own, as the matrix it is."""
    for matrix in weight.view(-1, *weight.shape[-2:]):
        if init == "torch":  # torch.nn.Linear's: Kaiming-uniform with a = sqrt(5)
            bound = gain / math.sqrt(matrix.shape[0])
            nn.init.uniform_(matrix, -bound, bound, generator=generator)
        elif init == "xavier":
            nn.init.xavier_uniform_(matrix, gain=gain, generator=generator)
        else:
            nn.init.orthogonal_(matrix, gain=gain * math.sqrt(2.0), generator=generator)


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
