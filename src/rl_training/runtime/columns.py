"""Environments as rows of numbers: actions in columns, masks of levels behind the observations."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from rl_training.core.errors import EnvironmentProblem
from rl_training.core.spaces import Box, Choice, FloatArray, Part, Spaces
from rl_training.core.types import Array
from rl_training.data.fields import ACTION_MASK

Env = gym.Env[Any, Any]
Infos = dict[str, Any]
"""What environments tell beside their observations"""


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
