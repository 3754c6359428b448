"""Several environments side by side, in this process or one process each, that are never reset unasked.

Both kinds are Gymnasium vector environments with `AutoresetMode.DISABLED`. The arrays they return belong to
them and change with the next call.
"""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, VectorEnv

from rl_training.core.errors import EnvironmentProblem
from rl_training.core.plain import Array
from rl_training.runtime.environments import Env, EnvLike, describe_error, make_env, quiet_gymnasium

FAULT = "fault"
"""Key of the infos under which a sub-environment reports that it raised."""

SOUND_SQUARED_LENGTH = 1e76
"""An observation that is shorter has neither NaN nor anything beyond the range of float32 in it."""

GRACE_SECONDS = 3
"""How long a worker process outlives a request to terminate, and how long closing waits for an answer."""

Infos = dict[str, Any]
"""What environments tell beside their observations"""


def make_vector_env(
    env_id: EnvLike, env_kwargs: Mapping[str, object], num_envs: int, *, async_envs: bool = False
) -> SerialVectorEnv | WorkerVectorEnv:
    """`num_envs` copies of an environment; `async_envs` gives each a process of its own."""
    factories = [EnvFactory(env_id, env_kwargs, index) for index in range(num_envs)]
    if not async_envs:
        return SerialVectorEnv(factories)
    try:
        return WorkerVectorEnv(factories)
    except EnvironmentProblem:
        raise
    except Exception as error:
        problem = describe_error(error)
    # Raised out here so that no traceback keeps the half-built vector environment, and its workers, alive.
    raise EnvironmentProblem(
        f"a worker process could not create environment {str(env_id)!r} ({problem}); register it in a module "
        "that workers can import and write 'module:EnvId', or use async_envs=False"
    )


def failing_part(envs: SerialVectorEnv | WorkerVectorEnv) -> str:
    """What to blame when a vector environment itself raises: the worker that died, if one did."""
    if isinstance(envs, WorkerVectorEnv):
        for index, process in enumerate(envs.processes):
            process.join(timeout=0.1)
            if not process.is_alive():
                return f"the process of environment {index} (exit code {process.exitcode})"
    return "the set of environments"


class EnvFactory:
    """Creates sub-environment `index`, in whatever process it is to live."""

    def __init__(self, env_id: EnvLike, env_kwargs: Mapping[str, object], index: int) -> None:
        self.env_id, self.env_kwargs, self.index = env_id, dict(env_kwargs), index
        self.owner = os.getpid()

    def __call__(self) -> GuardedEnv:
        if os.getpid() != self.owner:
            leave_signals_to_the_parent()
        return GuardedEnv(make_env(self.env_id, self.env_kwargs), self.index)


def leave_signals_to_the_parent() -> None:
    """Let a worker survive Ctrl-C, and survive SIGTERM for long enough.

    A terminal sends Ctrl-C to every process of the run, `timeout` and batch systems do so with SIGTERM, while
    the parent wants to finish its step and save. The alarm sees to it that a worker asked to terminate does
    end, also where the parent's own handler was inherited.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "SIGALRM"):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, lambda *_: signal.alarm(GRACE_SECONDS))


def refuse_own_interrupt(error: BaseException) -> None:
    """Ctrl-C where nobody else answers to it is the user's; any other way to end a process is a failure."""
    if isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        raise error


def as_flag(value: object) -> bool:
    """What an environment may call true or false: Python's or numpy's, or the numbers 0 and 1."""
    flag = np.asarray(value)
    if flag.size != 1 or flag.dtype.kind not in "biuf" or flag.reshape(-1)[0] not in (0, 1):
        raise TypeError(f"terminated and truncated must be true or false, got {value!r}")
    return bool(flag.reshape(-1)[0])


