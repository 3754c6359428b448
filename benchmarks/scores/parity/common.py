"""What every comparison needs: foreign code from a checkout, noise handed to it, weights compared."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from rl_training.algorithms.learner import Learner, unpack_noise
from rl_training.models.networks import MLP

OBS, ACTIONS, BATCH = 11, 3, 64
CHECKPOINTS = (1, 5, 50)
FLOOR = 1e-3
"""Weights smaller than this count as this large in a relative difference."""
TRAINING_ONLY = ("d4rl", "gym", "pyrallis", "wandb", "tqdm", "tqdm.auto")
"""What the training scripts import and an update does not need."""

Tensors = Sequence[Tensor]


@dataclass
class Case:
    """Our learner and a foreign one with the same weights; `theirs` makes one update of the foreign one."""

    learner: Learner
    theirs: Callable[[Mapping[str, Tensor], Mapping[str, Tensor]], None]
    pairs: Callable[[], Iterable[tuple[Tensor, Tensor]]]
    """Our tensors beside theirs, in the same layout."""


def compare(case: Case, seed: int = 0) -> dict[int, float]:
    """Updates -> largest relative difference of any weight, on equal batches and noise."""
    generator = torch.Generator().manual_seed(seed)
    found = {0: difference(case.pairs())}
    for update in range(1, max(CHECKPOINTS) + 1):
        batch, noise = random_batch(generator), random_noise(case.learner, generator)
        case.theirs(batch, noise)
        case.learner.step(batch, noise, case.learner.stage())
        case.learner.updates += 1
        if update in CHECKPOINTS:
            found[update] = difference(case.pairs())
    return found


def difference(pairs: Iterable[tuple[Tensor, Tensor]]) -> float:
    worst = 0.0
    for ours, theirs in pairs:
        if ours.shape != theirs.shape:
            raise ValueError(f"layouts differ: {tuple(ours.shape)} against {tuple(theirs.shape)}")
        worst = max(worst, ((ours - theirs).abs() / ours.abs().clamp_min(FLOOR)).max().item())
    return worst


def random_batch(generator: torch.Generator) -> dict[str, Tensor]:
    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    batch = {
        "obs": normal(BATCH, OBS),
        "actions": normal(BATCH, ACTIONS).tanh() * 0.99,
        "rewards": normal(BATCH),
        "next_obs": normal(BATCH, OBS),
        "dones": (torch.rand(BATCH, generator=generator) < 0.1).double(),
        "next_actions": normal(BATCH, ACTIONS).tanh() * 0.99,
        "returns_to_go": normal(BATCH),
    }
    return {**batch, "costs": (batch["next_obs"][:, :1] > 0.0).double()}


def random_noise(learner: Learner, generator: torch.Generator) -> dict[str, Tensor]:
    shapes = learner.noise_shapes(BATCH)
    sizes: dict[str, int] = {}
    for kind, shape in shapes.values():
        sizes[kind] = sizes.get(kind, 0) + int(torch.Size(shape).numel())
    draws = {"normal": torch.randn, "uniform": torch.rand}
    flat = {kind: draws[kind](size, generator=generator) for kind, size in sizes.items()}
    if "uniform" in flat:
        flat["uniform"] = flat["uniform"] * 2.0 - 1.0
    return unpack_noise(flat, shapes)


# ---- foreign code


def load_module(path: Path) -> ModuleType:
    """A file of a checkout as a module; what only its training loop needs is replaced by empty modules."""
    for name in TRAINING_ONLY:
        sys.modules.setdefault(name, Empty(name))
    name = f"foreign_{path.parent.name}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@contextmanager
def real_modules() -> Iterator[None]:
    """A package that is imported here finds the real ones in place of the empty modules."""
    emptied = {
        name: sys.modules.pop(name) for name in TRAINING_ONLY if isinstance(sys.modules.get(name), Empty)
    }
    try:
        yield
    finally:
        sys.modules.update(emptied)


class Empty(ModuleType):
    """A module that has every name: calls and decorators give back what they are given."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "wrap":  # pyrallis.wrap() decorates the training function
            return lambda *_, **__: lambda function: function
        return type(name, (), {})


@contextmanager
def torch_noise(*draws: Tensor) -> Iterator[None]:
    """Foreign torch code draws these numbers, in this order, and must use all of them."""
    queue = list(draws)
    normal = torch.distributions.normal
    saved = (torch.randn_like, normal._standard_normal, torch.Tensor.uniform_)

    def take(shape: Sequence[int]) -> Tensor:
        return queue.pop(0).reshape(tuple(shape)).clone()

    torch.randn_like = lambda like, *_, **__: take(like.shape)
    normal._standard_normal = lambda shape, dtype, device: take(shape)
    torch.Tensor.uniform_ = lambda self, *_, **__: self.copy_(take(self.shape))  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.randn_like, normal._standard_normal, torch.Tensor.uniform_ = saved  # type: ignore[method-assign]
    if queue:
        raise RuntimeError(f"{len(queue)} draws were left over")


# ---- weights


def own_layers(net: nn.Module) -> list[tuple[Tensor, Tensor]]:
    """Weights `[*lead, in, out]` and biases `[*lead, 1, out]` of one of our networks, in order."""
    assert isinstance(net, MLP)
    return [(layer.weight, layer.bias) for layer in (*net.hidden, net.output)]  # type: ignore[misc]


def linear_layers(module: nn.Module) -> list[nn.Linear]:
    return [each for each in module.modules() if isinstance(each, nn.Linear)]


@torch.no_grad()
def give(net: nn.Module, layers: Sequence[nn.Linear], member: int | None = None) -> None:
    """Copy one of our networks, or one member of an ensemble, into torch.nn.Linear layers."""
    for ours, theirs in linear_pairs(net, layers, member):
        theirs.copy_(ours)


def linear_pairs(
    net: nn.Module, layers: Sequence[nn.Linear], member: int | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    for (weight, bias), layer in zip(own_layers(net), layers, strict=True):
        own_weight, own_bias = (weight, bias) if member is None else (weight[member], bias[member])
        yield own_weight.detach().mT, layer.weight.detach()
        yield own_bias.detach()[0], layer.bias.detach()


def columns(batch: Mapping[str, Tensor], *names: str) -> list[Tensor]:
    """Fields of a batch as the foreign code has them: every one with two axes."""
    return [batch[name] if batch[name].dim() == 2 else batch[name].unsqueeze(-1) for name in names]


USUAL = ("obs", "actions", "rewards", "next_obs", "dones")
