"""Stepping environments with the policy that is being trained, into a replay buffer."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from rl_training.algorithms.learner import Learner
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.errors import CheckpointError, EnvironmentProblem
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.collector import Collector, FinishedEpisode
from rl_training.spaces import FloatArray, Spaces
from rl_training.streams import RandomStream, torch_generator


class OnlineCollection:
    """One seed's environments, replay buffer and exploration noise."""

    def __init__(self, config: TrainConfig, settings: Any, spaces: Spaces, device: torch.device) -> None:
        assert config.env_id is not None
        self.settings = settings
        self.buffer = ReplayBuffer(settings.buffer_capacity, spaces.obs_dim, spaces.action_dim, device=device)
        self.collector = Collector(
            config.env_id, config.env_kwargs, config.num_envs, config.seed, async_envs=settings.async_envs
        )
        self.noise = RandomStream([torch_generator(config.seed, "explore", device=device)], "normal")
        self.episodes: list[FinishedEpisode] = []

    def step(self, learner: Learner, stored: int) -> int:
        """One transition per environment: random until `learning_starts`, then sampled from the policy."""
        explores = stored >= self.settings.learning_starts
        try:
            steps = self.collector.step(self._explore(learner) if explores else None)
        except EnvironmentProblem:
            if explores:
                self.noise.give_back()  # so that a resumed run tries this very step again
            raise
        self.buffer.add(steps.obs, steps.actions, self._shaped(steps.rewards), steps.next_obs, steps.dones)
        self.episodes.extend(steps.episodes)
        return len(steps.rewards)

    @torch.inference_mode()
    def _explore(self, learner: Learner) -> FloatArray:
        obs = torch.from_numpy(self.collector.observations).to(learner.device)
        rows = obs.shape[0]
        noise = self.noise.next(rows * learner.act_noise_size).reshape(rows, -1)
        return learner.act(obs, noise).cpu().numpy()

    def _shaped(self, rewards: FloatArray) -> FloatArray:
        """Rewards as the learner sees them; episode returns stay in the environment's own units."""
        shaped = rewards * self.settings.reward_scale + self.settings.reward_shift
        limit = self.settings.reward_clip
        return np.asarray(shaped if limit is None else np.clip(shaped, -limit, limit), dtype=np.float32)

    def take_episodes(self, member: int | None) -> list[FinishedEpisode]:
        """Episodes finished since the last call."""
        finished, self.episodes = self.episodes, []
        return finished

    def state_dict(self, member: int | None, *, with_replay: bool) -> dict[str, Any]:
        state: dict[str, Any] = {
            "collector": self.collector.state_dict(),
            "exploration": self.noise.state_dict(),
            "unlogged_episodes": [[episode.ret, episode.length] for episode in self.episodes],
        }
        return state | ({"replay": self.buffer.state_dict()} if with_replay else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if "replay" not in state:
            raise CheckpointError(
                "this checkpoint holds the policy and the learner but no replay rows (only a run's newest "
                "one does), so an online run cannot go on from it exactly; resume from the newest checkpoint"
            )
        self.buffer.load_state_dict(state["replay"])
        self.collector.load_state_dict(state["collector"])
        self.noise.load_state_dict(state["exploration"])
        self.episodes = [FinishedEpisode(ret, length) for ret, length in state["unlogged_episodes"]]

    def close(self) -> None:
        self.collector.close()
