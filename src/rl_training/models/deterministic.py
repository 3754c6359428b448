"""A policy without a distribution: one action per observation."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rl_training.models.layers import MLP


class DeterministicTanh(nn.Module):
    """a = tanh(m(s)) (TD3+BC, BC)."""

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        hidden_sizes: Sequence[int],
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.net = MLP(obs_dim, hidden_sizes, action_dim, generator=generator)

    def mode(self, obs: Tensor) -> Tensor:
        actions: Tensor = self.net(obs)
        return actions.tanh()

    def forward(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """What a stochastic policy gives, without chance: the action, which has probability one."""
        actions = self.mode(obs)
        return actions, torch.zeros_like(actions[..., 0])
