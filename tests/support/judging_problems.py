"""Logs whose policies have values that can be written down."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from rl_training.core.spaces import Spaces
from rl_training.data import TransitionDataset
from rl_training.judging.policies import PolicyActions
from rl_training.judging.settings import JudgeConfig

LQR_GAMMA = 0.9


class Proportional:
    """a = -k s."""

    def __init__(self, k: float) -> None:
        self.k = k

    def predict(self, obs: np.ndarray) -> np.ndarray:
        return (-self.k * np.asarray(obs)).astype(np.float32)


class GaussianProportional(Proportional):
    """a ~ N(-k s, sigma^2), with bounds so wide that nothing is clipped."""

    spaces = Spaces(1, (-4.0,), (4.0,))
    has_distribution = True
    metadata: ClassVar = {"actor": {"kind": "unbounded"}}

    def __init__(self, k: float, sigma: float) -> None:
        super().__init__(k)
        self.sigma = sigma

    def distribution(self, obs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return -self.k * obs / 4.0, np.full_like(obs, np.log(self.sigma / 4.0))


def lqr_value(k: float) -> float:
    """P of V(s) = -P s^2 under a = -k s, for s' = s/2 + a/2, r = -(s^2 + a^2/10), gamma = 0.9."""
    return (1.0 + 0.1 * k * k) / (1.0 - LQR_GAMMA * (0.5 - 0.5 * k) ** 2)


def lqr_log(episodes: int = 300, length: int = 10, seed: int = 0, shift: float = 0.0) -> TransitionDataset:
    """Uniform actions along episodes that are cut off, never ended."""
    draws = np.random.default_rng(seed)
    obs = np.zeros((episodes, length + 1, 1))
    actions = draws.uniform(-1, 1, (episodes, length, 1))
    obs[:, 0] = draws.uniform(-1, 1, (episodes, 1))
    for step in range(length):
        obs[:, step + 1] = 0.5 * obs[:, step] + 0.5 * actions[:, step]
    return _cut_off(obs, actions, length, shift)


def feedback_log(
    episodes: int = 60, length: int = 20, seed: int = 0, k: float = 0.3, sigma: float = 0.3
) -> TransitionDataset:
    """The same dynamics, driven by a ~ N(-k s, sigma^2): actions follow the state, as logged ones do."""
    draws = np.random.default_rng(seed)
    obs = np.zeros((episodes, length + 1, 1))
    actions = np.zeros((episodes, length, 1))
    obs[:, 0] = draws.uniform(-1, 1, (episodes, 1))
    for step in range(length):
        actions[:, step] = -k * obs[:, step] + sigma * draws.normal(size=(episodes, 1))
        obs[:, step + 1] = 0.5 * obs[:, step] + 0.5 * actions[:, step]
    return _cut_off(obs, actions, length, 0.0)


def feedback_value(k: float, sigma: float) -> tuple[float, float]:
    """P and c of V(s) = -P s^2 - c under a ~ N(-k s, sigma^2)."""
    p = lqr_value(k)
    return p, (sigma**2 / 10.0 + LQR_GAMMA * p * sigma**2 / 4.0) / (1.0 - LQR_GAMMA)


def uniform_lqr_log(rows: int = 4000, seed: int = 0) -> TransitionDataset:
    """The same dynamics from states drawn afresh for every row, in episodes of one row."""
    draws = np.random.default_rng(seed)
    obs, actions = draws.uniform(-1, 1, (2, rows, 1, 1))
    both = np.concatenate([obs, 0.5 * obs + 0.5 * actions], axis=1)
    return _cut_off(both, actions, 1, 0.0)


def _cut_off(obs: np.ndarray, actions: np.ndarray, length: int, shift: float) -> TransitionDataset:
    here, there = obs[:, :-1].reshape(-1, 1), obs[:, 1:].reshape(-1, 1)
    flat = actions.reshape(-1, 1)
    rewards = -(here**2 + 0.1 * flat**2)[:, 0] + shift
    ends = np.arange(len(here)) % length == length - 1
    return TransitionDataset(here, flat, rewards, there, np.zeros(len(here)), truncations=ends)


def corridor_log(episodes: int = 400, seed: int = 0) -> TransitionDataset:
    """Cells 0, 1, 2 side by side; an action's sign says where to go. Cell 2 pays 1, leaving it to the right
    ends the episode; every step costs 0.1."""
    draws = np.random.default_rng(seed)
    rows: list[tuple[float, float, float, float, float, float]] = []
    for _ in range(episodes):
        cell = int(draws.integers(3))
        for step in range(8):
            action = float(draws.choice([-1.0, 1.0]))
            after = max(0, cell + int(action))
            ended = after == 3
            reward = (1.0 if cell == 2 else 0.0) - 0.1
            rows.append((cell, action, reward, min(after, 2), ended, not ended and step == 7))
            cell = after
            if ended:
                break
    columns = np.array(rows).T
    obs, actions, next_obs = (columns[i][:, None] for i in (0, 1, 3))
    return TransitionDataset(obs, actions, columns[2], next_obs, columns[4], truncations=columns[5])


def tripping_log(episodes: int = 40, seed: int = 0, chance_ends: int = 0) -> TransitionDataset:
    """Heat rises by 1 a row from 0 and trips above 2; a second column is noise. Every step pays 1.

    So many episodes end by themselves after a single row, far below, for no reason that shows.
    """
    draws = np.random.default_rng(seed)
    length = np.where(np.arange(episodes) < chance_ends, 1, 3)
    heat = np.concatenate([np.arange(each) for each in length]).astype(float)
    ends = np.cumsum(length) - 1
    dones = np.zeros(len(heat))
    dones[ends] = 1.0
    noise = draws.uniform(-1, 1, (2, len(heat)))
    obs, after = np.stack([heat, noise[0]], 1), np.stack([heat + 1.0, noise[1]], 1)
    actions = draws.uniform(-1, 1, (len(heat), 1))
    return TransitionDataset(obs, actions, np.ones(len(heat)), after, dones)


def corridor_values(action: float, gamma: float) -> np.ndarray:
    """The exact values of always going one way, by solving the linear equations."""
    transition = np.zeros((3, 3))
    for cell in range(3):
        after = max(0, cell + int(action))
        if after < 3:
            transition[cell, after] = 1.0
    rewards = np.array([-0.1, -0.1, 0.9])
    return np.linalg.solve(np.eye(3) - gamma * transition, rewards)


def small(**changes: object) -> JudgeConfig:
    """Settings for seconds, not minutes."""
    settings = {"gamma": LQR_GAMMA, "hidden_sizes": (32, 32), "members": 2, "updates": 600} | changes
    return JudgeConfig.build(settings)


def actions_of(policy: Proportional, data: TransitionDataset) -> PolicyActions:
    here, there = (policy.predict(obs.numpy())[:, None] for obs in (data.obs, data.next_obs))
    return PolicyActions(here, there)
