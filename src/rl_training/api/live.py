"""The part of a managed class that learns in somebody else's loop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

import numpy.typing as npt

from rl_training.api.inputs import GivenData, as_dataset, by_level
from rl_training.core.errors import UserError
from rl_training.core.spaces import FloatArray
from rl_training.experiment.live import LiveSession, open_live
from rl_training.policies.guard import Guard
from rl_training.runtime.callbacks.base import Callback
from rl_training.runtime.environments import GivenEnv


class LearnsLive(ABC):
    """`go_live`, then `act`, `observe`, `update` in turn."""

    _live: LiveSession | None = None

    @abstractmethod
    def _file(self) -> Path:
        """The checkpoint that holds the learner of this object."""

    def go_live(
        self,
        timesteps: int | None = None,
        *,
        dataset: GivenData | None = None,
        env: GivenEnv | None = None,
        callbacks: Sequence[Callback] | None = None,
        guard: Guard | None = None,
        **settings: object,
    ) -> LiveSession:
        """Begin to learn in a loop of your own, with `act`, `observe` and `update`; a run directory is made.

        `timesteps` are the steps that the loop will make. An object that was loaded from such a run goes on
        there. `env`, where there is a simulator, only evaluates. `guard`, as `make_guard` gives it, watches
        the observations and replaces what it flags by its fallback.
        """
        self._live = open_live(
            self._file(),
            timesteps=timesteps,
            changes=by_level(settings),
            dataset=None if dataset is None else as_dataset(dataset),
            env=env,
            callbacks=callbacks,
            guard=guard,
        )
        return self._live

    def act(self, obs: npt.ArrayLike, *, first: bool = False) -> FloatArray:
        """The action to play now, in your own loop; `first` where an episode begins."""
        return self._session().act(obs, first=first)

    def observe(
        self,
        reward: float,
        next_obs: npt.ArrayLike,
        terminated: bool = False,
        truncated: bool = False,
        *,
        played: npt.ArrayLike | None = None,
    ) -> None:
        """What came of the last action; `played` where another one than that was played."""
        self._session().observe(reward, next_obs, terminated, truncated, played=played)

    def update(self) -> dict[str, float]:
        """Make the updates that are due; their metrics."""
        return self._session().update()

    def _session(self) -> LiveSession:
        if self._live is None:
            raise UserError("call go_live(timesteps=…) before act, observe and update")
        return self._live
