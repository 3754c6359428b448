"""Environments: built with errors in one line, side by side, never reset unasked."""

from __future__ import annotations

import copy
import importlib
import math
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, VectorEnv
from gymnasium.wrappers import FlattenObservation

from rl_training.core.errors import ConfigError, EnvironmentProblem
from rl_training.core.registry import load_object
from rl_training.core.spaces import Spaces
from rl_training.core.streams import derive_seed
from rl_training.core.types import Array, Facts
from rl_training.data.fields import Field, all_fields
from rl_training.runtime.columns import (
    ColumnActions,
    Env,
    Infos,
    MaskedObservations,
    check_spaces,
    one_line,
    tells_mask,
)

Wrapper = Callable[[Env], Env]
GivenEnv = str | Env | Callable[[], Env]
"""What a user may give as an environment: an id, one that exists, or a function that makes one."""


@dataclass(frozen=True)
class EnvMaker:
    """Makes the environments of a run, as many as are needed, each inside the same wrappers."""

    name: str
    factory: Callable[[], Env] | None = None
    """none: `gymnasium.make(name)`"""
    wrappers: tuple[Wrapper, ...] = ()

    def __str__(self) -> str:
        return self.name

    def make(self, env_kwargs: Facts) -> Env:
        """A new environment; keywords are `gymnasium.make`'s, a factory takes none of ours."""
        if self.factory is None:
            made = gym.make(self.name, **{"disable_env_checker": True, **env_kwargs})
        else:
            made = self.factory()
        for wrapper in self.wrappers:
            if isinstance(made, gym.Env):
                made = wrapper(made)
        if not isinstance(made, gym.Env):
            raise TypeError(f"it is {type(made).__name__}, not a Gymnasium environment")
        return made


EnvLike = str | EnvMaker


def env_maker(given: GivenEnv | EnvMaker, wrappers: Sequence[Wrapper] = ()) -> EnvMaker:
    """The maker for what a user gave."""
    if isinstance(given, EnvMaker):
        return replace(given, wrappers=(*given.wrappers, *wrappers))
    if isinstance(given, str):
        return EnvMaker(given, None, tuple(wrappers))
    if isinstance(given, gym.Env):
        name = given.spec.id if given.spec is not None else type(given.unwrapped).__name__
        return EnvMaker(name, partial(another, given), tuple(wrappers))
    if callable(given):
        return EnvMaker(getattr(given, "__name__", type(given).__name__), given, tuple(wrappers))
    raise EnvironmentProblem(
        f"env must be an id, a Gymnasium environment or a function that makes one, got {type(given).__name__}"
    )


def another(env: Env) -> Env:
    """One more environment like a given one, which is left alone."""
    if env.spec is not None:
        return gym.make(env.spec, disable_env_checker=True)
    try:
        return copy.deepcopy(env)
    except Exception as error:
        raise EnvironmentProblem(
            f"environment {type(env.unwrapped).__name__} cannot be copied ({describe_error(error)}); "
            "give a function that makes one"
        ) from error


def make_env(env: EnvLike, env_kwargs: Mapping[str, object] | None = None) -> Env:
    """An environment with flat observations and actions, or one line that says why there is none.

    Gymnasium's passive checker is left out as `spaces_of` checks. A dictionary of vectors becomes one vector,
    its parts in the order of Gymnasium's `Dict`, which is alphabetical for a dictionary that is not ordered.
    """
    env_id, maker = str(env), env_maker(env)
    try:
        with quiet_construction(env_id):
            made = maker.make(env_kwargs or {})
            flat = FlattenObservation(made) if is_vector_dictionary(made.observation_space) else made
            if isinstance(flat.action_space, spaces.Box):
                return flat
            columns = ColumnActions(flat, env_id)
            return MaskedObservations(columns) if tells_mask(columns) else columns
    except EnvironmentProblem:
        raise
    except (gym.error.UnregisteredEnv, gym.error.DeprecatedEnv, ModuleNotFoundError) as error:
        raise EnvironmentProblem(
            f"env_id must name an environment that Gymnasium knows, got {env_id!r}: {one_line(error)} "
            "(write 'package:EnvId' if a package registers it when imported)"
        ) from error
    except Exception as error:
        given = f" with env_kwargs {dict(env_kwargs)}" if env_kwargs else ""
        raise EnvironmentProblem(
            f"environment {env_id!r} could not be created{given}: {describe_error(error)}"
        ) from error


def is_vector_dictionary(space: spaces.Space[Any]) -> bool:
    return isinstance(space, spaces.Dict) and all(
        isinstance(part, spaces.Box) and len(part.shape) == 1 for part in space.spaces.values()
    )


