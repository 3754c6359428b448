"""Changes of units between data and learner; what a policy needs of them is saved with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rl_training.core.errors import DataError
from rl_training.data.episodes import Array

TensorOrArray = TypeVar("TensorOrArray", Tensor, npt.NDArray[np.float32])

OBSERVATION_EPSILON = 1e-3
"""Added to the standard deviation, so that a constant feature maps to 0 (TD3+BC)."""

RETURN_RANGE = 1000.0
"""IQL scales rewards so that the returns of its data span this much."""


class BatchTransform(Protocol):
    """A change of units applied to one field, either once to the stored rows or to each batch."""

    def apply(self, values: Tensor, /) -> Tensor: ...

    def to(self, device: torch.device | str) -> BatchTransform: ...


@dataclass(frozen=True)
class RewardTransform:
    """reward -> clip(scale * reward + shift). Data collected later must pass through the same constants."""

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

    def apply(self, rewards: Tensor) -> Tensor:
        transformed = rewards * self.scale + self.shift
        return transformed if self.clip is None else transformed.clamp(*self.clip)

    def apply_to_array(self, rewards: Array) -> Array:
        """The same arithmetic for an array, in single precision."""
        values = torch.from_numpy(np.ascontiguousarray(rewards, dtype=np.float32))
        transformed: Array = self.apply(values).numpy()
        return transformed

    def to_dict(self) -> dict[str, Any]:
        return {
            "scale": self.scale,
            "shift": self.shift,
            "clip": None if self.clip is None else list(self.clip),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RewardTransform:
        clip = values["clip"]
        bounds = None if clip is None else (float(clip[0]), float(clip[1]))
        return cls(scale=float(values["scale"]), shift=float(values["shift"]), clip=bounds)


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
class ObservationNormalizer:
    """(obs - mean) / (std + 1e-3) with the population standard deviation of the training observations."""

    mean: Tensor
    std: Tensor
    epsilon: float = OBSERVATION_EPSILON

    def apply(self, values: TensorOrArray, /) -> TensorOrArray:
        """Normalise observations `[..., obs_dim]`; a tensor gives a tensor, an array an array."""
        if isinstance(values, Tensor):
            return (values - self.mean) / (self.std + self.epsilon)
        result: npt.NDArray[np.float32] = self.apply(torch.from_numpy(np.asarray(values, np.float32))).numpy()
        return result

    def to(self, device: torch.device | str) -> ObservationNormalizer:
        return ObservationNormalizer(self.mean.to(device), self.std.to(device), self.epsilon)

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean, "std": self.std, "epsilon": self.epsilon}

    @classmethod
    def from_state_dict(cls, state: Mapping[str, Any]) -> ObservationNormalizer:
        mean, std = (torch.as_tensor(state[name], dtype=torch.float32) for name in ("mean", "std"))
        return cls(mean, std, float(state["epsilon"]))


@dataclass(frozen=True)
class ActionScaling:
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

    def apply(self, values: Tensor, /) -> Tensor:
        """In double precision, so that a bound maps to exactly -1 or 1."""
        unit = (values.double() - self.low) * (2.0 / (self.high - self.low)) - 1.0
        return unit.clamp(-self.limit, self.limit).float()

    def to(self, device: torch.device | str) -> ActionScaling:
        return ActionScaling(self.low.to(device), self.high.to(device), self.limit)
