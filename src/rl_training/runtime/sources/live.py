"""Transitions from a loop that is not ours: a machine, a simulator of another program."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rl_training.algorithms.learner import Learner
from rl_training.core.errors import CheckpointError, UserError
from rl_training.core.plain import State
from rl_training.core.spaces import FloatArray, Spaces
from rl_training.runtime.collector import FinishedEpisode, Steps
from rl_training.runtime.sources.collection import Exploration
from rl_training.runtime.sources.rows import RowStore, Units


class LiveCollection:
    """Takes what the loop saw and did, one transition at a time, and stores it as rows."""

    def __init__(self, spaces: Spaces, rows: RowStore, units: Units, exploration: Exploration) -> None:
        self.spaces, self.rows, self.units, self.exploration = spaces, rows, units, exploration
        self.acted: tuple[FloatArray, FloatArray] | None = None
        """The observation that was acted on, and the action in [-1, 1]"""
        self.suggested: FloatArray | None = None
        """The action for the step under way, in the machine's units"""
        self.last: FloatArray | None = None
        """The one that was played before in this episode"""
        self.episodes: list[FinishedEpisode] = []
        self.current = FinishedEpisode(0.0, 0)

    def act(self, learner: Learner, obs: npt.ArrayLike) -> FloatArray:
        """The action to play now, explored, in the machine's units."""
        seen = self.spaces.check_observations(obs).reshape(1, self.spaces.obs_dim)
        unit = self.exploration.actions(learner, [seen])[0]
        self.acted = (seen, unit)
        action: FloatArray = self.spaces.to_env(unit)[0]
        self.suggested = action
        return action

    def replace_action(self, action: FloatArray) -> None:
        """Another action is played than the policy's: rows hold what was played."""
        assert self.acted is not None
        self.acted, self.suggested = (self.acted[0], self.spaces.to_unit(action[None])), action

    def observe(
        self,
        reward: float,
        next_obs: npt.ArrayLike,
        terminated: bool,
        truncated: bool,
        played: npt.ArrayLike | None = None,
    ) -> None:
        """What came of the last action, or of the one that was played in its place."""
        if self.acted is None:
            raise UserError("observe() needs an action before it: call act(obs) first")
        if not np.isfinite(reward):
            raise UserError(f"reward must be finite, got {reward}")
        (obs, unit), following = self.acted, self.spaces.check_observations(next_obs)
        if played is not None:
            unit = self._unit(played)
        step = Steps(
            obs,
            unit,
            np.array([reward], dtype=np.float32),
            following.reshape(1, self.spaces.obs_dim),
            np.array([terminated]),
            np.array([truncated and not terminated]),
            [],
        )
        self.rows.add([self.units.columns(step)], [step.terminated | step.truncated])
        self.acted = None
        self.last = self.suggested if played is None else np.asarray(played, dtype=np.float32)
        self.current.ret += float(reward)
        self.current.length += 1
        if terminated or truncated:
            self._finish()

    def _unit(self, played: npt.ArrayLike) -> FloatArray:
        """An action of the machine in [-1, 1]; what lies outside the policy's bounds counts as on them."""
        action = np.asarray(played, dtype=np.float32)
        if action.shape != (self.spaces.action_dim,) or not np.isfinite(action).all():
            wanted = f"{self.spaces.action_dim} finite numbers"
            raise UserError(f"played must be the action that was played, {wanted}, got {played!r}")
        unit: FloatArray = self.spaces.to_unit(action).clip(-1.0, 1.0).reshape(1, -1)
        return unit

    def cut(self) -> None:
        """The loop has begun anew without saying that the episode before was over: it was cut off there."""
        if self.current.length:
            self.rows.cut()
            self._finish()

    def _finish(self) -> None:
        self.episodes.append(self.current)
        self.current, self.last = FinishedEpisode(0.0, 0), None

    def step(self, learner: Learner, stored: int) -> int:
        raise UserError("this run is stepped by a loop of your own: call act, observe and update")

    def take_episodes(self, member: int | None) -> list[FinishedEpisode]:
        finished, self.episodes = self.episodes, []
        return finished

    def state_dict(self, member: int | None, *, with_replay: bool) -> State:
        state: State = {
            "collector": {
                "return": self.current.ret,
                "length": self.current.length,
                "last": [] if self.last is None else self.last.tolist(),
            },
            "exploration": self.exploration.stream.state_dict(),
            "unlogged_episodes": [[episode.ret, episode.length] for episode in self.episodes],
        }
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
        last = saved.get("last")  # none in checkpoints of earlier versions
        self.last = np.array(last, dtype=np.float32) if last else None
        self.episodes = [FinishedEpisode(ret, length) for ret, length in state["unlogged_episodes"]]

    def keep(self, members: Sequence[int]) -> None:
        """There is one seed only."""

    def close(self) -> None:
        """There is nothing to close."""
