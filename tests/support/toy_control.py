"""Control problems with known answers, for the learners that have a stochastic actor and critics.

Each problem is a fixed set of transitions; a learner of a few thousand weights solves it within seconds. The
answers are closed-form, so a wrong sign, a missing discount or a missing entropy term falls far outside the
tolerances.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rl_training.algorithms.learner import Learner
from rl_training.algorithms.sac import SAC
from rl_training.models.models import PolicyModel

Rows = dict[str, Tensor]

ROWS = 4096
WIDTHS = (32, 32)

SELF_LOOP: dict[str, Any] = {"gamma": 0.9, "alpha": 0.2, "tau": 0.05, "learning_rate": 5e-3}
SELF_LOOP_VALUE = 11.230544
SELF_LOOP_STD = 0.8744

TEMPERATURE: dict[str, Any] = {"alpha": "auto", "target_entropy": -1.0, "tau": 0.1, "learning_rate": 1e-2}
TEMPERATURE_STD = 0.089733

REGULATOR: dict[str, Any] = {"gamma": 0.9, "alpha": 0.003, "tau": 0.1, "learning_rate": 5e-3}
REGULATOR_GAIN = 0.706659
REGULATOR_COST = 1.070666


def rows(obs: Tensor, actions: Tensor, rewards: Tensor, next_obs: Tensor, done: float) -> Rows:
    """Transitions of one-dimensional states and actions as a batch."""
    return {
        "obs": obs.unsqueeze(-1),
        "actions": actions.unsqueeze(-1),
        "rewards": rewards,
        "next_obs": next_obs.unsqueeze(-1),
        "dones": torch.full_like(rewards, done),
    }


def uniform(seed: int) -> Tensor:
    return torch.rand(ROWS, generator=torch.Generator().manual_seed(seed)) * 2.0 - 1.0


def soft_self_loop(done: float = 0.0) -> Rows:
    """One state, reward 1 whatever the action, for ever: the best policy is the one of highest entropy."""
    state = torch.ones(ROWS)
    return rows(state, uniform(1), torch.ones(ROWS), state, done)


def temperature_bandit() -> Rows:
    """One step, r = -a^2: a learned temperature must bring the entropy to its target."""
    state, actions = torch.ones(ROWS), uniform(2)
    return rows(state, actions, -actions.square(), state, done=1.0)


def closed_regulator() -> Rows:
    """s' = (s + a)/2, r = -(s^2 + a^2/10) on [-1, 1]: linear-quadratic, and never outside the data."""
    states, actions = uniform(3), uniform(4)
    rewards = -(states.square() + 0.1 * actions.square())
    return rows(states, actions, rewards, 0.5 * (states + actions), done=0.0)


def fit(learner: Learner, data: Rows, updates: int, batch_size: int, final_rate: float = 0.05) -> None:
    """Train on random rows while the learning rates fall linearly to a share of themselves."""
    generator = torch.Generator().manual_seed(5)
    for step in range(updates):
        learner.set_learning_rate_scale(1.0 - (1.0 - final_rate) * step / updates)
        chosen = torch.randint(ROWS, (batch_size,), generator=generator)
        learner.update({name: values[chosen] for name, values in data.items()}, global_step=step)


@torch.no_grad()
def value(learner: SAC, states: Tensor, actions: Tensor) -> Tensor:
    """Q(s, a) as the actor of `learner` sees it."""
    return learner.actor_value(states.unsqueeze(-1), actions.unsqueeze(-1))


@torch.no_grad()
def policy(learner: SAC, states: Tensor) -> tuple[Tensor, Tensor]:
    """Pre-tanh mean and standard deviation."""
    mean, log_std = learner.model.actor.distribution(states.unsqueeze(-1))  # type: ignore[operator]
    return mean.squeeze(-1), log_std.squeeze(-1).exp()


def small(model_class: type[PolicyModel], **keywords: Any) -> PolicyModel:
    """A model for these problems."""
    keywords = {"hidden_sizes": WIDTHS, **keywords}
    return model_class(1, 1, generator=torch.Generator().manual_seed(0), **keywords)


def check_soft_self_loop(learner: SAC, updates: int = 1200) -> None:
    """`learner` is built with SELF_LOOP: Q = (1 + gamma alpha H*) / (1 - gamma), broadest policy."""
    fit(learner, soft_self_loop(), updates, batch_size=64)
    grid = torch.linspace(-0.9, 0.9, 7)
    values = value(learner, torch.ones(7), grid)
    mean, std = policy(learner, torch.ones(1))
    assert (values - SELF_LOOP_VALUE).abs().max() < 0.1, values
    assert (std - SELF_LOOP_STD).abs() < 0.05, std
    assert mean.abs() < 0.1, mean


def check_temperature(learner: SAC, updates: int = 2500) -> None:
    """`learner` is built with TEMPERATURE: E[-log pi] -> -1, the policy narrows around 0."""
    fit(learner, temperature_bandit(), updates, batch_size=128)
    mean, std = policy(learner, torch.ones(1))
    noise = torch.randn(20_000, 1, generator=torch.Generator().manual_seed(6))
    with torch.no_grad():
        _, logprobs = learner.actor(torch.ones(20_000, 1), noise)
    assert (logprobs.mean() - 1.0).abs() < 0.05, logprobs.mean()
    assert (std - TEMPERATURE_STD).abs() < 0.006, std
    assert mean.abs() < 0.05, mean


def check_regulator(learner: SAC, updates: int = 2500) -> None:
    """`learner` is built with REGULATOR: a = -K s and Q = -(s^2 + a^2/10) - gamma P s'^2."""
    fit(learner, closed_regulator(), updates, batch_size=128)
    states = torch.linspace(-0.8, 0.8, 9)
    mean, _ = policy(learner, states)
    gain = -(states * mean.tanh()).sum() / states.square().sum()
    assert (gain - REGULATOR_GAIN).abs() < 0.12, gain
    s, a = (grid.flatten() for grid in torch.meshgrid(states, states, indexing="ij"))
    exact = -(s.square() + 0.1 * a.square()) - 0.9 * REGULATOR_COST * (0.5 * (s + a)).square()
    error = (value(learner, s, a) - exact).abs().max()
    assert error < 0.15, error
