"""Stepping environments with the policy that is being trained, into a replay buffer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from rl_training.algorithms.learner import Learner
from rl_training.config.run_fields import OnlineFields
from rl_training.core.errors import CheckpointError, EnvironmentProblem
from rl_training.core.spaces import FloatArray, Spaces
from rl_training.core.streams import RandomStream, torch_generator
from rl_training.core.train_config import TrainConfig
from rl_training.core.transforms import Transform, reward_transform
from rl_training.data.reference_scores import reference_returns
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.runtime.collector import Collector, FinishedEpisode, Steps
from rl_training.runtime.environments import EnvLike, spaces_of
from rl_training.runtime.loop import Phase


class OnlineSource:
    """Transitions come from environments that the run steps itself."""

    rows: int | None = None
    observation_steps: Sequence[Transform] = ()
    summary: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, configs: Sequence[TrainConfig], settings: OnlineFields, env: EnvLike) -> None:
        self.configs, self.settings, self.env = configs, settings, env
        self.spaces = spaces_of(env, configs[0].env_kwargs)
        self.reference = reference_returns(configs[0].env_id)

    def phases(self, device: torch.device, state: dict[str, Any] | None) -> list[Phase]:
        collection = OnlineCollection(self.configs, self.settings, self.env, self.spaces, device)
        if state is not None:
            collection.load_state_dict(state)
        settings = self.settings
        return [
            Phase(
                "online",
                self.configs[0].total_timesteps,
                collection,
                collection,
                learning_starts=settings.learning_starts,
                train_frequency=settings.train_frequency,
                updates_per_step=settings.gradient_updates_per_step,
            )
        ]


class OnlineCollection:
    """One set of environments per seed, one replay buffer with a lane per seed, one exploration stream."""

    def __init__(
        self,
        configs: Sequence[TrainConfig],
        settings: OnlineFields,
        env: EnvLike,
        spaces: Spaces,
        device: torch.device,
    ) -> None:
        self.settings = settings
        self.rewards = reward_transform(settings)
        self.buffer = self._new_buffer(spaces, len(configs), device)
        self.spaces = spaces
        self.noise = RandomStream(
            [torch_generator(config.seed, "explore", device=device) for config in configs], "normal"
        )
        self.episodes: list[list[FinishedEpisode]] = [[] for _ in configs]
        self.collectors: list[Collector] = []
        try:
            self.collectors.extend(make_collector(config, settings, env) for config in configs)
        except BaseException:
            self.close()
            raise

    def _new_buffer(self, spaces: Spaces, seeds: int, device: torch.device) -> ReplayBuffer:
        return ReplayBuffer(
            self.settings.buffer_capacity,
            spaces.obs_dim,
            spaces.action_dim,
            lanes=None if seeds == 1 else seeds,
            device=device,
        )

    def step(self, learner: Learner, stored: int) -> int:
        """One transition per environment: random until `learning_starts`, then sampled from the policy."""
        explores = stored >= self.settings.learning_starts
        actions = self._explore(learner) if explores else [None] * len(self.collectors)
        try:
            steps = [
                collector.step(action) for collector, action in zip(self.collectors, actions, strict=True)
            ]
        except EnvironmentProblem:
            if explores:
                self.noise.give_back()  # so that a resumed run tries this very step again
            raise
        self._store(steps)
        for finished, step in zip(self.episodes, steps, strict=True):
            finished.extend(step.episodes)
        return len(steps[0].rewards)

    @torch.inference_mode()
    def _explore(self, learner: Learner) -> Sequence[FloatArray]:
        """Actions of every seed, `[num_envs, A]` each, from one call of the learner."""
        seen = [collector.observations for collector in self.collectors]
        obs = torch.from_numpy(seen[0] if len(seen) == 1 else np.stack(seen)).to(learner.device)
        policy = learner.policy
        flat = self.noise.next(obs.shape[-2] * policy.actor.noise_size)
        drawn = policy.actor.draw(policy.prepared(obs), flat.reshape(*obs.shape[:-1], -1))
        actions: FloatArray = drawn.cpu().numpy()
        return [actions] if len(seen) == 1 else list(actions)

    def _store(self, steps: Sequence[Steps]) -> None:
        columns = [
            (step.obs, step.actions, self._shaped(step.rewards), step.next_obs, step.dones) for step in steps
        ]
        self.buffer.add(
            *(columns[0] if len(columns) == 1 else [np.stack(rows) for rows in zip(*columns, strict=True)])
        )

    def _shaped(self, rewards: FloatArray) -> FloatArray:
        """Rewards as the learner sees them; episode returns stay in the environment's own units."""
        return rewards if self.rewards.is_identity else self.rewards.apply_to_array(rewards)

    def take_episodes(self, member: int | None) -> list[FinishedEpisode]:
        """Episodes of a seed finished since the last call."""
        seed = member or 0
        finished, self.episodes[seed] = self.episodes[seed], []
        return finished

    def state_dict(self, member: int | None, *, with_replay: bool) -> dict[str, Any]:
        seed = member or 0
        state: dict[str, Any] = {
            "collector": self.collectors[seed].state_dict(),
            "exploration": self.noise.member(seed),
            "unlogged_episodes": [[episode.ret, episode.length] for episode in self.episodes[seed]],
        }
        return state | ({"replay": self.buffer.state_dict(member)} if with_replay else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from the checkpoint of a single seed."""
        if "replay" not in state:
            raise CheckpointError(
                "this checkpoint holds the policy and the learner but no replay rows (only a run's newest "
                "one does), so an online run cannot go on from it exactly; resume from the newest checkpoint"
            )
        self.buffer.load_state_dict(state["replay"])
        self.collectors[0].load_state_dict(state["collector"])
        self.noise.load_state_dict(state["exploration"])
        self.episodes = [[FinishedEpisode(ret, length) for ret, length in state["unlogged_episodes"]]]

    def keep(self, members: Sequence[int]) -> None:
        """Go on with some of the seeds."""
        for index, collector in enumerate(self.collectors):
            if index not in members:
                collector.close()
        self.buffer = self.buffer.keep(members)
        self.collectors = [self.collectors[index] for index in members]
        self.episodes = [self.episodes[index] for index in members]
        self.noise = self.noise.keep(members)

    def __len__(self) -> int:
        return len(self.buffer)

    def gather(self, indices: torch.Tensor) -> dict[str, torch.Tensor]:
        """Rows of the replay buffer: a collection is its own source of batches."""
        return self.buffer.gather(indices)

    def close(self) -> None:
        for collector in self.collectors:
            collector.close()


def make_collector(config: TrainConfig, settings: OnlineFields, env: EnvLike) -> Collector:
    return Collector(env, config.env_kwargs, config.num_envs, config.seed, async_envs=settings.async_envs)