def spaces_of(env: EnvLike | Env, env_kwargs: Mapping[str, object] | None = None) -> Spaces:
    """Sizes and action bounds of an environment, or of the one that an id or a maker stands for."""
    if isinstance(env, gym.Env):
        name = env.spec.id if env.spec is not None else type(env.unwrapped).__name__
        known = getattr(env, "column_spaces", None)
        return known or check_spaces(name, env.observation_space, env.action_space)
    built = make_env(env, env_kwargs)
    try:
        known = getattr(built, "column_spaces", None)
        return known or check_spaces(str(env), built.observation_space, built.action_space)
    finally:
        built.close()


def episode_seed(seed: int, *names: str | int) -> int:
    """The seed of one episode: 31 bits, as some environment packages take no more than 32."""
    return derive_seed(seed, *names) & 0x7FFF_FFFF


def describe_error(error: BaseException) -> str:
    """Class and message of an exception, on one line."""
    text = one_line(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


@contextmanager
def quiet_gymnasium() -> Iterator[None]:
    """Hold back Gymnasium's own warnings; what matters of them is said once, by an error of ours."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"gymnasium(\.|$)")
        yield


@contextmanager
def quiet_construction(env_id: str) -> Iterator[None]:
    """Hold back what Gymnasium and MuJoCo say, every time, about the environments they ship.

    MuJoCo prints its notes on old model attributes from C and leaves a MUJOCO_LOG.TXT behind. Its warnings
    of an unstable simulation come while stepping and stay visible.
    """
    spec = gym.registry.get(env_id)
    uses_mujoco = "mujoco" in sys.modules or (spec is not None and "mujoco" in str(spec.entry_point))
    with quiet_gymnasium():
        try:
            mujoco = importlib.import_module("mujoco") if uses_mujoco else None
        except ImportError:
            mujoco = None  # creating the environment says what to install
        if mujoco is None:
            yield
            return
        handler = mujoco.get_mju_user_warning()
        mujoco.set_mju_user_warning(lambda _: None)
        try:
            yield
        finally:
            mujoco.set_mju_user_warning(handler)


# Several environments side by side, in this process or one process each, that are never reset unasked.


FAULT = "fault"
"""Key of the infos under which a sub-environment reports that it raised."""

SOUND_SQUARED_LENGTH = 1e76
"""An observation that is shorter has neither NaN nor anything beyond the range of float32 in it."""

GRACE_SECONDS = 3
"""How long a worker process outlives a request to terminate, and how long closing waits for an answer."""


def make_vector_env(
    env_id: EnvLike,
    env_kwargs: Mapping[str, object],
    num_envs: int,
    *,
    async_envs: bool = False,
    fields: Sequence[Field] = (),
) -> SerialVectorEnv | WorkerVectorEnv:
    """`num_envs` copies of an environment; `async_envs` gives each a process of its own.

    Steps tell the `fields` in their infos, by name.
    """
    factories = [EnvFactory(env_id, env_kwargs, index, fields) for index in range(num_envs)]
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
        "that workers can import and write 'module:EnvId', or leave out async_envs and collect_ahead"
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

    def __init__(
        self, env_id: EnvLike, env_kwargs: Mapping[str, object], index: int, fields: Sequence[Field] = ()
    ) -> None:
        self.env_id, self.env_kwargs, self.index, self.fields = env_id, dict(env_kwargs), index, fields
        self.owner = os.getpid()

    def __call__(self) -> GuardedEnv:
        if os.getpid() != self.owner:
            leave_signals_to_the_parent()
        return GuardedEnv(make_env(self.env_id, self.env_kwargs), self.index, self.fields)


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
    order, workers stay alive, and no exception has to be sent between processes. Of the other infos those
    are kept that `fields` ask for: gathering them all costs more than the step of a cheap environment.
    """

    def __init__(
        self, env: Env, index: int = 0, fields: Sequence[Field] = (), *, optional: bool = False
    ) -> None:
        """`fields` that are `optional` may be missing."""
        super().__init__(env)
        self.index, self.fields, self.optional = index, fields, optional
        self._obs_shape = self.observation_space.shape

    def step(self, action: object) -> tuple[Any, float, bool, bool, Infos]:
        try:
            obs, reward, terminated, truncated, info = self.env.step(action)
            reward = float(reward)
            terminated = terminated if type(terminated) is bool else as_flag(terminated)
            truncated = truncated if type(truncated) is bool else as_flag(truncated)
            complaint = self._complaint(obs)
            kept = kept_infos(self.fields, info, optional=self.optional) if self.fields else {}
        except BaseException as error:
            refuse_own_interrupt(error)
            return self._no_observation(), 0.0, False, False, {FAULT: f"raised {describe_error(error)}"}
        complaint = complaint or kept.get(FAULT)
        if not math.isfinite(reward):
            complaint = f"returned the reward {reward}, which is not finite"
        if complaint:
            return self._no_observation(), 0.0, False, False, {FAULT: complaint}
        return obs, reward, terminated, truncated, kept

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
            if ended or FAULT in info:
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


def kept_infos(fields: Sequence[Field], info: Facts, *, optional: bool = False) -> Infos:
    """What the infos of a step hold for these fields, or what is wrong with it."""
    kept: Infos = {}
    for field in fields:
        given = info.get(field.from_info or "")
        place = f"info[{field.from_info!r}], which the field {field.name} is taken from"
        if given is None and optional:
            continue
        if given is None:
            return {FAULT: f"returned no {place}"}
        value = np.asarray(given, dtype=np.float32)
        if value.size == 1 and (field.kind != "vector" or field.width == 1):
            value = value.reshape(field.row_shape)
        if value.shape != field.row_shape or not np.isfinite(value).all():
            wanted = f"{field.width or 1} finite number(s)"
            return {FAULT: f"returned {one_line(given)} as {place}; it must be {wanted}"}
        kept[field.name] = value
    return kept


def fields_given_by(env: EnvLike, env_kwargs: Mapping[str, object] | None) -> tuple[Field, ...]:
    """The fields whose key is in the infos of an environment, found with a step of one made for it."""
    asked = [field for field in all_fields() if field.from_info is not None]
    if not asked:
        return ()
    made = GuardedEnv(make_env(env, env_kwargs))
    try:
        made.env.reset(seed=0)
        made.env.action_space.seed(0)
        info = made.env.step(made.env.action_space.sample())[4]
    except Exception:  # whoever steps it next says so, with the place
        return ()
    finally:
        made.close()
    return tuple(field for field in asked if field.from_info in info)


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
        self._actions: Array = self._obs
        self._rewards = np.zeros(self.num_envs)
        self._terminated = np.zeros(self.num_envs, dtype=np.bool_)
        self._truncated = np.zeros(self.num_envs, dtype=np.bool_)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: Infos | None = None
    ) -> tuple[Array, Infos]:
        """Reset all, or those where `options["reset_mask"]` is set, each with its own entry of `seed`."""
        seeds = seed if isinstance(seed, Sequence) else [seed] * self.num_envs
        mask = options["reset_mask"] if options else np.ones(self.num_envs, dtype=np.bool_)
        told: dict[int, Infos] = {}
        for index, env in enumerate(self.envs):
            if mask[index]:
                self._obs[index], info = env.reset(seed=seeds[index])
                if info:
                    told[index] = info
        return self._obs, self._as_infos(told) if told else {}

    def step_async(self, actions: Array) -> None:
        """As vector environments with processes have it; here nothing happens before `step_wait`."""
        self._actions = actions

    def step_wait(
        self,
    ) -> tuple[Array, Array, npt.NDArray[np.bool_], npt.NDArray[np.bool_], Infos]:
        """Step all; none may be finished."""
        actions = self._actions
        obs, rewards, terminated, truncated = self._obs, self._rewards, self._terminated, self._truncated
        told: dict[int, Infos] = {}
        for index, env in enumerate(self.envs):
            obs[index], rewards[index], terminated[index], truncated[index], info = env.step(actions[index])
            if info:
                told[index] = info
        return obs, rewards, terminated, truncated, self._as_infos(told) if told else {}

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The method `name` of every sub-environment, with the same arguments."""
        return tuple(getattr(env, name)(*args, **kwargs) for env in self.envs)

    def close_extras(self, *, terminate: bool = False) -> None:
        for env in self.envs:
            env.close()

    def _as_infos(self, told: Mapping[int, Infos]) -> Infos:
        """Faults of any, else the fields of all."""
        if any(FAULT in info for info in told.values()):
            return {FAULT: [told.get(index, {}).get(FAULT) for index in range(self.num_envs)]}
        return {name: np.stack([info[name] for info in told.values()]) for name in told[0]}


# Environment wrappers that a user names in a config as `module:function`.


def load_wrappers(names: Sequence[str]) -> list[Wrapper]:
    """Import what the user wrote. Never called with names out of a checkpoint or a data file."""
    return [_load(name) for name in names]


def _load(name: str) -> Wrapper:
    if ":" not in name:
        raise ConfigError(f"wrappers must be written module:function, got {name!r}")
    try:
        found = load_object(name)
    except Exception as error:  # importing runs the user's module, which may raise anything
        raise ConfigError(f"wrapper {name!r} cannot be imported: {describe_error(error)}") from error
    if not callable(found):
        raise ConfigError(f"wrapper {name!r} must be a function that takes an environment, got {found!r}")
    return found
