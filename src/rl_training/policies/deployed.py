"""What every opened policy file offers, whatever computes it."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt

from rl_training.core.errors import UserError
from rl_training.core.feature_names import FeatureNames
from rl_training.core.plain import Array, Facts
from rl_training.core.spaces import FloatArray, Spaces
from rl_training.policies.guarding import NO_GUARD, Guarded, GuardedLoop, GuardFacts, guarded

ACTION = ("action",)
DISTRIBUTION = ("mean", "log_std")
GUARDED = ("action", "novelty")


class DeployedPolicy(ABC):
    """`predict(obs)`: raw observations in, actions in the environment's units and bounds out."""

    def __init__(self, metadata: Facts) -> None:
        self.metadata = dict(metadata)
        self.spaces = Spaces.from_dict(metadata["spaces"])
        self.features = FeatureNames.from_dict(metadata.get("features"))
        facts = metadata.get("guard")
        self.guard_facts = None if facts is None else GuardFacts.from_dict(facts, self.spaces)

    def predict(self, obs: npt.ArrayLike) -> FloatArray:
        """The deterministic actions for one observation `(obs_dim,)` or a batch `(n, obs_dim)`."""
        values = self._checked(obs)
        (actions,) = self.compute(np.atleast_2d(values), ACTION)
        return actions if values.ndim == 2 else actions[0]

    def predict_guarded(self, obs: npt.ArrayLike) -> Guarded:
        """The actions, how new their observations are, and which are beyond the guard's limit."""
        if self.guard_facts is None:
            raise UserError(NO_GUARD)
        values = self._checked(obs)
        action, novelty = self.compute(np.atleast_2d(values), GUARDED)
        return guarded(action, novelty, single=values.ndim == 1)

    def guarded(self) -> GuardedLoop:
        """The policy for one loop, with the guard's fallback."""
        return GuardedLoop(self)

    def distribution(self, obs: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
        """Mean and log std in [-1, 1] units; `metadata["actor"]["draws"]` says how to draw from them."""
        if not self.has_distribution:
            raise UserError("this file holds no distribution: export it with --distribution")
        values = self._checked(obs)
        mean, log_std = self.compute(np.atleast_2d(values), DISTRIBUTION)
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
    def compute(self, obs: FloatArray, names: tuple[str, ...]) -> list[FloatArray]:
        """Named outputs for checked observations `[n, obs_dim]`."""

    @property
    def widths(self) -> dict[str, int]:
        """Every output that the metadata speaks of, and how many numbers it has for an observation."""
        names = [*ACTION, *(DISTRIBUTION if self.has_distribution else ())]
        novelty = {} if self.guard_facts is None else {"novelty": 1}
        return dict.fromkeys(names, self.spaces.action_dim) | novelty

    def _checked(self, obs: npt.ArrayLike) -> FloatArray:
        return self.spaces.check_observations(obs)
