"""Learning in a loop of somebody else: the run takes what the loop saw, and says what to do next."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy.typing as npt
import torch

from rl_training.algorithms.learner import Learner
from rl_training.core.checkpoints import load_run_state, resolve_checkpoint
from rl_training.core.errors import ConfigError, UserError
from rl_training.core.places import CHECKPOINT_FOLDER
from rl_training.core.spaces import FloatArray
from rl_training.core.train_config import TrainConfig, parse_config
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.experiment.execution import write_result
from rl_training.experiment.finetuning import (
    keeps_data,
    online_config,
    state_at_the_border,
    state_to_finetune,
)
from rl_training.experiment.run_options import RunOptions
from rl_training.experiment.saving import Checkpoints
from rl_training.experiment.training import assemble, make_plan
from rl_training.experiment.workflows import environment_of_state, place_for_new_run, saved_config
from rl_training.policies.guard import Guard
from rl_training.policies.guarding import Guarded, Watch, guarded
from rl_training.runtime.callbacks.base import Callback
from rl_training.runtime.environments import EnvMaker, GivenEnv
from rl_training.runtime.loop import Phase
from rl_training.runtime.run import TrainResult
from rl_training.runtime.sources.base import RunSource
from rl_training.runtime.sources.live import LiveCollection
from rl_training.runtime.sources.offline import OfflineSource


class LiveSession:
    """`act(obs)`, play the action, `observe(…)`, `update()`; checkpoints and metrics as in any run."""

    def __init__(self, config: TrainConfig, options: RunOptions, guard: Guard | None = None) -> None:
        self.trainer, runs = assemble(make_plan(config, {**options, "live": True}), live_phases)
        self.run, self.started = runs[0], time.time()
        found = self.trainer.phases[-1].collection
        assert isinstance(found, LiveCollection)
        self.collection = found
        self.phase: Phase | None = None
        """The phase of the step under way"""
        self.guard = guard
        self.watch = None if guard is None else Watch(guard.facts.fallback)
        self.watched: Guarded | None = None
        """What the guard said of the last observation"""
        self.trainer.start()

    def act(self, obs: npt.ArrayLike, *, first: bool = False) -> FloatArray:
        """The action to play now; `first` says that a new episode begins with this observation."""
        self._end_step()
        if first:
            self.collection.cut()
        self.phase = self.trainer.begin_step()
        if self.phase is None:
            steps = self.run.config.online_timesteps
            raise UserError(
                f"the {steps} online steps of this run are over: close() it, or go_live() for more"
            )
        action = self.collection.act(self.trainer.learner, obs)
        return action if self.guard is None else self._guarded(self.guard, action)

    def _guarded(self, guard: Guard, action: FloatArray) -> FloatArray:
        """The action, or the fallback for it; what is played is what is learned from."""
        assert self.collection.acted is not None and self.watch is not None
        rows = (torch.from_numpy(self.collection.acted[0]), torch.from_numpy(action[None]))
        with torch.inference_mode():
            novelty = guard(guard.points(*rows)).numpy()
        self.watch.last = self.collection.last  # also after a restart, and where another one was played
        self.watched = self.watch.played(guarded(action[None], novelty, single=True))
        self.run.log("guard_novelty", float(self.watched.novelty))
        if self.watched.flagged:
            self.collection.replace_action(self.watched.action)
        return self.watched.action

    def observe(
        self,
        reward: float,
        next_obs: npt.ArrayLike,
        terminated: bool = False,
        truncated: bool = False,
        *,
        played: npt.ArrayLike | None = None,
    ) -> None:
        """What came of the action: `terminated` ends the task, `truncated` only cuts the episode off.

        `played` is the action that the machine really made, where a limit or a person changed it.
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
    changes: Mapping[str, Any] | None = None,
    dataset: TransitionDataset | None = None,
    env: GivenEnv | EnvMaker | None = None,
    callbacks: Sequence[Callback] | None = None,
    guard: Guard | None = None,
    quiet: bool = True,
) -> LiveSession:
    """A session from a checkpoint of offline training, or on from the newest one of a session before.

    `timesteps` is the number of steps in all; `env`, where there is one, only evaluates.
    """
    file = resolve_checkpoint(path)
    state = load_run_state(file)
    config = saved_config(state)
    if "dataset" in state["in_python"] and dataset is None and keeps_data(config, changes):
        raise ConfigError("dataset must be given: this run learned from a dataset that was passed in memory")
    evaluates = env is not None or "env" not in state["in_python"]
    if not evaluates:
        config = config.replace(env_id=None)
    options: RunOptions = {
        "dataset": dataset,
        "env": environment_of_state(state, config, env, ()) if evaluates else None,
        "wrappers": (),
        "callbacks": callbacks,
        "quiet": quiet,
    }
    if "live" in state["in_python"]:
        if timesteps is not None:
            config = parse_config({**config.to_dict(), "online_timesteps": timesteps})
        in_place = file.parent.name == CHECKPOINT_FOLDER
        if not in_place:
            config = config.replace(output_dir=str(place_for_new_run(file)))
        options |= {"checkpoint_state": state, "run_dir": file.parent.parent if in_place else None}
        return LiveSession(config, options, guard)
    if timesteps is None:
        raise ConfigError("timesteps must be given: the steps that the loop will make, such as 10000")
    file, state = state_to_finetune(file)
    place = {"output_dir": str(place_for_new_run(file))}
    config = online_config(config, state, timesteps, {**place, **(changes or {})})
    options |= {"checkpoint_state": state_at_the_border(state, file), "run_suffix": "live"}
    return LiveSession(config, options, guard)


def live_phases(source: RunSource, learner: Learner, saved: dict[str, Any] | None) -> list[Phase]:
    """As for an environment, with a loop in its place."""
    assert isinstance(source, OfflineSource)
    rows = source.row_store(learner)
    collection = LiveCollection(source.spaces, rows, source.units(), source.exploration(learner.device))
    if saved is not None and "collector" in saved:
        collection.load_state_dict(saved)
    online = source.online_phases(learner, collection, rows, saved)
    return [source.offline_phase(learner.device), *online]
