"""Building one environment: errors in one line, spaces checked, nothing printed on the way."""

from __future__ import annotations

import copy
import importlib
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import FlattenObservation

from rl_training.core.errors import EnvironmentProblem
from rl_training.core.plain import Facts
from rl_training.core.spaces import Spaces
from rl_training.core.streams import derive_seed

Env = gym.Env[Any, Any]
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
    """An environment with flat observations, or one line that says why there is none.

    Gymnasium's passive checker is left out as `spaces_of` checks. A dictionary of vectors becomes one vector,
    its parts in the order of Gymnasium's `Dict`, which is alphabetical for a dictionary that is not ordered.
    """
    env_id, maker = str(env), env_maker(env)
    try:
        with quiet_construction(env_id):
            made = maker.make(env_kwargs or {})
            return FlattenObservation(made) if is_vector_dictionary(made.observation_space) else made
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
        return check_spaces(name, env.observation_space, env.action_space)
    built = make_env(env, env_kwargs)
    try:
        return check_spaces(str(env), built.observation_space, built.action_space)
    finally:
        built.close()


def check_spaces(env_id: str, observation: spaces.Space[Any], action: spaces.Space[Any]) -> Spaces:
    """The spaces this package can learn in, or the reason why not and what to do about it."""
    if not isinstance(action, spaces.Box) or not np.issubdtype(action.dtype, np.floating):
        raise EnvironmentProblem(
            f"environment {env_id!r} has the action space {one_line(action)}: "
            "only continuous actions (a Box of floats) are supported"
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
    elif not isinstance(observation, spaces.Box) or len(observation.shape) != 1 or not observation.shape[0]:
        problem = f"the observation space {one_line(observation)}"
        remedy = (
            "only flat vectors (a Box of one dimension, or a dictionary of such) are supported, no images; "
            "gymnasium.wrappers.FlattenObservation turns small ones into vectors"
        )
    else:
        return Spaces(observation.shape[0], tuple(low.tolist()), tuple(high.tolist()))
    raise EnvironmentProblem(f"environment {env_id!r} has {problem}: {remedy}")


def episode_seed(seed: int, *names: str | int) -> int:
    """The seed of one episode: 31 bits, as some environment packages take no more than 32."""
    return derive_seed(seed, *names) & 0x7FFF_FFFF


def describe_error(error: BaseException) -> str:
    """Class and message of an exception, on one line."""
    text = one_line(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def one_line(value: object) -> str:
    """`str(value)` without line breaks: spaces print their arrays over several lines."""
    return " ".join(str(value).split())


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
