"""Rolling out random actions or a saved policy into rows of data, in a way that can be interrupted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, Self

import numpy as np

from rl_training.core.errors import DataError
from rl_training.core.plain import Array, Facts, State
from rl_training.core.spaces import FloatArray, Spaces
from rl_training.core.streams import RandomStream, torch_generator
from rl_training.data.data_info import DataInfo
from rl_training.data.episode_log import EpisodeLog
from rl_training.data.reading import Allocate
from rl_training.runtime.collector import Collector
from rl_training.runtime.environments import EnvLike

COLUMNS = ("obs", "actions", "rewards", "next_obs", "terminated", "truncated")


class UnitPolicy(Protocol):
    """A policy as it is saved in a checkpoint."""

    spaces: Spaces

    def act_unit(self, obs: Array, deterministic: bool = True) -> FloatArray: ...


class Rollout:
    """One environment that is stepped by a policy (its mode, with noise or a random share) or at random.

    Everything drawn comes from streams of the seed, so the same settings give the same rows, and a rollout
    restored from `state_dict` goes on with the row it would have produced next.
    """

    def __init__(
        self,
        env: EnvLike,
        env_kwargs: Mapping[str, object] | None,
        seed: int,
        *,
        policy: UnitPolicy | None = None,
        noise: float = 0.0,
        random_share: float = 0.0,
    ) -> None:
        env_id = str(env)
        self.env_id, self.policy, self.noise, self.random_share = env_id, policy, noise, random_share
        self.collector = Collector(env, env_kwargs, 1, seed)
        self.spaces = self.collector.spaces
        if policy is not None and (
            (policy.spaces.obs_dim, policy.spaces.action_dim) != (self.spaces.obs_dim, self.spaces.action_dim)
        ):
            self.collector.close()
            raise DataError(
                f"dataset_checkpoint must hold a policy for {env_id!r} ({self.spaces.obs_dim} observations, "
                f"{self.spaces.action_dim} actions), got one for {policy.spaces.obs_dim} and "
                f"{policy.spaces.action_dim}"
            )
        self._streams = {
            "noise": RandomStream([torch_generator(seed, "collect", "noise")], "normal"),
            "random": RandomStream([torch_generator(seed, "collect", "random")], "uniform"),
            "choice": RandomStream([torch_generator(seed, "collect", "choice")], "unit64"),
        }

    def columns(self, rows: int, allocate: Allocate) -> dict[str, Array]:
        """Empty columns for `rows` rows."""
        shapes: dict[str, tuple[int, ...]] = {
            "obs": (self.spaces.obs_dim,),
            "next_obs": (self.spaces.obs_dim,),
        }
        shapes["actions"] = (self.spaces.action_dim,)
        kinds = {"terminated": np.dtype(np.bool_), "truncated": np.dtype(np.bool_)}
        return {
            name: allocate(name, (rows, *shapes.get(name, ())), kinds.get(name, np.dtype(np.float32)))
            for name in COLUMNS
        }

    def fill(
        self,
        columns: Mapping[str, Array],
        start: int = 0,
        stop: int | None = None,
        on_row: Callable[[int], None] | None = None,
    ) -> None:
        """Step until the rows `start` to `stop` of `columns` are filled; actions are in environment units."""
        for row in range(start, len(columns["rewards"]) if stop is None else stop):
            steps = self.collector.step(self._actions())
            columns["obs"][row] = steps.obs[0]
            columns["actions"][row] = self.spaces.to_env(steps.actions)[0]
            columns["rewards"][row] = steps.rewards[0]
            columns["next_obs"][row] = steps.next_obs[0]
            columns["terminated"][row] = steps.terminated[0]
            columns["truncated"][row] = steps.truncated[0]
            if on_row is not None:
                on_row(row + 1)

    def log(self, columns: Mapping[str, Array], source: str) -> EpisodeLog:
        """The collected rows; the last one counts as a time-out if its episode had more to come."""
        info = DataInfo(source=source, spaces=self.spaces, env_id=self.env_id)
        return EpisodeLog.build({name: columns[name] for name in COLUMNS}, info=info)

    def state_dict(self) -> State:
        streams = {name: stream.state_dict() for name, stream in self._streams.items()}
        return {"collector": self.collector.state_dict(), "streams": streams}

    def load_state_dict(self, state: Facts) -> None:
        self.collector.load_state_dict(state["collector"])
        for name, stream in self._streams.items():
            stream.load_state_dict(state["streams"][name])

    def close(self) -> None:
        self.collector.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _actions(self) -> FloatArray | None:
        if self.policy is None:
            return None
        actions = self.policy.act_unit(self.collector.observations)
        size = self.spaces.action_dim
        if self.noise:
            drawn = self._streams["noise"].next(size).numpy()
            actions = np.clip(actions + self.noise * drawn, -1.0, 1.0).astype(np.float32)
        if self.random_share and float(self._streams["choice"].next(1)) < self.random_share:
            actions = self._streams["random"].next(size).numpy().reshape(1, size).copy()
        return actions


def collect_in_memory(rollout: Rollout, rows: int, source: str) -> EpisodeLog:
    """Fill `rows` rows without interruption."""
    columns = rollout.columns(rows, lambda name, shape, dtype: np.empty(shape, dtype))
    rollout.fill(columns)
    return rollout.log(columns, source)
