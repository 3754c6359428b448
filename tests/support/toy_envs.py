"""Small environments with known answers; importing this module registers them (`toy_envs:Count-v0`)."""

import itertools
import os
import signal
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

BIRTHS = itertools.count()


class Count(gym.Env[Any, Any]):
    """Observation (offset drawn at reset, steps taken, last action); reward = steps taken + action."""

    def __init__(
        self,
        truncate_at: int | None = 3,
        terminate_at: int | None = None,
        fault: str | None = None,
        fault_at: int = -1,
        fault_in_episode: int = 0,
    ) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float64)
        self.action_space = spaces.Box(-2.0, 2.0, (1,), np.float32)
        self.truncate_at, self.terminate_at = truncate_at, terminate_at
        self.fault, self.fault_at, self.fault_in_episode = fault, fault_at, fault_in_episode
        self.episode = -1

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode += 1
        self.time = 0
        self.offset = self.np_random.normal()
        if self.fault == "reset" and self.episode == self.fault_in_episode:
            raise RuntimeError("cannot start")
        return np.array([self.offset, 0.0, 0.0]), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.time += 1
        obs, reward = np.array([self.offset, self.time, action[0]]), self.time + float(action[0])
        if self.time == self.fault_at and self.episode == self.fault_in_episode:
            if self.fault == "raise":
                raise RuntimeError("broken\nwheel")
            if self.fault == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.fault == "obs":
                obs[1] = np.nan
            if self.fault == "shape":
                obs = obs[:1]
            if self.fault == "reward":
                reward = np.inf
        return obs, reward, self.time == self.terminate_at, self.time == self.truncate_at, {"time": self.time}


class Walk(gym.Env[Any, Any]):
    """A random walk that draws in every step: episodes of unequal length, 1 to 20 steps."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Box(np.array([-1.0, -0.5]), np.array([2.0, 0.5]), dtype=np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = self.np_random.normal(size=2).astype(np.float32)
        return self.place.copy(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.place = (self.place + action + self.np_random.normal(size=2)).astype(np.float32)
        return self.place.copy(), float(self.place.sum()), bool(abs(self.place).max() > 4), False, {}


class Whim(Count):
    """Not a function of its seed: every reset of the process gives another offset."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.offset = float(next(BIRTHS))
        return np.array([self.offset, 0.0, 0.0]), {}


class Odd(gym.Env[Any, Any]):
    """Spaces of one's choice."""

    def __init__(self, observation: Any = None, action: Any = None) -> None:
        self.observation_space = observation or spaces.Box(-1.0, 1.0, (2,))
        self.action_space = action or spaces.Box(-1.0, 1.0, (1,))


gym.register("Count-v0", entry_point=Count, order_enforce=True)
gym.register("Walk-v0", entry_point=Walk, max_episode_steps=20)
gym.register("Whim-v0", entry_point=Whim)
gym.register("Odd-v0", entry_point=Odd)
