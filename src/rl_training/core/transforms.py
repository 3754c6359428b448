"""Changes of units between data, learner and the world outside: observations, actions and rewards alike.

The same object serves the stored rows of a dataset, a batch, the steps that a collector sees, the policy and
what is exported from it; what a policy needs of them is saved with it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rl_training.core.errors import DataError
from rl_training.core.spaces import FloatArray, Spaces
from rl_training.core.types import Array, Facts, State

OBSERVATION_EPSILON = 1e-3
"""Added to the standard deviation, so that a constant feature maps to 0 (TD3+BC)."""

RETURN_RANGE = 1000.0
"""IQL scales rewards so that the returns of its data span this much."""


class Transform(ABC):
    """A change of units of one field."""

    kind: ClassVar[str]
    """Its name in files, of one that a policy takes along (`KINDS`)."""

    @abstractmethod
    def apply(self, values: Tensor) -> Tensor:
        """The values in the learner's units."""

    def undo(self, values: Tensor) -> Tensor:
        """What they were before."""
        raise TypeError(f"{type(self).__name__} cannot be undone")

    def apply_to_array(self, values: npt.ArrayLike) -> FloatArray:
        """The same arithmetic for an array, in single precision."""
        given = torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))
        changed: FloatArray = self.apply(given).numpy()
        return changed

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> Self:
        """The same with its numbers on another device, or in another precision."""
        return self

    def state_dict(self) -> State:
        """Numbers and tensors that make it again (`transform_from_state`)."""
        raise TypeError(f"{type(self).__name__} is no part of a policy")

    @classmethod
    def from_state_dict(cls, state: Facts) -> Self:
        raise TypeError(f"{cls.__name__} is no part of a policy")


@dataclass(frozen=True)
class RewardTransform(Transform):
    """reward -> clip(scale * reward + shift)."""

    scale: float = 1.0
    shift: float = 0.0
    clip: tuple[float, float] | None = None

    @property
    def is_identity(self) -> bool:
        return self == RewardTransform()

    @property
    def is_scaling(self) -> bool:
        """Whether returns follow by multiplication alone."""
        return self.shift == 0.0 and self.clip is None

    def apply(self, values: Tensor) -> Tensor:
        transformed = values * self.scale + self.shift
        return transformed if self.clip is None else transformed.clamp(*self.clip)

    def to_dict(self) -> State:
        clip = None if self.clip is None else list(self.clip)
        return {"scale": self.scale, "shift": self.shift, "clip": clip}

    @classmethod
    def from_dict(cls, state: Facts) -> RewardTransform:
        clip = state["clip"]
        bounds = None if clip is None else (float(clip[0]), float(clip[1]))
        return cls(scale=float(state["scale"]), shift=float(state["shift"]), clip=bounds)


def clip_bounds(clip: float | tuple[float, float] | None) -> tuple[float, float] | None:
    """`5` stands for `(-5, 5)`."""
    if clip is None:
        return None
    low, high = (-clip, clip) if isinstance(clip, int | float) else clip
    if not low < high:
        raise ValueError(f"reward_clip must be a number > 0 or [low, high] with low < high, got {clip}")
    return float(low), float(high)


def return_range_scale(returns: Array) -> float:
    """IQL's factor for rewards: 1000 / (largest - smallest episode return)."""
    spread = float(returns.max() - returns.min()) if len(returns) else 0.0
    if spread <= 0.0:
        raise DataError(
            f"normalize_reward needs episodes with different returns, but all {len(returns)} return "
            f"{float(returns[0]) if len(returns) else 0.0:g}; set normalize_reward: false"
        )
    return RETURN_RANGE / spread


@dataclass(frozen=True)
class ObservationNormalizer(Transform):
    """(obs - mean) / (std + 1e-3) with the population standard deviation of the training observations."""

    kind: ClassVar[str] = "normalize"
    mean: Tensor
    std: Tensor
    epsilon: float = OBSERVATION_EPSILON

    def apply(self, values: Tensor) -> Tensor:
        """Observations `[..., obs_dim]`."""
        return (values - self.mean) / (self.std + self.epsilon)

    def undo(self, values: Tensor) -> Tensor:
        return values * (self.std + self.epsilon) + self.mean

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> ObservationNormalizer:
        return replace(self, mean=self.mean.to(device, dtype), std=self.std.to(device, dtype))

    def state_dict(self) -> State:
        return {"mean": self.mean, "std": self.std, "epsilon": self.epsilon}

    @classmethod
    def from_state_dict(cls, state: Facts) -> ObservationNormalizer:
        mean, std = (torch.as_tensor(state[name], dtype=torch.float32) for name in ("mean", "std"))
        epsilon = float(state["epsilon"])
        if mean.ndim != 1 or mean.shape != std.shape or (std < 0).any() or epsilon < 0:
            raise DataError(
                "the transform 'normalize' is damaged: mean and std must be lists of one length, std and "
                f"epsilon >= 0, got shapes {tuple(mean.shape)} and {tuple(std.shape)}"
            )
        return cls(mean, std, epsilon)


@dataclass(frozen=True)
class ActionScaling(Transform):
    """Environment units -> [-limit, limit]; the range of the data (`rescale`) may stand in for the bounds.

    `limit` < 1 keeps actions off the edge, where the log-probability of a squashed Gaussian is infinite.
    """

    low: Tensor
    high: Tensor
    limit: float = 1.0

    @classmethod
    def between(
        cls, low: Sequence[float], high: Sequence[float], limit: float | None = None
    ) -> ActionScaling:
        bounds = [torch.tensor(bound, dtype=torch.float64) for bound in (low, high)]
        return cls(bounds[0], bounds[1], limit=1.0 if limit is None else limit)

    def apply(self, values: Tensor) -> Tensor:
        """In double precision, so that a bound maps to exactly -1 or 1."""
        unit = (values.double() - self.low) * (2.0 / (self.high - self.low)) - 1.0
        return unit.clamp(-self.limit, self.limit).float()

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> ActionScaling:
        return replace(self, low=self.low.to(device), high=self.high.to(device))


@dataclass(frozen=True)
class ActionEncoding(Transform):
    """Columns of actions with choices among them -> what learners see; boxes are kept in [-limit, limit]."""

    spaces: Spaces
    limit: float = 1.0

    def apply(self, values: Tensor) -> Tensor:
        encoded = self.spaces.encode(values.cpu().numpy())
        limits = np.where(self.spaces.of_boxes, np.float32(self.limit), np.float32(1.0))
        return torch.from_numpy(np.clip(encoded, -limits, limits)).to(values.device)


KINDS: dict[str, type[Transform]] = {ObservationNormalizer.kind: ObservationNormalizer}


def transform_state(transform: Transform) -> State:
    """A transform as a file holds it."""
    return {"kind": transform.kind, **transform.state_dict()}


def transform_from_state(state: Facts) -> Transform:
    """The inverse of `transform_state`."""
    kind = state.get("kind")
    if kind not in KINDS:
        raise DataError(f"a transform must be one of {', '.join(KINDS)}, got {kind!r}")
    transform = KINDS[kind].from_state_dict(state)
    for name, values in transform.state_dict().items():
        if values is not None and not torch.as_tensor(values).isfinite().all():
            raise DataError(f"the transform {kind!r} is damaged: {name} holds NaN or infinity")
    return transform
