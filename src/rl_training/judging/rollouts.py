"""What a policy earns in the learned model of the dynamics."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rl_training.core.streams import derive_seed, torch_generator
from rl_training.judging.drawing import RolloutActions
from rl_training.judging.dynamics import Dynamics, DynamicsModel
from rl_training.judging.fitting import Keeping, Rows, Told, fit
from rl_training.judging.log import SMALLEST_SPREAD, Float64Array, FloatArray, JudgedLog
from rl_training.judging.settings import JudgeConfig
from rl_training.judging.subjects import Subject

NEGLIGIBLE = 0.005
"""Rollouts end when the discount has fallen to this; what would follow is added from the last rewards."""

LONGEST = 2000
_SAMPLED_STEPS = 40
_SAMPLED_STARTS = 50


@dataclass(frozen=True)
class Rollouts:
    """A policy's value in each member, and states and actions met on the way."""

    values: Float64Array
    """`[members]`, in the user's units"""
    obs: FloatArray
    actions: FloatArray


def fit_dynamics(log: JudgedLog, config: JudgeConfig, tell: Told, keeping: Keeping | None = None) -> Dynamics:
    """The ensemble, trained on all rows of the log."""
    # Rewards as they are: a discount of its own belongs to a row's values, not to its reward.
    columns = {**log.columns, "rewards": torch.from_numpy(log.reward_scale.rewards(log.rewards))}
    change = torch.cat([columns["next_obs"] - columns["obs"], columns["rewards"].unsqueeze(-1)], dim=-1)
    spreads = change.double().std(dim=0, correction=0).clamp_min(SMALLEST_SPREAD)
    model = DynamicsModel(
        log.obs.shape[1],
        log.actions.shape[1],
        hidden_sizes=config.model_hidden_sizes,
        members=config.model_members,
        generator=torch_generator(config.seed, "judge", "dynamics networks"),
    )
    learner = Dynamics(
        model,
        seed=config.seed,
        learning_rate=config.learning_rate,
        episodes=log.episodes,
        resample_seed=derive_seed(config.seed, "dynamics") % 2**31,
        spreads=tuple(spreads.tolist()),
    )
    fit(
        learner,
        Rows(lambda rows: {name: values[rows] for name, values in columns.items()}, len(log)),
        name="dynamics",
        updates=config.model_updates,
        config=config,
        networks=config.model_members,
        tell=tell,
        keeping=keeping,
    )
    return learner


@torch.no_grad()
def roll_out(learner: Dynamics, log: JudgedLog, subject: Subject, config: JudgeConfig) -> Rollouts:
    """Follow the policy from logged first states, each member in a world of its own.

    Members keep to their own world for a whole rollout, so that their spread says how far the value depends
    on what the log leaves open. States stay inside the log's range. An end is a loss of weight, not a draw.
    """
    draws = np.random.default_rng(derive_seed(config.seed, "judge", "rollouts"))
    chosen = draws.choice(log.episodes, min(log.episodes, config.rollout_starts), replace=False)
    noise = torch_generator(config.seed, "judge", "rollout noise")
    members = len(learner.scalars["resamples"])
    first = log.columns["obs"][torch.from_numpy(log.starts[chosen])]
    # The states that ended episodes are among the successors only.
    seen = torch.stack([log.columns["obs"], log.columns["next_obs"]])
    lowest, highest = seen.amin((0, 1)), seen.amax((0, 1))
    state, alive = first.expand(members, -1, -1), torch.ones(members, len(first), dtype=torch.float64)
    act = RolloutActions(subject, members, config)
    steps = rollout_steps(log)
    sampled = set(np.unique((-log.horizon * np.log1p(-np.linspace(0, 0.99, _SAMPLED_STEPS))).astype(int)))
    met: list[tuple[FloatArray, FloatArray]] = []
    earned = torch.zeros(steps, members, dtype=torch.float64)
    ends_possible, scale = bool(log.dones.any()), log.reward_scale
    for step in range(steps):
        obs = log.obs_scale.undo(state.reshape(-1, state.shape[-1]).numpy())
        actions = act(obs)
        if step in sampled:
            living = np.flatnonzero(alive.reshape(-1).numpy() > 0.5)
            picked = draws.choice(living, min(len(living), _SAMPLED_STARTS), replace=False)
            met.append((obs[picked], actions[picked]))
        scaled = torch.from_numpy(log.action_scale.apply(actions)).reshape(members, len(first), -1)
        following, reward = _next(learner, state, scaled, noise)
        following = following.clamp(lowest, highest)
        earned[step] = (alive * (reward * scale.spread + scale.center)).mean(-1)
        if ends_possible:
            alive = alive * (1.0 - learner.net.end_odds(state, scaled, following).sigmoid().double())
        state = following
    values = _discounted(earned, log)
    return Rollouts(values, np.concatenate([o for o, _ in met]), np.concatenate([a for _, a in met]))


def rollout_steps(log: JudgedLog) -> int:
    if log.gamma == 1.0:
        return min(LONGEST, int(log.lengths.max()))
    return min(LONGEST, math.ceil(math.log(NEGLIGIBLE) / math.log(log.step_discount)))


def _next(learner: Dynamics, state: Tensor, actions: Tensor, noise: torch.Generator) -> tuple[Tensor, Tensor]:
    """A draw of the successor and of the reward."""
    mean, log_std = learner.net(state, actions)
    # Members share their noise, so that only what they believe sets them apart.
    drawn = torch.randn(mean.shape[1:], generator=noise)
    change = (mean + log_std.exp() * drawn) * learner.scalars["spreads"]
    return state + change[..., :-1], change[..., -1].double()


def _discounted(earned: Tensor, log: JudgedLog) -> Float64Array:
    """Rewards `[steps, members]` -> values; what follows the last step goes on as the last tenth was."""
    steps = len(earned)
    discounts = log.step_discount ** torch.arange(steps, dtype=torch.float64)
    value: Float64Array = (discounts.unsqueeze(-1) * earned).sum(0).numpy()
    if log.gamma < 1.0:
        value = (
            value + log.step_discount**steps * log.horizon * earned[-max(1, steps // 10) :].mean(0).numpy()
        )
    return value
