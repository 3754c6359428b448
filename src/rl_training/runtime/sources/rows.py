"""Collected transitions as rows to learn from: in the learner's units, one store for all seeds of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rl_training.core.plain import Array, Facts, State
from rl_training.core.spaces import FloatArray, Spaces
from rl_training.core.transforms import RewardTransform, Transform
from rl_training.data.offline_dataset import STANDARD_FIELDS
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.returns import returns_to_go
from rl_training.runtime.collector import Steps

Columns = dict[str, Array]
RETURNS = "returns_to_go"


@dataclass(frozen=True)
class Units:
    """How what an environment gives becomes what the learner sees, as it was fitted on the data."""

    rewards: RewardTransform
    observation_steps: Sequence[Transform] = ()
    action_limit: float | None = None

    def columns(self, step: Steps) -> Columns:
        rewards, actions = step.rewards, step.actions
        return {
            "obs": self._observations(step.obs),
            "actions": actions if self.action_limit is None else self._clipped(actions, self.action_limit),
            "rewards": rewards if self.rewards.is_identity else self.rewards.apply_to_array(rewards),
            "next_obs": self._observations(step.next_obs),
            "dones": step.dones,
        }

    def _observations(self, values: FloatArray) -> FloatArray:
        for transform in self.observation_steps:
            values = transform.apply_to_array(values)
        return values

    @staticmethod
    def _clipped(actions: FloatArray, limit: float) -> FloatArray:
        clipped: FloatArray = actions.clip(-limit, limit).astype(np.float32)
        return clipped


class Rows(Protocol):
    """Rows that can be drawn, of one seed or of several that have equally many."""

    def __len__(self) -> int: ...

    def gather(self, indices: Tensor) -> dict[str, Tensor]: ...


def drawn(rows: Rows, unit: Tensor) -> dict[str, Tensor]:
    """The rows that numbers in [0, 1) pick, uniformly and with replacement."""
    return rows.gather((unit * len(rows)).long())


def by_part(
    parts: Sequence[Rows], unit: Tensor, batch: Callable[[Rows, Tensor], dict[str, Tensor]]
) -> dict[str, Tensor]:
    """A batch of the one part that holds all seeds, or the batches of each seed's own part, stacked."""
    if len(parts) == 1:
        return batch(parts[0], unit)
    batches = [batch(part, unit[seed]) for seed, part in enumerate(parts)]
    return {name: torch.stack([each[name] for each in batches]) for name in batches[0]}


