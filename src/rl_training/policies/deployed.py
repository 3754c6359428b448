"""What every opened policy file offers, whatever computes it."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt

from rl_training.core.errors import UserError
from rl_training.core.feature_names import FeatureNames
from rl_training.core.plain import Array, Facts
from rl_training.core.spaces import FloatArray, Spaces


class DeployedPolicy(ABC):
    """`predict(obs)`: raw observations in, actions in the environment's units and bounds out."""

    def __init__(self, metadata: Facts) -> None:
        self.metadata = dict(metadata)
        self.spaces = Spaces.from_dict(metadata["spaces"])
        self.features = FeatureNames.from_dict(metadata.get("features"))

    def predict(self, obs: npt.ArrayLike) -> FloatArray:
        """The deterministic actions for one observation `(obs_dim,)` or a batch `(n, obs_dim)`."""
        values = self._checked(obs)
        return self.compute(values) if values.ndim == 2 else self.compute(values[None])[0]

    def distribution(self, obs: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
        """Mean and log std in [-1, 1] units; `metadata["actor"]["draws"]` says how to draw from them."""
        if not self.has_distribution:
            raise UserError("this file holds no distribution: export it with --distribution")
        values = self._checked(obs)
        mean, log_std = self.compute_distribution(np.atleast_2d(values))
        return (mean, log_std) if values.ndim == 2 else (mean[0], log_std[0])

    @property
    def has_distribution(self) -> bool:
        return "log_std" in self.metadata["outputs"]

    def act(self, obs: Array, deterministic: bool = True) -> FloatArray:
        """`predict` under the name by which an evaluation calls a policy; there are no random actions."""
        if not deterministic:
            raise UserError("deterministic must be true: an exported policy has no random stream")
        return self.predict(obs)

    @abstractmethod
    def compute(self, obs: FloatArray) -> FloatArray:
        """Actions for checked observations `[n, obs_dim]`."""

    @abstractmethod
    def compute_distribution(self, obs: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Mean and log std, `[n, action_dim]` each, for checked observations."""

    def _checked(self, obs: npt.ArrayLike) -> FloatArray:
        return self.spaces.check_observations(obs)
