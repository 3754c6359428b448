"""Learning in a loop of somebody else, a machine or another program: it is told what to do next."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
import torch

from rl_training.algorithms.learner import Learner
from rl_training.config.run import TrainConfig, parse_config
from rl_training.core.errors import CheckpointError, ConfigError, UserError
from rl_training.core.spaces import FloatArray, Spaces
from rl_training.core.types import Facts, State
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.policies.acting import Controller, Decision
from rl_training.policies.guard_fitting import Guard
from rl_training.runs.directory import Checkpoints, RunLock
from rl_training.runs.resume import IN_MEMORY, keeps_data, online_config, state_at_the_border
from rl_training.runs.saved import SavedRun, environment_for, with_trackers
from rl_training.runs.train import RunOptions, assemble, make_plan, write_result
from rl_training.runtime.callbacks import Callback, TrainResult
from rl_training.runtime.collect import FinishedEpisode, Steps
from rl_training.runtime.envs import EnvMaker, GivenEnv
from rl_training.runtime.loop import Phase
from rl_training.runtime.replay import Exploration, RowStore, Units
from rl_training.runtime.sources import OfflineSource, RunSource


class LiveSession:
    """`act(obs)`, play the action, `observe(…)`, `update()`; checkpoints and metrics as in any run."""

    def __init__(self, config: TrainConfig, options: RunOptions, guard: Guard | None = None) -> None:
        phases = partial(live_phases, guard=guard)
        self.trainer, runs = assemble(make_plan(config, {**options, "live": True}), phases)
        self.run, self.started = runs[0], time.time()
        found = self.trainer.phases[-1].collection
        assert isinstance(found, LiveCollection)
        self.collection = found
        self.phase: Phase | None = None
        """The phase of the step under way"""
        self.watched: Decision | None = None
        """What the guard said of the last observation"""
        self.trainer.start()

    def act(self, obs: npt.ArrayLike | None, *, first: bool = False) -> FloatArray:
        """The action to play now; `first` says that a new episode begins with this observation.

        With a guard, NaN in a place, or `None` for all of it, says that a sensor did not answer.
        """
        self._end_step()
        if first:
            self.collection.cut()
        self.phase = self.trainer.begin_step()
        if self.phase is None:
            steps = self.run.config.online_timesteps
            raise UserError(
                f"the {steps} online steps of this run are over: close() it, or go_live() for more"
            )
        told = self.collection.act(obs)
        if self.collection.guard is not None:
            self.watched = told
            self.run.log("guard_novelty", float(told.novelty))
        return told.action

    def observe(
        self,
        reward: float,
        next_obs: npt.ArrayLike | None,
        terminated: bool = False,
        truncated: bool = False,
        *,
        played: npt.ArrayLike | None = None,
    ) -> None:
        """What came of the action: `terminated` ends the task, `truncated` only cuts the episode off.

        `played` is the action that the machine really made, where a limit or a person changed it. With a
        guard, a step from or to an observation that is not wholly there is not learned from.
        """
        if self.phase is None:
            raise UserError("observe() needs an action before it: call act(obs) first")
        self.collection.observe(reward, next_obs, terminated, truncated, played)
        self.trainer.collected(self.phase, 1)

    def update(self) -> dict[str, float]:
        """Make the updates that are due, log and save where it is time; the metrics of the last update."""
        if self.phase is not None and self.collection.acted is None:
            self.trainer.make_updates(self.phase)
        self._end_step()
        return self.run.update_metrics()

    def save(self) -> Path:
        """Write a checkpoint now, from which another process goes on."""
        self._end_step()
        saver = next(each for each in self.run.callbacks if isinstance(each, Checkpoints))
        return saver.save(self.run)

    def close(self) -> TrainResult:
        """The end: a last checkpoint, the summary and the learning curve."""
        self._end_step()
        try:
            self.run.finish()
        finally:
            for callback in self.run.callbacks:
                callback.close(self.run)
        return write_result(self.run, self.started)

    def _end_step(self) -> None:
        """A step is over when the loop goes on; an action that nothing came of is forgotten."""
        done, self.phase = self.phase is not None and self.collection.acted is None, None
        self.collection.acted = None
        if done:
            self.trainer.end_step()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_live(
    path: str | Path,
    *,
    timesteps: int | None = None,
    changes: Facts | None = None,
    dataset: TransitionDataset | None = None,
    env: GivenEnv | EnvMaker | None = None,
    callbacks: Sequence[Callback] | None = None,
    guard: Guard | None = None,
    quiet: bool = True,
) -> LiveSession:
    """A session from a checkpoint of offline training, or on from the newest one of a session before.

    `timesteps` is the number of steps in all; `env`, where there is one, only evaluates.
    """
    run, given = SavedRun(path), changes or {}
    config, in_python = run.config, run.facts.in_python
    if "dataset" in in_python and dataset is None and keeps_data(config, given):
        raise ConfigError(IN_MEMORY)
    evaluates = env is not None or "env" not in in_python
    if not evaluates:
        config = config.replace(env_id=None)
    maker = None
    if evaluates:
        maker, config = environment_for(
            config, in_python, env=env, wrappers=(), env_kwargs=given.get("env_kwargs")
        )
    config = with_trackers(config, given.get("trackers"))
    options: RunOptions = {
        "dataset": dataset,
        "env": maker,
        "wrappers": (),
        "callbacks": callbacks,
        "quiet": quiet,
    }
    if "live" in in_python:
        if timesteps is not None:
            config = parse_config({**config.to_dict(), "online_timesteps": timesteps})
        if run.run_dir is None:
            config = config.replace(output_dir=str(run.place_for_new_run))
        options["checkpoint_state"] = run.training_state("go live from a checkpoint")
        with ExitStack() as failing:
            if run.run_dir is not None:
                options["claim"] = failing.enter_context(RunLock(run.run_dir))
            session = LiveSession(config, options, guard)
            failing.pop_all()
            return session
    if timesteps is None:
        raise ConfigError("timesteps must be given: the steps that the loop will make, such as 10000")
    options |= {"checkpoint_state": state_at_the_border(run), "run_suffix": "live"}
    config = online_config(run, config, timesteps, {"output_dir": str(run.place_for_new_run), **given})
    return LiveSession(config, options, guard)


def live_phases(
    source: RunSource, learner: Learner, saved: State | None, *, guard: Guard | None = None
) -> list[Phase]:
    """As for an environment, with a loop in its place."""
    assert isinstance(source, OfflineSource)
    rows = source.row_store(learner)
    exploration = source.exploration(learner.device)
    collection = LiveCollection(source.spaces, rows, source.units(), exploration, learner, guard)
    if saved is not None and "collector" in saved:
        collection.load_state_dict(saved)
    online = source.online_phases(learner, collection, rows, saved)
    return [source.offline_phase(learner.device), *online]


# ---- transitions from a loop that is not ours: a machine, a simulator of another program


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
