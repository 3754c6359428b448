"""A learned model of what happens next, and what a policy earns in it: the second opinion."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from rl_training.algorithms.learner import Batch, MetricTensors, Noise
from rl_training.config import setting
from rl_training.core.streams import derive_seed, torch_generator
from rl_training.judging.fit import (
    BootstrapConfig,
    FitCache,
    FittedLearner,
    OnProgress,
    Rows,
    fit,
    gaussian_outputs,
    resample_weights,
)
from rl_training.judging.log import SMALLEST_SPREAD, Float64Array, FloatArray, JudgedLog
from rl_training.judging.policies import JudgedPolicy, rollout_actions
from rl_training.judging.settings import JudgeConfig
from rl_training.models.actors import gaussian_log_prob
from rl_training.models.models import PolicyModel
from rl_training.models.networks import MLP, NetworkConfig

NEGLIGIBLE = 0.005
"""Rollouts end when the discount has fallen to this; what would follow is added from the last rewards."""

LONGEST = 2000
_SAMPLED_STEPS = 40
_SAMPLED_STARTS = 50


class DynamicsNetworks(NetworkConfig):
    """Sizes of the ensemble."""

    members: int = setting(5, "dynamics networks", ge=1)


class DynamicsModel(PolicyModel):
    """Networks (s, a) -> change of state and reward, with their spread, and (s, a, s') -> odds of an end.

    Ends are mostly a matter of where a step leads (a robot that has fallen), so s' is asked as well.
    """

    config_class = DynamicsNetworks
    config: DynamicsNetworks
    net: MLP
    end_net: MLP

    def build(self, generator: torch.Generator | None) -> None:
        outputs = 2 * (self.obs_dim + 1)
        inputs, lead = self.obs_dim + self.action_dim, (self.config.members,)
        plan = self.config.plan("critic")
        self.net = MLP(inputs, outputs, plan, lead, generator=generator)
        self.end_net = MLP(inputs + self.obs_dim, 1, plan, lead, generator=generator)

    def forward(self, obs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """`[*E, B, O]`, `[*E, B, A]` -> mean and log std of change and reward, `[E, B, O + 1]`."""
        return gaussian_outputs(self.net(_joined(obs, actions)))

    def end_odds(self, obs: Tensor, actions: Tensor, next_obs: Tensor) -> Tensor:
        """Log odds that the step ended the episode, `[E, B]`."""
        odds: Tensor = self.end_net(_joined(obs, actions, next_obs)).squeeze(-1)
        return odds


def _joined(*parts: Tensor) -> Tensor:
    """Side by side, with an axis for members where rows come without one."""
    inputs = torch.cat(parts, dim=-1)
    return inputs if inputs.dim() > 2 else inputs.unsqueeze(0)


class DynamicsConfig(BootstrapConfig):
    """Keywords of the dynamics model."""

    spreads: tuple[float, ...] = setting(..., "std of each change of state and of the reward", gt=0)


class Dynamics(FittedLearner):
    """Maximum likelihood of the logged successors and rewards."""

    config_class = DynamicsConfig
    config: DynamicsConfig
    model: DynamicsModel
    needs: ClassVar[frozenset[str]] = frozenset({"episodes"})

    def setup(self) -> None:
        self.net = self.model
        self.add_optimizer("model", self.model.parameters(), "critic", weight_decay=1e-5)
        members = self.model.config.members
        self.scalars["resamples"] = resample_weights(members, self.config.episodes, self.config.resample_seed)
        self.scalars["spreads"] = torch.tensor(self.config.spreads)

    def step(self, batch: Batch, noise: Noise, stage: str) -> MetricTensors:
        mean, log_std = self.net(batch["obs"], batch["actions"])
        ends = self.net.end_odds(batch["obs"], batch["actions"], batch["next_obs"])
        change = torch.cat([batch["next_obs"] - batch["obs"], batch["rewards"].unsqueeze(-1)], dim=-1)
        surprise = -gaussian_log_prob(change / self.scalars["spreads"], mean, log_std)
        surprise = surprise + F.binary_cross_entropy_with_logits(
            ends, batch["dones"].expand(ends.shape), reduction="none"
        )
        weights = self.scalars["resamples"][:, batch["episodes"]]
        loss = (weights * surprise).mean(-1).sum(-1)
        self.minimize("model", loss)
        return {"model_loss": loss.detach()}


@dataclass(frozen=True)
class Rollouts:
    """A policy's value in each member, and states and actions met on the way."""

    values: Float64Array
    """`[members]`, in the user's units"""
    obs: FloatArray
    actions: FloatArray


def fit_dynamics(
    log: JudgedLog, config: JudgeConfig, on_progress: OnProgress, cache: FitCache | None = None
) -> Dynamics:
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
        on_progress=on_progress,
        cache=cache,
    )
    return learner


@torch.no_grad()
def roll_out(learner: Dynamics, log: JudgedLog, policy: JudgedPolicy, config: JudgeConfig) -> Rollouts:
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
    act = rollout_actions(policy, members, config)
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
    met_obs, met_actions = (np.concatenate(parts) for parts in zip(*met, strict=True))
    return Rollouts(_discounted(earned, log), met_obs, met_actions)


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
    value = (discounts.unsqueeze(-1) * earned).sum(0)
    if log.gamma < 1.0:
        value += log.step_discount**steps * log.horizon * earned[-max(1, steps // 10) :].mean(0)
    return value.numpy()
