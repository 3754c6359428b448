"""Transitions from a loop that is not ours: a machine, a simulator of another program."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from rl_training.algorithms.learner import Learner
from rl_training.core.errors import CheckpointError, UserError
from rl_training.core.spaces import FloatArray, Spaces
from rl_training.core.types import State
from rl_training.policies.acting import Controller, Decision
from rl_training.policies.guard_fitting import Guard
from rl_training.runtime.collect import FinishedEpisode, Steps
from rl_training.runtime.replay import Exploration, RowStore, Units


@dataclass(frozen=True)
class LiveStep:
    """The step under way: what was seen, what the policy was asked with, what it is to do."""

    seen: FloatArray
    asked: FloatArray
    unit: FloatArray
    """the action in [-1, 1], as rows hold it"""
    action: FloatArray


class LiveCollection:
    """Takes what the loop saw and did, one transition at a time, and stores it as rows.

    A guard, where there is one, watches the explored action. Time moves on when something is observed: an
    action that nothing came of is forgotten.
    """

    def __init__(
        self,
        spaces: Spaces,
        rows: RowStore,
        units: Units,
        exploration: Exploration,
        learner: Learner,
        guard: Guard | None = None,
    ) -> None:
        self.spaces, self.rows, self.units, self.exploration = spaces, rows, units, exploration
        self.learner, self.guard = learner, guard
        fallback = None if guard is None else guard.facts.fallback
        self.controller = Controller(spaces, self._explored, learner.policy.memory, fallback, rows=1)
        self.asked: FloatArray = np.zeros((1, 0), dtype=np.float32)
        self.unit: FloatArray = self.asked
        self.acted: LiveStep | None = None
        self.episodes: list[FinishedEpisode] = []
        self.current = FinishedEpisode(0.0, 0)

    def act(self, obs: npt.ArrayLike | None) -> Decision:
        """The action to play now, explored, or the fallback for it; gaps are refused without a guard."""
        values = self.spaces.check_observations(obs, finite=self.guard is None)
        seen = values.reshape(1, self.spaces.obs_dim)
        told = self.controller.decide(seen).row(0)
        unit = self.spaces.to_unit(told.action[None]) if told.flagged else self.unit
        self.acted = LiveStep(seen, self.asked, unit, told.action)
        return told

    def _explored(self, asked: FloatArray) -> tuple[FloatArray, FloatArray | None]:
        """An action of the policy under training, and how new it is; not asked where there are gaps."""
        self.asked, self.unit = asked, self.exploration.actions(self.learner, [asked])[0]
        action = self.spaces.to_env(self.unit)
        if self.guard is None:
            return action, None
        points = self.guard.points(torch.from_numpy(asked), torch.from_numpy(action))
        with torch.inference_mode():
            return action, self.guard(points).numpy()

    def observe(
        self,
        reward: float,
        next_obs: npt.ArrayLike | None,
        terminated: bool,
        truncated: bool,
        played: npt.ArrayLike | None = None,
    ) -> None:
        """What came of the last action, or of the one that was played in its place.

        A step from or to an observation with gaps is counted, but it is no row to learn from, and the rows
        before it end there.
        """
        if self.acted is None:
            raise UserError("observe() needs an action before it: call act(obs) first")
        step, following = self.acted, self.spaces.check_observations(next_obs, finite=self.guard is None)
        whole = bool(np.isfinite(step.seen).all() and np.isfinite(following).all())
        if whole and not np.isfinite(reward):
            raise UserError(f"reward must be finite, got {reward}")
        done, unit = step.action[None], step.unit
        if played is not None:  # what lies outside the policy's bounds counts as on them
            done = self.controller.checked(played, "played").reshape(1, -1)
            unit = self.spaces.to_unit(done).clip(-1.0, 1.0)
        if whole:
            following = self.controller.following(following.reshape(1, self.spaces.obs_dim), done)
            flags = (np.array([terminated]), np.array([truncated and not terminated]))
            row = Steps(step.asked, unit, np.array([reward], dtype=np.float32), following, *flags, [])
            self.rows.add([self.units.columns(row)], [row.terminated | row.truncated])
        else:
            self.rows.cut()
        self.acted = None
        self.controller.follow(done)
        self.current.ret += float(reward) if np.isfinite(reward) else 0.0
        self.current.length += 1
        if terminated or truncated:
            self._finish()

    def cut(self) -> None:
        """The loop has begun anew without saying that the episode before was over: it was cut off there."""
        if self.current.length:
            self.rows.cut()
            self._finish()

    def _finish(self) -> None:
        self.episodes.append(self.current)
        self.current = FinishedEpisode(0.0, 0)
        self.controller.reset()

    def step(self, learner: Learner, stored: int) -> int:
        raise UserError("this run is stepped by a loop of your own: call act, observe and update")

    def take_episodes(self, member: int | None) -> list[FinishedEpisode]:
        finished, self.episodes = self.episodes, []
        return finished

    def state_dict(self, member: int | None, *, with_replay: bool) -> State:
        past = self.controller.state_dict()
        last = past["last"][0].tolist()
        state: State = {
            "collector": {
                "return": self.current.ret,
                "length": self.current.length,
                "last": [] if math.isnan(last[0]) else last,
            },
            "exploration": self.exploration.stream.state_dict(),
            "unlogged_episodes": [[episode.ret, episode.length] for episode in self.episodes],
        }
        if self.controller.memory is not None:
            state["collector"]["acting"] = past
        return state | ({"replay": self.rows.state_dict(member)} if with_replay else {})

    def load_state_dict(self, state: State) -> None:
        if "replay" not in state:
            raise CheckpointError(
                "this checkpoint holds no replay rows (only a run's newest one does); go on from the newest"
            )
        self.rows.load_state_dict(state["replay"])
        self.exploration.stream.load_state_dict(state["exploration"])
        saved = state["collector"]
        self.current = FinishedEpisode(float(saved["return"]), int(saved["length"]))
        self.controller.reset(saved.get("last") or None)  # none in checkpoints of earlier versions
        if self.controller.memory is not None:
            self.controller.load_state_dict(saved["acting"])
        self.episodes = [FinishedEpisode(ret, length) for ret, length in state["unlogged_episodes"]]

    def keep(self, members: Sequence[int]) -> None:
        """There is one seed only."""

    def close(self) -> None:
        """There is nothing to close."""