class GuardedEnv(gym.Wrapper[Any, Any, Any, Any]):
    """A sub-environment that says in its infos what went wrong, instead of raising or returning nonsense.

    So both kinds of vector environment fail the same way: it is known which one failed, the others stay in
    order, workers stay alive, and no exception has to be sent between processes. Other infos are dropped:
    nothing here reads them, and gathering them costs more than the step of a cheap environment.
    """

    def __init__(self, env: Env, index: int = 0) -> None:
        super().__init__(env)
        self.index = index
        self._obs_shape = self.observation_space.shape

    def step(self, action: object) -> tuple[Any, float, bool, bool, Infos]:
        try:
            obs, reward, terminated, truncated, _ = self.env.step(action)
            reward = float(reward)
            terminated = terminated if type(terminated) is bool else as_flag(terminated)
            truncated = truncated if type(truncated) is bool else as_flag(truncated)
            complaint = self._complaint(obs)
        except BaseException as error:
            refuse_own_interrupt(error)
            return self._no_observation(), 0.0, False, False, {FAULT: f"raised {describe_error(error)}"}
        if not math.isfinite(reward):
            complaint = f"returned the reward {reward}, which is not finite"
        if complaint:
            return self._no_observation(), 0.0, False, False, {FAULT: complaint}
        return obs, reward, terminated, truncated, {}

    def reset(self, *, seed: int | None = None, options: Infos | None = None) -> tuple[Any, Infos]:
        try:
            obs, _ = self.env.reset(seed=seed)
            complaint = self._complaint(obs)
        except BaseException as error:
            refuse_own_interrupt(error)
            complaint = f"raised {describe_error(error)}"
        return (self._no_observation(), {FAULT: complaint}) if complaint else (obs, {})

    def replay(self, seeds: Sequence[int], actions: Sequence[Array]) -> tuple[Array, bool, str | None]:
        """Live through an episode again: the last observation, whether the episode ended, what went wrong.

        Every sub-environment is called with the lists for all and picks its own, as vector environments pass
        the same arguments to each.
        """
        obs, info = self.reset(seed=seeds[self.index])
        ended = False
        for action in actions[self.index]:
            if ended or info:
                break
            obs, _, terminated, truncated, info = self.step(action)
            ended = bool(terminated or truncated)
        return np.array(obs), ended, info.get(FAULT)

    def close(self) -> None:
        """Close what can be closed: an error here must not hide the one that ended the run."""
        with suppress(Exception):
            super().close()

    def _complaint(self, obs: Any) -> str | None:
        """What is wrong with an observation. Its squared length tells quickly that all numbers are sound."""
        if np.shape(obs) == self._obs_shape and float(np.vdot(obs, obs)) < SOUND_SQUARED_LENGTH:
            return None
        if np.shape(obs) != self._obs_shape:
            return f"returned an observation of shape {np.shape(obs)}, its space says {self._obs_shape}"
        with np.errstate(over="ignore"):
            values = np.asarray(obs, dtype=np.float32)
        bad = np.flatnonzero(~np.isfinite(values))
        if not len(bad):
            return None
        return f"returned an observation whose entry {bad[0]} is {values[bad[0]]}, which is not finite"

    def _no_observation(self) -> Array:
        return np.zeros(self._obs_shape or (), dtype=self.observation_space.dtype)


class WorkerVectorEnv(AsyncVectorEnv[Any, Any]):
    """Sub-environments that live in a process each."""

    def __init__(self, factories: Sequence[Callable[[], GuardedEnv]]) -> None:
        with quiet_gymnasium():
            super().__init__(factories, copy=False, autoreset_mode=AutoresetMode.DISABLED)

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """Let the workers close their environments, or, with `terminate`, kill them.

        Also those are killed that have died or give no answer. Killed, because a worker that loses its
        connection prints a traceback, and one that is told to terminate waits for a while.
        """
        if not terminate:
            try:
                with quiet_gymnasium():
                    super().close_extras(timeout=GRACE_SECONDS)
            except Exception:
                terminate = True
        if terminate:
            for process in self.processes:
                process.kill()
            for process in self.processes:
                process.join()


class SerialVectorEnv(VectorEnv[Any, Any, Any]):
    """Sub-environments that are stepped one after the other, in this process.

    What `gymnasium.vector.SyncVectorEnv` does, for flat boxes only: without its generality a step costs
    4 µs instead of 14 µs on top of the environment's own (15 µs for Pendulum), checks included.
    """

    def __init__(self, factories: Sequence[Callable[[], GuardedEnv]]) -> None:
        self.envs: list[GuardedEnv] = []
        try:
            self.envs.extend(factory() for factory in factories)
        except BaseException:
            self.close()
            raise
        self.num_envs = len(self.envs)
        self.metadata = {**self.envs[0].metadata, "autoreset_mode": AutoresetMode.DISABLED}
        self.single_observation_space = self.envs[0].observation_space
        self.single_action_space = self.envs[0].action_space
        shape = self.single_observation_space.shape or ()
        self._obs = np.zeros((self.num_envs, *shape), dtype=self.single_observation_space.dtype)
        self._rewards = np.zeros(self.num_envs)
        self._terminated = np.zeros(self.num_envs, dtype=np.bool_)
        self._truncated = np.zeros(self.num_envs, dtype=np.bool_)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: Infos | None = None
    ) -> tuple[Array, Infos]:
        """Reset all, or those where `options["reset_mask"]` is set, each with its own entry of `seed`."""
        seeds = seed if isinstance(seed, Sequence) else [seed] * self.num_envs
        mask = options["reset_mask"] if options else np.ones(self.num_envs, dtype=np.bool_)
        faults: dict[int, str] = {}
        for index, env in enumerate(self.envs):
            if mask[index]:
                self._obs[index], info = env.reset(seed=seeds[index])
                if info:
                    faults[index] = info[FAULT]
        return self._obs, self._as_infos(faults)

    def step(
        self, actions: Array
    ) -> tuple[Array, Array, npt.NDArray[np.bool_], npt.NDArray[np.bool_], Infos]:
        """Step all; none may be finished."""
        obs, rewards, terminated, truncated = self._obs, self._rewards, self._terminated, self._truncated
        faults: dict[int, str] = {}
        for index, env in enumerate(self.envs):
            obs[index], rewards[index], terminated[index], truncated[index], info = env.step(actions[index])
            if info:
                faults[index] = info[FAULT]
        return obs, rewards, terminated, truncated, self._as_infos(faults) if faults else {}

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The method `name` of every sub-environment, with the same arguments."""
        return tuple(getattr(env, name)(*args, **kwargs) for env in self.envs)

    def close_extras(self, *, terminate: bool = False) -> None:
        for env in self.envs:
            env.close()

    def _as_infos(self, faults: Mapping[int, str]) -> Infos:
        return {FAULT: [faults.get(index) for index in range(self.num_envs)]} if faults else {}
