"""Stepping environments with the policy that is being trained, into rows to learn from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from rl_training.algorithms.learner import Learner
from rl_training.config.run_fields import CollectionFields
from rl_training.core.errors import CheckpointError, EnvironmentProblem
from rl_training.core.plain import State
from rl_training.core.spaces import FloatArray
from rl_training.core.streams import RandomStream, torch_generator
from rl_training.core.train_config import TrainConfig
from rl_training.runtime.collector import Collector, FinishedEpisode
from rl_training.runtime.environments import EnvLike
from rl_training.runtime.sources.rows import RowStore, Units


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
        return [actions] if len(seen) == 1 else list(actions)


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
    ) -> None:
        self.rows, self.units, self.exploration = rows, units, exploration
        self.learning_starts = learning_starts
        self.episodes: list[list[FinishedEpisode]] = [[] for _ in configs]
        self.collectors: list[Collector] = []
        try:
            self.collectors.extend(make_collector(config, settings, env) for config in configs)
        except BaseException:
            self.close()
            raise

    def step(self, learner: Learner, stored: int) -> int:
        """One transition per environment: random until `learning_starts`, then sampled from the policy."""
        explores = stored >= self.learning_starts
        seen = [collector.observations for collector in self.collectors]
        actions = self.exploration.actions(learner, seen) if explores else [None] * len(seen)
        try:
            steps = [
                collector.step(action) for collector, action in zip(self.collectors, actions, strict=True)
            ]
        except EnvironmentProblem:
            if explores:
                self.exploration.stream.give_back()  # so that a resumed run tries this very step again
            raise
        self.rows.add(
            [self.units.columns(step) for step in steps], [step.terminated | step.truncated for step in steps]
        )
        for finished, step in zip(self.episodes, steps, strict=True):
            finished.extend(step.episodes)
        return len(steps[0].rewards)

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
            "unlogged_episodes": [[episode.ret, episode.length] for episode in self.episodes[seed]],
        }
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
        self.episodes = [[FinishedEpisode(ret, length) for ret, length in state["unlogged_episodes"]]]

    def keep(self, members: Sequence[int]) -> None:
        """Go on with some of the seeds."""
        for index, collector in enumerate(self.collectors):
            if index not in members:
                collector.close()
        self.rows.keep(members)
        self.collectors = [self.collectors[index] for index in members]
        self.episodes = [self.episodes[index] for index in members]
        self.exploration.stream = self.exploration.stream.keep(members)

    def close(self) -> None:
        for collector in self.collectors:
            collector.close()


def make_collector(config: TrainConfig, settings: CollectionFields, env: EnvLike) -> Collector:
    return Collector(env, config.env_kwargs, config.num_envs, config.seed, async_envs=settings.async_envs)
