"""Environments: built with errors in one line, as rows of numbers, each guarded against its own faults."""

from __future__ import annotations

import copy
import importlib
import math
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.wrappers import FlattenObservation

from rl_training.core.errors import ConfigError, EnvironmentProblem
from rl_training.core.registry import load_object
from rl_training.core.spaces import Box, Choice, FloatArray, Part, Spaces
from rl_training.core.streams import derive_seed
from rl_training.core.types import Array, Facts
from rl_training.data.fields import ACTION_MASK, Field, all_fields

Env = gym.Env[Any, Any]
Infos = dict[str, Any]
"""What environments tell beside their observations"""

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


# ---- an environment that says what went wrong, in place of raising or returning nonsense


FAULT = "fault"
"""Key of the infos under which a sub-environment reports that it raised."""

SOUND_SQUARED_LENGTH = 1e76
"""An observation that is shorter has neither NaN nor anything beyond the range of float32 in it."""


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


# ---- wrappers that a user names in a config as `module:function`


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


# ---- environments as rows of numbers: actions in columns, masks of levels behind the observations


def check_spaces(env_id: str, observation: spaces.Space[Any], action: spaces.Space[Any]) -> Spaces:
    """The spaces this package can learn in, or the reason why not and what to do about it."""
    try:
        parts = action_parts(action)
        if not isinstance(observation, spaces.Box) or len(observation.shape) != 1 or not observation.shape[0]:
            raise EnvironmentProblem(
                f"the observation space {one_line(observation)}: only flat vectors (a Box of one dimension, "
                "or a dictionary of such) are supported, no images; "
                "gymnasium.wrappers.FlattenObservation turns small ones into vectors"
            )
    except EnvironmentProblem as problem:
        raise EnvironmentProblem(f"environment {env_id!r} has {problem}") from None
    return Spaces.of(observation.shape[0], parts)


def action_parts(action: spaces.Space[Any]) -> list[Part]:
    """The columns that stand for an action, in the order in which `native_action` takes them back."""
    if isinstance(action, spaces.Discrete):
        return [_numbered(action.start, action.n)]
    if isinstance(action, spaces.MultiDiscrete):
        return [_numbered(*each) for each in zip(action.start.flat, action.nvec.flat, strict=True)]
    if isinstance(action, spaces.MultiBinary):
        return [_numbered(0, 2)] * int(np.prod(action.shape))
    if isinstance(action, spaces.Tuple | spaces.Dict):
        inner = action.spaces.values() if isinstance(action, spaces.Dict) else action.spaces
        return [part for space in inner for part in action_parts(space)]
    if not isinstance(action, spaces.Box) or not np.issubdtype(action.dtype, np.floating):
        raise EnvironmentProblem(
            f"the action space {one_line(action)}: only continuous actions (a Box of floats), choices "
            "(Discrete, MultiDiscrete, MultiBinary) and a Tuple or Dict of them are supported"
        )
    low, high = action.low, action.high
    if len(action.shape) != 1 or not action.shape[0]:
        problem, remedy = f"actions of shape {action.shape}", "only flat vectors are supported"
    elif not (np.isfinite(low).all() and np.isfinite(high).all()):
        problem = f"unbounded actions (low {low.tolist()}, high {high.tolist()})"
        remedy = (
            "give every action finite bounds, e.g. with gymnasium.wrappers.RescaleAction or TransformAction"
        )
    elif not (low < high).all():
        problem = f"an action with low >= high (low {low.tolist()}, high {high.tolist()})"
        remedy = "leave out actions that cannot vary"
    else:
        return [Box(*bounds) for bounds in zip(low.tolist(), high.tolist(), strict=True)]
    raise EnvironmentProblem(f"{problem}: {remedy}")


def _numbered(start: int, count: int) -> Choice:
    if count < 2:
        raise EnvironmentProblem(f"a choice of {count} level: leave out actions that cannot vary")
    return Choice(tuple(float(start + place) for place in range(int(count))))


