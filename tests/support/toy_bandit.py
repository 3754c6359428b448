"""Problems with known answers for algorithms that imitate logged actions by their advantage.

The bandit: actions -0.5 and +0.5, reward a + 0.5, one step. A regression weighted by exp(kappa A) has mean
0.5 tanh(kappa / 2) whatever the baseline is, since the two weights always have the ratio exp(kappa). The
batches are exact (no sampling of rows), so what is left is the error of the learner itself.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from rl_training.algorithms.learner import Learner
from rl_training.models.models import PolicyModel

SETTINGS: dict[str, Any] = {"learning_rate": 5e-3, "actor_learning_rate": 1e-2, "tau": 0.1}
ROWS = 64


def small(model_class: type[PolicyModel], obs_dim: int = 1, **keywords: Any) -> PolicyModel:
    """A model for these problems."""
    keywords = {"hidden_sizes": (32, 32), **keywords}
    return model_class(obs_dim, 1, generator=torch.Generator().manual_seed(0), **keywords)


def bandit(share_of_high: float = 0.5) -> dict[str, Tensor]:
    """One state, one step; `share_of_high` of the rows took +0.5."""
    high = torch.arange(ROWS) < share_of_high * ROWS
    actions = torch.where(high, 0.5, -0.5)
    obs = torch.ones(ROWS, 1)
    return {
        "obs": obs,
        "actions": actions.unsqueeze(-1),
        "rewards": actions + 0.5,
        "next_obs": obs,
        "dones": torch.ones(ROWS),
    }


def chain() -> dict[str, Tensor]:
    """s0 -> s1 -> end with rewards 0 and 1, states one-hot, actions without effect."""
    first = torch.arange(ROWS) % 2 == 0
    state = torch.nn.functional.one_hot((~first).long(), 2).float()
    return {
        "obs": state,
        "actions": torch.linspace(-0.9, 0.9, ROWS).unsqueeze(-1),
        "rewards": (~first).float(),
        "next_obs": torch.tensor([0.0, 1.0]).expand(ROWS, 2).contiguous(),
        "dones": (~first).float(),
    }


def fit(learner: Learner, batch: dict[str, Tensor], updates: int = 600) -> None:
    """Train on the same exact batch while the learning rates fall linearly to a twentieth."""
    for step in range(updates):
        learner.set_learning_rate_scale(1.0 - 0.95 * step / updates)
        learner.update(batch, global_step=step)


@torch.no_grad()
def policy(learner: Learner) -> tuple[float, float]:
    """Mean and standard deviation of an unsquashed policy in the bandit's state."""
    mean, log_std = learner.model.actor.distribution(torch.ones(1, 1))  # type: ignore[operator]
    return mean.item(), log_std.exp().item()


def check_policy(learner: Learner, kappa: float, unit: float = 0.5) -> None:
    """`unit` is where the policy sees the two actions: 0.5, or atanh(0.5) before squashing."""
    mean, std = policy(learner)
    expected = 0.5 * math.tanh(kappa / 2.0)
    assert abs(mean * 0.5 / unit - expected) < 0.03, mean
    assert abs(std * 0.5 / unit - math.sqrt(0.25 - expected**2)) < 0.03, std


@torch.no_grad()
def check_chain_values(learner: Learner) -> None:
    """Q(s1) = 1 and Q(s0) = gamma = 0.9, for every action."""
    actions = torch.linspace(-0.8, 0.8, 5).unsqueeze(-1)
    for state, expected in ((0, 0.9), (1, 1.0)):
        obs = torch.eye(2)[state].expand(5, 2)
        q = torch.stack(learner.model.q_values(obs, actions))  # type: ignore[operator]
        assert (q - expected).abs().max() < 0.02, (state, q)
