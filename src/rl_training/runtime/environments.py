"""Building one environment: errors in one line, spaces checked, nothing printed on the way."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rl_training.core.errors import EnvironmentProblem
from rl_training.core.spaces import Spaces
from rl_training.core.streams import derive_seed

Env = gym.Env[Any, Any]


def make_env(env_id: str, env_kwargs: Mapping[str, Any] | None = None) -> Env:
    """`gymnasium.make` with one-line errors; its passive checker is left out as `spaces_of` checks."""
    options = {"disable_env_checker": True, **(env_kwargs or {})}
    try:
        with quiet_construction(env_id):
            return gym.make(env_id, **options)
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


def spaces_of(env: str | Env, env_kwargs: Mapping[str, Any] | None = None) -> Spaces:
    """Sizes and action bounds of an environment, or of the one that an id names."""
    if not isinstance(env, str):
        name = env.spec.id if env.spec is not None else type(env.unwrapped).__name__
        return check_spaces(name, env.observation_space, env.action_space)
    built = make_env(env, env_kwargs)
    try:
        return check_spaces(env, built.observation_space, built.action_space)
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
            "only flat vectors (a Box of one dimension) are supported, no images and no dictionaries; "
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