def native_action(space: spaces.Space[Any], columns: Iterator[float]) -> Any:
    """What an environment with this action space is to be given, of as many columns as it takes."""
    if isinstance(space, spaces.Tuple):
        return tuple(native_action(each, columns) for each in space.spaces)
    if isinstance(space, spaces.Dict):
        return {name: native_action(each, columns) for name, each in space.spaces.items()}
    if isinstance(space, spaces.Discrete):
        return space.dtype.type(next(columns))
    shape = space.shape or ()
    return np.array(list(islice(columns, math.prod(shape))), dtype=space.dtype).reshape(shape)


class ColumnActions(gym.Wrapper[Any, Any, Any, Any]):
    """Takes actions as columns of numbers, whatever the environment's own look like."""

    def __init__(self, env: Env, name: str) -> None:
        super().__init__(env)
        self.column_spaces = check_spaces(name, env.observation_space, env.action_space)
        bounds = (self.column_spaces.action_low, self.column_spaces.action_high)
        low, high = (np.array(bound, dtype=np.float32) for bound in bounds)
        self.action_space = spaces.Box(low, high, dtype=np.float32)

    def step(self, action: Array) -> tuple[Any, Any, bool, bool, Infos]:
        self.column_spaces.encode(action)  # refuses what is not a level: a number cut to one would act
        return self.env.step(native_action(self.env.action_space, iter(action.tolist())))


class MaskedObservations(gym.Wrapper[Any, Any, Any, Any]):
    """Shows the mask of actions that an environment tells in its infos, behind its observations."""

    def __init__(self, env: ColumnActions) -> None:
        super().__init__(env)
        own = env.column_spaces
        self.column_spaces = Spaces.of(
            own.obs_dim + sum(size for size in own.levels if size > 1), own.parts, masked=True
        )
        seen, ones = env.observation_space, np.ones(self.column_spaces.mask_size, np.float32)
        assert isinstance(seen, spaces.Box)
        low, high = np.concatenate([seen.low, 0.0 * ones]), np.concatenate([seen.high, ones])
        self.observation_space = spaces.Box(low.astype(np.float32), high.astype(np.float32))

    def reset(self, *, seed: int | None = None, options: Infos | None = None) -> tuple[Any, Infos]:
        obs, info = self.env.reset(seed=seed, options=options)
        return self._shown(obs, info), info

    def step(self, action: Array) -> tuple[Any, Any, bool, bool, Infos]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self._shown(obs, info), reward, terminated, truncated, info

    def _shown(self, obs: Array, info: Infos) -> FloatArray:
        wanted = self.column_spaces.mask_size
        mask = flat_numbers(info.get(ACTION_MASK))
        if mask.shape != (wanted,) or not ((mask == 0.0) | (mask == 1.0)).all():
            raise EnvironmentProblem(
                f"info[{ACTION_MASK!r}] must hold {wanted} numbers, 1 or 0 for each level of each choice, "
                f"got {one_line(info.get(ACTION_MASK))}"
            )
        shown: FloatArray = np.concatenate([np.asarray(obs).reshape(-1), mask]).astype(np.float32)
        return shown


def tells_mask(env: Env) -> bool:
    """Whether an environment tells which levels may be taken; one that fails says so to whoever steps it."""
    try:
        return ACTION_MASK in env.reset(seed=0)[1]
    except Exception:
        return False


def flat_numbers(told: object) -> npt.NDArray[np.float64]:
    """What is told as an array, or as one for each part of a `Tuple` or `Dict`, in the order of columns."""
    parts = told.values() if isinstance(told, Mapping) else told if isinstance(told, tuple | list) else None
    if parts is None:
        return np.asarray([] if told is None else told, dtype=np.float64).reshape(-1)
    return np.concatenate([flat_numbers(part) for part in parts] or [np.empty(0)])


def one_line(value: object) -> str:
    """`str(value)` without line breaks: spaces print their arrays over several lines."""
    return " ".join(str(value).split())
