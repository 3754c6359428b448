"""Environments and data that say where they are, for runs whose every number is known beforehand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rl_training.data import TransitionDataset


class Ticker(gym.Env[Any, Any]):
    """Observes (number, episode, time), costs its time; episodes last `length` steps, odd ones terminate."""

    def __init__(self, world: World) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = spaces.Box(-2.0, 2.0, (1,), np.float32)
        self.world, self.number, self.episode = world, -1, -1

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        if self.number < 0:
            self.number = self.world.environments
            self.world.environments += 1
        place = self.world.places.setdefault(seed, (self.number, self.episode + 1))
        (self.number, self.episode), self.time = place, 0
        self.world.seeds.append((self.number, seed))
        return self.seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        self.world.played.append((self.number, float(action[0])))
        over, terminates = self.time == self.world.length, self.episode % 2 == 1
        told = {"cost": float(self.time)}
        return self.seen(), self.world.reward(self, float(action[0])), over and terminates, over, told

    def seen(self) -> Any:
        return np.array([self.number, self.episode, self.time], dtype=np.float32)


@dataclass
class World:
    """Makes environments, numbered by their first reset, and writes down what happens in them."""

    length: int = 3
    reward: Callable[[Ticker, float], float] = lambda env, action: 10.0 * env.episode + env.time
    environments: int = 0
    places: dict[int | None, tuple[int, int]] = field(default_factory=dict)
    """(environment, episode) that a seed has led to, and leads to again"""
    seeds: list[tuple[int, int | None]] = field(default_factory=list)
    """(environment, seed) of every reset"""
    played: list[tuple[int, float]] = field(default_factory=list)
    """(environment, action) of every step"""

    def make(self) -> Ticker:
        return Ticker(self)


def by_action(env: Ticker, action: float) -> float:
    """A reward that tells which policy acted."""
    return action


def numbered_rows(count: int = 20) -> TransitionDataset:
    """Row i has the observation (i, 0, 0) and the reward i; four rows make an episode."""
    numbers = np.arange(count, dtype=np.float32)
    obs = np.stack([numbers, np.zeros_like(numbers), np.zeros_like(numbers)], axis=1)
    ends = (np.arange(count) % 4 == 3).astype(np.float32)
    actions = np.linspace(-1.0, 1.0, count, dtype=np.float32)[:, None]
    return TransitionDataset(obs, actions, numbers, obs + 1.0, np.zeros_like(ends), truncations=ends)


def impatient(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    """A wrapper: episodes of one step."""
    return gym.wrappers.TimeLimit(env, 1)
