"""The distance to the data, as a module that exports trace.

novelty = min over k of |W (x - mean) / scale - centre_k| / reach_k
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rl_training.core.errors import CheckpointError
from rl_training.core.spaces import Spaces
from rl_training.policies.guarding import WITH_ACTIONS, GuardFacts

TENSORS = ("mean", "scale", "whitening", "centres", "reach")


class Guard(nn.Module):
    """Points `[n, d]` (observations, or these and actions, in the user's units) -> novelty `[n, 1]`."""

    mean: Tensor
    scale: Tensor
    whitening: Tensor
    centres: Tensor
    reach: Tensor

    def __init__(self, facts: GuardFacts, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.facts = facts
        for name in TENSORS:
            # Kept in numbers that float32 holds, so that files store them in half the room.
            self.register_buffer(name, tensors[name].detach().float().double())

    @property
    def with_actions(self) -> bool:
        return self.facts.points == WITH_ACTIONS

    def points(self, obs: Tensor, actions: Tensor) -> Tensor:
        values = obs.to(self.mean.dtype)
        return torch.cat([values, actions.to(self.mean.dtype)], -1) if self.with_actions else values

    def forward(self, points: Tensor) -> Tensor:
        """|x - c|^2 as |x|^2 + |c|^2 - 2 x.c: one product for all centres."""
        x = ((points - self.mean) / self.scale) @ self.whitening
        lengths = (self.centres * self.centres).sum(-1)
        squared = (x * x).sum(-1, keepdim=True) + lengths - 2.0 * (x @ self.centres.t())
        nearest = (squared / (self.reach * self.reach)).amin(-1, keepdim=True)
        return nearest.clamp_min(0.0).sqrt().float()

    def pack(self) -> dict[str, Any]:
        """As a checkpoint stores it."""
        tensors = {name: getattr(self, name).float().cpu() for name in TENSORS}
        return {"facts": self.facts.to_dict(), "tensors": tensors}


def unpack_guard(packed: Mapping[str, Any], spaces: Spaces) -> Guard:
    """The guard out of a file that may say anything; what does not fit the policy is refused."""
    facts = GuardFacts.from_dict(packed["facts"], spaces)
    tensors: Mapping[str, Tensor] = packed["tensors"]
    size = spaces.obs_dim + (spaces.action_dim if facts.points == WITH_ACTIONS else 0)
    shapes = {
        "mean": (size,),
        "scale": (size,),
        "whitening": (size, size),
        "centres": (facts.centres, size),
        "reach": (facts.centres,),
    }
    for name, shape in shapes.items():
        found = tensors.get(name)
        if not isinstance(found, Tensor) or tuple(found.shape) != shape or not found.isfinite().all():
            raise CheckpointError(f"guard tensor {name} must hold finite numbers of shape {shape}")
    if not (tensors["scale"] > 0).all() or not (tensors["reach"] > 0).all():
        raise CheckpointError("guard tensors scale and reach must be > 0")
    return Guard(facts, tensors)
