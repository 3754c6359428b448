"""An algorithm from outside that takes choices: a value per level, fitted by Q-learning.

Everything it needs is public: an actor with a head for one choice, a model, a learner that says that it takes
choices, and a recipe for logged data and for interaction.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from rl_training.algorithms import Recipe, losses
from rl_training.algorithms.learner import Batch, Learner, LearnerConfig, MetricTensors, Noise, NoiseShapes
from rl_training.config.data import OfflineFields, OnlineDataFields
from rl_training.config.run import OnlineFields
from rl_training.models import NetworkConfig, PolicyModel
from rl_training.models.actors import Actor

TEMPERATURE = 0.3


def one_hot(places: Tensor, levels: int) -> Tensor:
    """The block of a choice: -1, and +1 for the chosen level."""
    return 2.0 * torch.nn.functional.one_hot(places, levels).to(torch.get_default_dtype()) - 1.0


class LevelValues(Actor):
    """One value per level; the best one acts, random ones are drawn with probability softmax(Q / T)."""

    kind = "level_values"
    draws = "the level with the largest Q / T + Gumbel noise"

    def values(self, obs: Tensor) -> Tensor:
        values: Tensor = self.net(obs)
        return values

    def mode(self, obs: Tensor) -> Tensor:
        return one_hot(self.values(obs).argmax(-1), self.action_dim)

    def draw(self, obs: Tensor, noise: Tensor) -> Tensor:
        uniform = torch.special.ndtr(noise).clamp(1e-6, 1.0 - 1e-6)
        gumbel = -(-uniform.log()).log()
        return one_hot((self.values(obs) / TEMPERATURE + gumbel).argmax(-1), self.action_dim)


class LevelModel(PolicyModel):
    """Its head has an output per level."""

    actor_class = LevelValues

    def make_actor(self, generator: torch.Generator | None) -> Actor:
        assert len(self.spaces.choices) == 1, "one choice, and nothing beside it"
        return super().make_actor(generator)


class LevelLearner(Learner):
    """(Q(s, a) - r - gamma (1 - d) max Q(s', .))^2."""

    takes_actions = ("choices",)

    def setup(self) -> None:
        self.actor = self.part("actor", LevelValues)
        self.add_optimizer("values", self.actor.parameters(), "critic")

    def noise_shapes(self, batch_size: int) -> NoiseShapes:
        return {}

    def step(self, batch: Batch, noise: Noise, stage: str) -> MetricTensors:
        with torch.no_grad():
            following = self.actor.values(batch["next_obs"]).amax(-1)
            target = losses.td_target(batch["rewards"], batch["dones"], following, self.discount(batch))
        chosen = (self.actor.values(batch["obs"]) * (batch["actions"] + 1.0) / 2.0).sum(-1)
        loss = (chosen - target).square().mean(-1)
        self.minimize("values", loss)
        return {"critic_loss": loss.detach(), "target_q_mean": target.mean(-1)}


class OfflineLevels(LearnerConfig, NetworkConfig, OfflineFields):
    """Settings of a run on logged data."""


class OnlineLevels(LearnerConfig, NetworkConfig, OnlineFields, OnlineDataFields):
    """Settings of a run in an environment."""


OFFLINE = Recipe(name="level_values", learner=LevelLearner, model=LevelModel, settings=OfflineLevels)


class OnlineLearner(LevelLearner):
    """The same under a name of its own."""


ONLINE = Recipe(name="level_values_online", learner=OnlineLearner, model=LevelModel, settings=OnlineLevels)


class Arms(gym.Env[Any, Any]):
    """Four steps; the arm that a sign asks for pays 1, the other one nothing. Levels count from `start`."""

    def __init__(self, start: int = 0) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (1,))
        self.action_space = spaces.Discrete(2, start=start)
        self.steps = 0

    def _sign(self) -> Any:
        self.wanted = int(self.np_random.integers(2))
        return np.array([2.0 * self.wanted - 1.0], dtype=np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._sign(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), f"{action!r} is none of {self.action_space}"
        reward = float(int(action) - int(self.action_space.start) == self.wanted)
        self.steps += 1
        return self._sign(), reward, self.steps == 4, False, {}


ARMS = "Arms-v0"
gym.register(ARMS, entry_point=Arms)
