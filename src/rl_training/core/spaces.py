"""What a policy needs to know of its environment: sizes and action bounds, and the way between units."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from rl_training.core.errors import UserError
from rl_training.core.plain import Facts, State

FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Spaces:
    """Flat observations of `obs_dim` numbers and box actions between `action_low` and `action_high`."""

    obs_dim: int
    action_low: tuple[float, ...]
    action_high: tuple[float, ...]

    def __post_init__(self) -> None:
        if self.obs_dim < 1:
            raise UserError(f"obs_dim must be >= 1, got {self.obs_dim}")
        if len(self.action_low) != len(self.action_high) or not self.action_low:
            raise UserError(
                "action_low and action_high must have the same length >= 1, "
                f"got {len(self.action_low)} and {len(self.action_high)}"
            )
        for low, high in zip(self.action_low, self.action_high, strict=True):
            if not (np.isfinite(low) and np.isfinite(high) and low < high):
                raise UserError(f"action bounds must be finite with low < high, got [{low}, {high}]")

    @property
    def action_dim(self) -> int:
        return len(self.action_low)

    def to_unit(self, actions: npt.ArrayLike) -> FloatArray:
        """Environment units -> [-1, 1] (not clipped: data outside the bounds stays visible)."""
        middle, half, _, _ = self._scale
        unit: FloatArray = ((np.asarray(actions, dtype=np.float64) - middle) / half).astype(np.float32)
        return unit

    def to_env(self, unit_actions: npt.ArrayLike) -> FloatArray:
        """[-1, 1] -> environment units, clipped so that rounding never leaves the bounds."""
        middle, half, low, high = self._scale
        actions = (np.asarray(unit_actions, dtype=np.float64) * half + middle).astype(np.float32)
        inside: FloatArray = np.minimum(np.maximum(actions, low), high)
        return inside

    @cached_property
    def _scale(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], FloatArray, FloatArray]:
        """Middle and half width of the bounds, and the bounds in float32: acting asks for them every step."""
        low, high = np.array(self.action_low), np.array(self.action_high)
        inner = inner_float32(low, upward=True), inner_float32(high, upward=False)
        return (low + high) / 2.0, (high - low) / 2.0, *inner

    def check_observations(self, obs: npt.ArrayLike) -> FloatArray:
        """Finite numbers of shape `(obs_dim,)` or `(n, obs_dim)`, or an error that says what they are."""
        size = self.obs_dim
        try:
            values = np.asarray(obs, dtype=np.float32)
        except (TypeError, ValueError) as error:
            hint = "; gymnasium.spaces.flatten(space, obs) makes them of a dictionary"
            raise UserError(
                f"obs must be numbers of shape ({size},) or (n, {size}): {error}"
                f"{hint if isinstance(obs, Mapping) else ''}"
            ) from None
        if values.ndim not in (1, 2) or values.shape[-1] != size:
            raise UserError(f"obs must have shape ({size},) or (n, {size}), got {values.shape}")
        if not np.isfinite(values).all():
            row = int(np.flatnonzero(~np.isfinite(np.atleast_2d(values)).all(axis=-1))[0])
            raise UserError(f"obs must be finite, row {row} holds NaN or infinity")
        return values

    def to_dict(self) -> State:
        return {
            "obs_dim": self.obs_dim,
            "action_low": list(self.action_low),
            "action_high": list(self.action_high),
        }

    @classmethod
    def from_dict(cls, values: Facts) -> Spaces:
        return cls(
            obs_dim=int(values["obs_dim"]),
            action_low=tuple(float(v) for v in values["action_low"]),
            action_high=tuple(float(v) for v in values["action_high"]),
        )


def inner_float32(bound: npt.NDArray[np.float64], *, upward: bool) -> FloatArray:
    """The float32 nearest to `bound` that is not outside it (rounding 0.1 to float32 goes up)."""
    rounded = bound.astype(np.float32)
    outside = rounded < bound if upward else rounded > bound
    towards = np.float32(np.inf if upward else -np.inf)
    return np.where(outside, np.nextafter(rounded, towards), rounded).astype(np.float32)
