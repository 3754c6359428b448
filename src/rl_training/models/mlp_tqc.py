"""The network of TQC: a squashed-Gaussian actor and critics that give quantiles of the return."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from rl_training.config import setting
from rl_training.models.base import NetworkConfig, TwinCriticModel, as_batch
from rl_training.models.critics import QEnsemble
from rl_training.models.policies import SquashedGaussian


class TQCNetworkConfig(NetworkConfig):
    """Keywords of `MLPTQCModel`."""

    num_critics: int = setting(5, "critics in the ensemble; their atoms are pooled in the target", ge=1)
    num_quantiles: int = setting(25, "quantiles that each critic gives", ge=1)


class QuantileEnsemble(QEnsemble):
    """Critics whose values are quantiles, `[*S, E, B, K]`."""

    def forward(self, obs: Tensor, actions: Tensor) -> Tensor:
        return self.outputs(obs, actions)


class MLPTQCModel(TwinCriticModel):
    """`MLPTQCModel(obs_dim=3, action_dim=1, num_critics=5, num_quantiles=25)`."""

    config_class: ClassVar[type[NetworkConfig]] = TQCNetworkConfig

    def build(self, config: TQCNetworkConfig, generator: torch.Generator | None) -> None:
        self.actor = SquashedGaussian(self.obs_dim, self.action_dim, config.actor_widths, generator=generator)
        self.critic = QuantileEnsemble(
            self.obs_dim,
            self.action_dim,
            config.critic_widths,
            config.num_critics,
            outputs=config.num_quantiles,
            generator=generator,
        )

    def quantile_values(self, obs: Tensor, actions: Tensor) -> Tensor:
        """All critics' quantiles, `(B, num_critics, num_quantiles)`."""
        values: Tensor = self.critic(as_batch(obs), as_batch(actions))
        return values.movedim(-3, -2)

    def q_values(self, obs: Tensor, actions: Tensor) -> tuple[Tensor, ...]:
        """Each critic's mean over its quantiles, `(B,)` each."""
        return self.quantile_values(obs, actions).mean(-1).unbind(-1)
