"""The network of TD3+BC: a deterministic actor and twin critics."""

from __future__ import annotations

import torch

from rl_training.models.base import NetworkConfig, TwinCriticModel
from rl_training.models.critics import QEnsemble
from rl_training.models.deterministic import DeterministicTanh


class MLPTD3Model(TwinCriticModel):
    """`MLPTD3Model(obs_dim=3, action_dim=1, hidden_sizes=(256, 256))`."""

    def build(self, config: NetworkConfig, generator: torch.Generator | None) -> None:
        self.actor = DeterministicTanh(
            self.obs_dim, self.action_dim, config.actor_widths, generator=generator
        )
        self.critic = QEnsemble(self.obs_dim, self.action_dim, config.critic_widths, 2, generator=generator)
