"""A policy that acts in the environment's own units: scaling, network and clipping in one object."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from rl_training.algorithms.learner import Learner
from rl_training.data.transforms import ObservationNormalizer
from rl_training.spaces import FloatArray, Spaces
from rl_training.streams import torch_generator


class Policy:
    """Raw observations in, environment actions out; needs no environment and touches no file."""

    def __init__(self, learner: Learner, spaces: Spaces, normalizer: ObservationNormalizer | None) -> None:
        self.learner = learner
        self.spaces = spaces
        self.normalizer = normalizer
        self._generator = torch_generator(0, "act", device=learner.device)

    def act(self, obs: npt.NDArray[Any], deterministic: bool = True) -> FloatArray:
        """`[n, obs_dim]` observations -> `[n, action_dim]` actions inside the bounds."""
        return self.spaces.to_env(self.act_unit(obs, deterministic))

    @torch.inference_mode()
    def act_unit(self, obs: npt.NDArray[Any], deterministic: bool = True) -> FloatArray:
        """The same in [-1, 1], as learners see actions."""
        noise = None
        if not deterministic:
            shape = (len(obs), self.learner.act_noise_size)
            noise = torch.randn(shape, generator=self._generator, device=self.learner.device)
        return self.learner.act(self.prepare(obs), noise).cpu().numpy()

    def prepare(self, obs: npt.NDArray[Any]) -> torch.Tensor:
        """Observations as the network takes them."""
        values = np.asarray(obs, dtype=np.float32)
        if self.normalizer is not None:
            values = self.normalizer.apply(values)
        return torch.from_numpy(np.ascontiguousarray(values)).to(self.learner.device)

    def predict(self, obs: npt.ArrayLike, deterministic: bool = True) -> FloatArray:
        """Actions for one observation `(obs_dim,)` or a batch `(n, obs_dim)`, checked."""
        values = self.spaces.check_observations(obs)
        actions = self.act(np.atleast_2d(values), deterministic)
        return actions if values.ndim == 2 else actions[0]
