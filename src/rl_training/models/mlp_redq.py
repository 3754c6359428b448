"""The network of REDQ: a squashed-Gaussian actor and a large ensemble of critics."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from rl_training.config import setting
from rl_training.models.base import NetworkConfig, PolicyModel, as_batch
from rl_training.models.critics import QEnsemble
from rl_training.models.policies import SquashedGaussian


class REDQNetworkConfig(NetworkConfig):
    """Keywords of `MLPREDQModel`."""

    num_critics: int = setting(10, "critics in the ensemble (N)", ge=1)
    layer_norm: bool = setting(False, "layer normalisation in the critics, before the activation (RLPD)")


class MLPREDQModel(PolicyModel):
    """`MLPREDQModel(obs_dim=3, action_dim=1, num_critics=10)`; Xavier weights, zero biases as the authors."""

    config_class: ClassVar[type[NetworkConfig]] = REDQNetworkConfig

    def build(self, config: REDQNetworkConfig, generator: torch.Generator | None) -> None:
        self.actor = SquashedGaussian(
            self.obs_dim, self.action_dim, config.actor_widths, init="xavier", generator=generator
        )
        self.critic = QEnsemble(
            self.obs_dim,
            self.action_dim,
            config.critic_widths,
            config.num_critics,
            init="xavier",
            layer_norm=config.layer_norm,
            generator=generator,
        )

    def q_values(self, obs: Tensor, actions: Tensor) -> Tensor:
        """All critics' values, `(B, num_critics)`."""
        values: Tensor = self.critic(as_batch(obs), as_batch(actions))
        return values.mT