class UniformRows:
    """A batch is drawn uniformly from all rows."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def draw(self, unit: Tensor, step: int) -> dict[str, Tensor]:
        return drawn(self.rows, unit)


class RowStore(Protocol):
    """Where a collection puts its transitions, and what a batch is drawn from."""

    fields: tuple[str, ...]

    def __len__(self) -> int:
        """Rows that can be drawn in every seed."""

    def add(self, columns: Sequence[Columns], ends: Sequence[npt.NDArray[np.bool_]]) -> None:
        """One transition of every environment, and whether its episode ended with it, per seed."""

    def cut(self) -> None:
        """Every unfinished episode ends with the row it has come to."""

    @property
    def parts(self) -> Sequence[Rows]:
        """One part for all seeds, or one part per seed where they hold unequally many rows."""

    def state_dict(self, member: int | None) -> State: ...

    def load_state_dict(self, state: Facts) -> None: ...

    def keep(self, members: Sequence[int]) -> None: ...


class CollectedRows:
    """A batch is drawn from what was collected alone."""

    def __init__(self, store: RowStore) -> None:
        self.store = store

    def __len__(self) -> int:
        return len(self.store)

    def draw(self, unit: Tensor, step: int) -> dict[str, Tensor]:
        return by_part(self.store.parts, unit, drawn)


class StepRows:
    """Rows that can be drawn as soon as they are there: one buffer with a lane per seed."""

    fields: tuple[str, ...] = STANDARD_FIELDS

    def __init__(self, capacity: int, spaces: Spaces, seeds: int, device: torch.device) -> None:
        lanes = None if seeds == 1 else seeds
        self.buffer = ReplayBuffer(capacity, spaces.obs_dim, spaces.action_dim, lanes=lanes, device=device)

    def __len__(self) -> int:
        return len(self.buffer)

    def add(self, columns: Sequence[Columns], ends: Sequence[npt.NDArray[np.bool_]]) -> None:
        single = len(columns) == 1
        self.buffer.add(
            **{
                name: columns[0][name] if single else np.stack([rows[name] for rows in columns])
                for name in self.fields
            }
        )

    def cut(self) -> None:
        """Rows do not depend on how their episode ends."""

    @property
    def parts(self) -> Sequence[Rows]:
        return [self.buffer]

    def state_dict(self, member: int | None) -> State:
        return self.buffer.state_dict(member)

    def load_state_dict(self, state: Facts) -> None:
        self.buffer.load_state_dict(state)

    def keep(self, members: Sequence[int]) -> None:
        self.buffer = self.buffer.keep(members)


class EpisodeRows:
    """Rows with returns-to-go, which are known, and can be drawn, once their episode is over."""

    fields: tuple[str, ...] = (*STANDARD_FIELDS, RETURNS)

    def __init__(
        self,
        capacity: int,
        spaces: Spaces,
        seeds: int,
        num_envs: int,
        device: torch.device,
        *,
        gamma: float,
        failure_reward: float | None,
    ) -> None:
        self.gamma, self.failure_reward = gamma, failure_reward
        sizes = (capacity, spaces.obs_dim, spaces.action_dim)
        self.buffers = [ReplayBuffer(*sizes, extra=(RETURNS,), device=device) for _ in range(seeds)]
        self.open: list[list[list[Columns]]] = [[[] for _ in range(num_envs)] for _ in range(seeds)]
        """Rows of the unfinished episode of each seed and environment"""

    def __len__(self) -> int:
        return min(len(buffer) for buffer in self.buffers)

    def add(self, columns: Sequence[Columns], ends: Sequence[npt.NDArray[np.bool_]]) -> None:
        for seed, (rows, ended) in enumerate(zip(columns, ends, strict=True)):
            for env, over in enumerate(ended.tolist()):
                episode = self.open[seed][env]
                episode.append({name: values[env : env + 1].copy() for name, values in rows.items()})
                if over:
                    self._close(seed, env)

    def cut(self) -> None:
        for seed, episodes in enumerate(self.open):
            for env, episode in enumerate(episodes):
                if episode:
                    self._close(seed, env)

    def _close(self, seed: int, env: int) -> None:
        """Nothing follows the last row of an episode, also where it was cut off (Nakamoto et al. 2023)."""
        rows, self.open[seed][env] = joined(self.open[seed][env]), []
        ends = np.zeros(len(rows["rewards"]), dtype=np.bool_)
        ends[-1] = True
        returns = returns_to_go(
            rows["rewards"], ends, self.gamma, failure_reward=self.failure_reward, dtype=np.float32
        )
        self.buffers[seed].add(**rows, **{RETURNS: returns})

    @property
    def parts(self) -> Sequence[Rows]:
        return self.buffers

    def state_dict(self, member: int | None) -> State:
        seed = member or 0
        episodes = {str(env): joined(rows) for env, rows in enumerate(self.open[seed]) if rows}
        return {**self.buffers[seed].state_dict(), "open": episodes}

    def load_state_dict(self, state: Facts) -> None:
        self.buffers[0].load_state_dict(state)
        for env, rows in state["open"].items():
            count = len(rows["rewards"])
            self.open[0][int(env)] = [
                {name: values[row : row + 1] for name, values in rows.items()} for row in range(count)
            ]

    def keep(self, members: Sequence[int]) -> None:
        self.buffers = [self.buffers[index] for index in members]
        self.open = [self.open[index] for index in members]


def joined(rows: Sequence[Columns]) -> Columns:
    """Single rows as columns."""
    return {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
