"""A policy that acts in the environment's own units: scaling, network and clipping in one object."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from rl_training.algorithms.learner import Learner
from rl_training.algorithms.stacking import twin
from rl_training.core.spaces import FloatArray, Spaces
from rl_training.core.streams import torch_generator
from rl_training.core.transforms import ObservationNormalizer


class Policy:
    """Raw observations in, environment actions out; needs no environment and touches no file.

    Acting is computed in double precision, because single precision rounds large pre-activations visibly (by
    6e-4 of an action at 1000 times the data's range), and differently in every library that runs the policy.

    `learner` is a copy of the moment at which the policy was made. Casting the weights again at every call
    would cost more than the action itself, and a policy that changes under its user is a trap: a seed out of
    a stack could never do so. Whoever trains on makes a new policy, as `Run.policy` does.
    """

    def __init__(self, learner: Learner, spaces: Spaces, normalizer: ObservationNormalizer | None) -> None:
        self.learner = acting_copy(learner)
        self.spaces = spaces
        self.normalizer = normalizer
        self._generator = torch_generator(0, "act", device=self.learner.device)
        if normalizer is not None:
            mean, scale = normalizer.mean, normalizer.std + normalizer.epsilon
            self._normalization = mean.double().cpu().numpy(), scale.double().cpu().numpy()

    def act(self, obs: npt.NDArray[Any], deterministic: bool = True) -> FloatArray:
        """`[n, obs_dim]` observations -> `[n, action_dim]` actions inside the bounds."""
        return self.spaces.to_env(self._act(obs, deterministic))

    def act_unit(self, obs: npt.NDArray[Any], deterministic: bool = True) -> FloatArray:
        """The same in [-1, 1], as learners see actions."""
        return self._act(obs, deterministic).astype(np.float32)

    @torch.inference_mode()
    def _act(self, obs: npt.NDArray[Any], deterministic: bool) -> npt.NDArray[Any]:
        noise = None
        if not deterministic:
            shape = (len(obs), self.learner.act_noise_size)
            drawn = torch.randn(shape, generator=self._generator, device=self.learner.device)
            noise = drawn.double()
        return self.learner.act(self.prepare(obs), noise).cpu().numpy()

    def prepare(self, obs: npt.NDArray[Any]) -> torch.Tensor:
        """Observations, single precision as environments give them, as the network takes them."""
        values = np.asarray(obs, dtype=np.float32).astype(np.float64)
        if self.normalizer is not None:
            mean, scale = self._normalization
            values = (values - mean) / scale
        return torch.from_numpy(values).to(self.learner.device)

    def predict(self, obs: npt.ArrayLike, deterministic: bool = True) -> FloatArray:
        """Actions for one observation `(obs_dim,)` or a batch `(n, obs_dim)`, checked."""
        values = self.spaces.check_observations(obs)
        actions = self.act(np.atleast_2d(values), deterministic)
        return actions if values.ndim == 2 else actions[0]


def acting_copy(learner: Learner) -> Learner:
    """The learner as it is now in double precision, without its optimisers."""
    copied = twin(learner)
    copied.optimizers.clear()
    if learner.device.type == "mps":
        copied.device = torch.device("cpu")  # Apple's GPUs have no float64
    source = learner.tensors()
    for name, tensor in copied.tensors().items():
        tensor.data = source[name].detach().to(copied.device).to(torch.float64, copy=True)
    return copied
