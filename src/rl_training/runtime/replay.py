"""Stepping environments with the policy that is trained, into rows to learn from in its own units."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rl_training.algorithms.learner import Learner
from rl_training.config.run import CollectionFields, TrainConfig
from rl_training.core.errors import CheckpointError
from rl_training.core.spaces import FloatArray, Spaces
from rl_training.core.streams import RandomStream, torch_generator
from rl_training.core.transforms import RewardTransform, Transform
from rl_training.core.types import STANDARD_FIELDS, Array, Facts, State
from rl_training.data.episodes import returns_to_go
from rl_training.data.fields import FIELDS, Field, scaled_with_rewards
from rl_training.data.formulas import penalised
from rl_training.data.rows import ReplayBuffer
from rl_training.policies.acting import Acting, Memory
from rl_training.runtime.collect import Collector, FinishedEpisode, Steps
from rl_training.runtime.envs import EnvLike

Columns = dict[str, Array]
RETURNS = "returns_to_go"


@dataclass(frozen=True)
class Units:
    """How what an environment gives becomes what the learner sees, as it was fitted on the data."""

    rewards: RewardTransform
    observation_steps: Sequence[Transform] = ()
    action_limit: float | None = None
    penalty: Sequence[float] = ()
    """weight of each cost that is taken off the reward"""

    def columns(self, step: Steps) -> Columns:
        rewards, actions, limit = step.rewards, step.actions, self.action_limit
        if self.penalty:
            rewards = penalised(rewards, step.fields["costs"], self.penalty)
        return {
            "obs": self._observations(step.obs),
            "actions": actions if limit is None else actions.clip(-limit, limit).astype(np.float32),
            "rewards": rewards if self.rewards.is_identity else self.rewards.apply_to_array(rewards),
            "next_obs": self._observations(step.next_obs),
            "dones": step.dones,
            **{name: values * self._factor(name) for name, values in step.fields.items()},
        }

    def columns_of(self, step: Steps, stored: Sequence[str]) -> Columns:
        """The columns that are kept: costs may be there for their penalty alone."""
        return {name: values for name, values in self.columns(step).items() if name in stored}

    def _factor(self, name: str) -> float:
        if self.rewards.is_identity or not FIELDS.get(name).follows_rewards:
            return 1.0
        return scaled_with_rewards(name, self.rewards, "leave reward_shift and reward_clip out")

    def _observations(self, values: FloatArray) -> FloatArray:
        for transform in self.observation_steps:
            values = transform.apply_to_array(values)
        return values


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


class RowStore(ABC):
    """Where a collection puts its transitions; batches are drawn uniformly from what it holds."""

    fields: tuple[str, ...]

    @abstractmethod
    def __len__(self) -> int:
        """Rows that can be drawn in every seed."""

    @property
    @abstractmethod
    def parts(self) -> Sequence[Rows]:
        """One part for all seeds, or one part per seed where they hold unequally many rows."""

    def draw(self, unit: Tensor, step: int) -> dict[str, Tensor]:
        return by_part(self.parts, unit, drawn)

    @abstractmethod
    def add(self, columns: Sequence[Columns], ends: Sequence[npt.NDArray[np.bool_]]) -> None:
        """One transition of every environment, and whether its episode ended with it, per seed."""

    @abstractmethod
    def cut(self) -> None:
        """Every unfinished episode ends with the row it has come to."""

    @abstractmethod
    def state_dict(self, member: int | None) -> State: ...

    @abstractmethod
    def load_state_dict(self, state: Facts) -> None: ...

    @abstractmethod
    def keep(self, members: Sequence[int]) -> None: ...


def told_fields(names: Iterable[str]) -> list[Field]:
    """Those of the named fields that environments tell in their infos."""
    return [FIELDS.get(name) for name in sorted(names) if name in FIELDS and FIELDS.get(name).from_info]


class StepRows(RowStore):
    """Rows that can be drawn as soon as they are there: one buffer with a lane per seed."""

    def __init__(
        self,
        capacity: int,
        spaces: Spaces,
        seeds: int,
        device: torch.device,
        needs: frozenset[str] = frozenset(),
    ) -> None:
        lanes, sizes = None if seeds == 1 else seeds, (spaces.obs_dim, spaces.action_dim)
        extra = [field.name for field in told_fields(needs)]
        self.fields: tuple[str, ...] = (*STANDARD_FIELDS, *extra)
        self.buffer = ReplayBuffer(capacity, *sizes, lanes=lanes, extra=extra, device=device)

    def __len__(self) -> int:
        return len(self.buffer)

    def add(self, columns: Sequence[Columns], ends: Sequence[npt.NDArray[np.bool_]]) -> None:
        single = len(columns) == 1
        self.buffer.add(
            **{
                name: columns[0][name] if single else np.stack([rows[name] for rows in columns])
                for name in columns[0]
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


class EpisodeRows(RowStore):
    """Rows with returns-to-go, which are known, and can be drawn, once their episode is over."""

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
        needs: frozenset[str] = frozenset(),
    ) -> None:
        extra = [RETURNS, *(field.name for field in told_fields(needs))]
        self.fields: tuple[str, ...] = (*STANDARD_FIELDS, *extra)
        self.gamma, self.failure_reward = gamma, failure_reward
        sizes = (capacity, spaces.obs_dim, spaces.action_dim)
        self.buffers = [ReplayBuffer(*sizes, extra=extra, device=device) for _ in range(seeds)]
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


class Exploration:
    """Random actions of the policy under training, from one stream per seed.

    A stochastic policy draws its own; to the action of a deterministic one Gaussian noise of standard
    deviation `noise` is added, in units of [-1, 1].
    """

    def __init__(self, seeds: Sequence[int], noise: float, device: torch.device) -> None:
        self.noise = noise
        self.stream = RandomStream(
            [torch_generator(seed, "explore", device=device) for seed in seeds], "normal"
        )

    @torch.inference_mode()
    def actions(self, learner: Learner, seen: Sequence[FloatArray]) -> Sequence[FloatArray]:
        """For what every seed sees, `[num_envs, obs_dim]` each, from one call of the learner."""
        obs = torch.from_numpy(seen[0] if len(seen) == 1 else np.stack(seen)).to(learner.device)
        policy = learner.policy
        flat = self.stream.next(obs.shape[-2] * policy.actor.noise_size)
        noise = flat.reshape(*obs.shape[:-1], -1)
        chosen = policy.actor.draw(policy.prepared(obs), noise)
        if self.noise and not policy.actor.is_random:
            chosen = (chosen + self.noise * noise).clamp(-1.0, 1.0)
        actions: FloatArray = chosen.cpu().numpy()
        each = [actions] if len(seen) == 1 else list(actions)
        return [policy.limited_unit(*pair) for pair in zip(each, seen, strict=True)]


class OnlineCollection:
    """One set of environments per seed, one store of rows, one exploration stream."""

    def __init__(
        self,
        configs: Sequence[TrainConfig],
        settings: CollectionFields,
        env: EnvLike,
        rows: RowStore,
        units: Units,
        exploration: Exploration,
        *,
        learning_starts: int = 0,
        memory: Memory | None = None,
    ) -> None:
        self.rows, self.units, self.exploration = rows, units, exploration
        self.learning_starts = learning_starts
        self.episodes: list[list[FinishedEpisode]] = [[] for _ in configs]
        self.collectors: list[Collector] = []
        asked = told_fields({*rows.fields, *(("costs",) if units.penalty else ())})
        try:
            for config in configs:
                self.collectors.append(
                    Collector(
                        env,
                        config.env_kwargs,
                        config.num_envs,
                        config.seed,
                        async_envs=settings.async_envs or settings.collect_ahead,
                        fields=asked,
                    )
                )
        except BaseException:
            self.close()
            raise
        self.acting = [Acting(each.spaces, memory, each.num_envs) for each in self.collectors]
        self.ahead = settings.collect_ahead
        self.asked: list[FloatArray] = []
        """What the policy of each seed was asked with in the round under way."""

    def step(self, learner: Learner, stored: int) -> int:
        """One transition per environment: random until `learning_starts`, then sampled from the policy.

        Ahead, the round after it is begun as well, with the policy as it is now, and plays during updates.
        """
        if not self.asked:
            self._begin(learner, stored)
        steps = [collector.finish() for collector in self.collectors]
        seen, self.asked = self.asked, []
        ends = [step.terminated | step.truncated for step in steps]
        for acting, asked, step, ended in zip(self.acting, seen, steps, ends, strict=True):
            if acting.memory is not None:  # rows hold what the policy is asked with
                done = acting.spaces.to_env(step.actions)
                step.obs, step.next_obs = asked, acting.following(step.next_obs, done)
                acting.follow(done)
                acting.reset(rows=ended)
        self.rows.add([self.units.columns_of(step, self.rows.fields) for step in steps], ends)
        for finished, step in zip(self.episodes, steps, strict=True):
            finished.extend(step.episodes)
        count = len(steps[0].rewards)
        if self.ahead:
            self._begin(learner, stored + count)
        return count

    def _begin(self, learner: Learner, stored: int) -> None:
        seen = self._features()
        if stored >= self.learning_starts:
            actions = self.exploration.actions(learner, seen)
        else:
            actions = [
                collector.random_actions(partial(learner.policy.limited_unit, obs=asked))
                for collector, asked in zip(self.collectors, seen, strict=True)
            ]
        self.asked = seen
        for collector, each in zip(self.collectors, actions, strict=True):
            collector.begin(each)

    def _features(self) -> list[FloatArray]:
        return [
            acting.features(collector.observations)
            for acting, collector in zip(self.acting, self.collectors, strict=True)
        ]

    def take_episodes(self, member: int | None) -> list[FinishedEpisode]:
        """Episodes of a seed finished since the last call."""
        seed = member or 0
        finished, self.episodes[seed] = self.episodes[seed], []
        return finished

    def state_dict(self, member: int | None, *, with_replay: bool) -> State:
        seed = member or 0
        state: State = {
            "collector": self.collectors[seed].state_dict(),
            "exploration": self.exploration.stream.member(seed),
            "unlogged_episodes": [[each.ret, each.length, each.cost] for each in self.episodes[seed]],
        }
        if self.acting[seed].memory is not None:
            state["collector"]["acting"] = self.acting[seed].state_dict()
        return state | ({"replay": self.rows.state_dict(member)} if with_replay else {})

    def load_state_dict(self, state: State) -> None:
        """Go on from the checkpoint of a single seed."""
        if "replay" not in state:
            raise CheckpointError(
                "this checkpoint holds the policy and the learner but no replay rows (only a run's newest "
                "one does), so an online run cannot go on from it exactly; resume from the newest checkpoint"
            )
        self.rows.load_state_dict(state["replay"])
        self.collectors[0].load_state_dict(state["collector"])
        self.exploration.stream.load_state_dict(state["exploration"])
        self.episodes = [[FinishedEpisode(*each) for each in state["unlogged_episodes"]]]
        if self.acting[0].memory is not None:
            self.acting[0].load_state_dict(state["collector"]["acting"])
        if self.collectors[0].under_way:
            self.asked = self._features()

    def keep(self, members: Sequence[int]) -> None:
        """Go on with some of the seeds."""
        for index, collector in enumerate(self.collectors):
            if index not in members:
                collector.close()
        self.rows.keep(members)
        self.collectors = [self.collectors[index] for index in members]
        self.episodes = [self.episodes[index] for index in members]
        self.acting = [self.acting[index] for index in members]
        self.asked = [self.asked[index] for index in members if self.asked]
        self.exploration.stream = self.exploration.stream.keep(members)

    def close(self) -> None:
        for collector in self.collectors:
            collector.close()
