"""Every way in which a linear layer is computed gives x @ W + b, and its gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rl_training.models.layers import NARROW, affine, product

LEADS: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((), ()),  # one layer
    ((), (3,)),  # one layer on inputs with an axis more
    ((3,), (3,)),  # an ensemble on inputs of its own, or stacked seeds
    ((3,), (1,)),  # an ensemble on one input
    ((2, 3), (2, 3)),  # stacked ensembles
    ((2, 3), (2, 1)),
]


def numbers(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("width", [1, 2, NARROW - 1, NARROW, 40])
@pytest.mark.parametrize(("weight_lead", "input_lead"), LEADS)
@pytest.mark.parametrize("compiling", [False, True])
def test_affine_and_its_gradients(
    weight_lead: tuple[int, ...],
    input_lead: tuple[int, ...],
    width: int,
    compiling: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: compiling)
    x = numbers(*input_lead, 5, 4, seed=1)
    weight = numbers(*weight_lead, 4, width, seed=2)
    bias = numbers(*weight_lead, 1, width, seed=3)
    found = affine(x, weight, bias)
    upstream = numbers(*found.shape, seed=4).detach()
    wanted = torch.einsum("...bi,...io->...bo", x, weight) + bias
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    for one, other in zip(
        torch.autograd.grad(found, (x, weight, bias), upstream),
        torch.autograd.grad(wanted, (x, weight, bias), upstream),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("weight_lead", "input_lead"), LEADS)
def test_product_broadcasts_as_matmul(weight_lead: tuple[int, ...], input_lead: tuple[int, ...]) -> None:
    left, right = numbers(*input_lead, 5, 4, seed=1), numbers(*weight_lead, 4, 3, seed=2)
    torch.testing.assert_close(product(left, right), torch.matmul(left, right), rtol=1e-12, atol=1e-12)
