"""The GEMM floor: only the matrix products that an update needs, with nothing in between.

Each product by the library that is fastest for it here, MKL or oneDNN, whatever an update takes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from passes import Pass, passes_of
from protocol import Meter, Spec
from torch import Tensor

from rl_training.core.products import Library, computed_by, rounds_as_single

TRIALS = 5


@dataclass(frozen=True)
class Product:
    """left @ right into out."""

    left: Tensor
    right: Tensor
    out: Tensor

    def run(self) -> None:
        (torch.mm if self.left.dim() == 2 else torch.bmm)(self.left, self.right, out=self.out)


LIBRARIES: tuple[Library, ...] = ("mkl", "onednn") if rounds_as_single() else ("mkl",)


def fastest(product: Product) -> tuple[Library, list[Product]]:
    """The same product in one call or member by member, as it stands or transposed: what is faster here.

    Batched products with one column and products with few columns are slow in some libraries.
    """
    ways = [[product], [transposed(product)]]
    if product.left.dim() > 2:
        members = [Product(*parts) for parts in zip(product.left, product.right, product.out, strict=True)]
        ways += [members, [transposed(member) for member in members]]
    timed = [(best_time(way, library), library, way) for library in LIBRARIES for way in ways]
    _, library, way = min(timed, key=lambda each: each[0])
    return library, way


def transposed(product: Product) -> Product:
    return Product(product.right.mT, product.left.mT, torch.empty(product.out.mT.shape))


def best_time(products: Sequence[Product], library: Library) -> float:
    times = []
    with computed_by(library):
        for _ in range(TRIALS):
            start = time.perf_counter()
            for product in products:
                product.run()
            times.append(time.perf_counter() - start)
    return min(times)


def products_of(step: Pass) -> Iterator[Product]:
    """Forward, then the gradients of the weights and, where it must flow on, of the inputs."""
    lead = () if step.members == 1 else (step.members,)
    layers = list(pairwise(step.sizes))
    weights = [torch.randn(*lead, a, b) for a, b in layers]
    values = [torch.randn(*lead, step.rows, size) for size in step.sizes]
    for index, weight in enumerate(weights):
        yield Product(values[index], weight, values[index + 1])
    if not step.trained and not step.wanted_inputs:
        return
    gradients = [torch.randn(*lead, step.rows, size) for size in step.sizes]
    for index in reversed(range(len(layers))):
        if step.trained:
            yield Product(values[index].mT, gradients[index + 1], torch.empty_like(weights[index]))
        if index:
            yield Product(gradients[index + 1], weights[index].mT, gradients[index])
        elif step.wanted_inputs:
            wanted = weights[0][..., -step.wanted_inputs :, :].mT
            out = torch.empty(*lead, step.rows, step.wanted_inputs)
            yield Product(gradients[1], wanted, out)


def updates(spec: Spec) -> None:
    torch.set_num_threads(spec.threads)
    passes = passes_of(spec)
    unit = max(step.every for step in passes)
    products: dict[Library, list[Product]] = {library: [] for library in LIBRARIES}
    for update in range(unit):
        for step in passes:
            if update % step.every == 0:
                for product in products_of(step):
                    library, way = fastest(product)
                    products[library] += way

    def one_unit() -> None:
        for library, chosen in products.items():
            with computed_by(library):
                for product in chosen:
                    product.run()

    with torch.inference_mode():
        Meter(unit=unit).repeat(one_unit)


KINDS = {"update": updates}
