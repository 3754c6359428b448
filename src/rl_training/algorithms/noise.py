"""The random numbers of an update: drawn as one row of each kind, handed out by name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

from torch import Tensor

NoiseKind = Literal["normal", "uniform"]
NoiseShapes = Mapping[str, tuple[NoiseKind, tuple[int, ...]]]


def flat_size(shapes: NoiseShapes, kind: str) -> int:
    return sum(math.prod(shape) for each, shape in shapes.values() if each == kind)


def unpack_noise(flat: Mapping[str, Tensor], shapes: NoiseShapes) -> dict[str, Tensor]:
    """`[*S, count]` numbers of each kind -> the named tensors `[*S, *shape]` of one update."""
    noise: dict[str, Tensor] = {}
    used = dict.fromkeys(flat, 0)
    for name, (kind, shape) in shapes.items():
        size = math.prod(shape)
        noise[name] = flat[kind][..., used[kind] : used[kind] + size].reshape(*flat[kind].shape[:-1], *shape)
        used[kind] += size
    return noise
