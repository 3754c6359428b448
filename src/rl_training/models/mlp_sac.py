"""The network of SAC, CQL, Cal-QL and CRR: a squashed-Gaussian actor and an ensemble of critics."""

from __future__ import annotations

from typing import ClassVar

import torch

from rl_training.config import setting
from rl_training.models.base import NetworkConfig, TwinCriticModel
from rl_training.models.critics import QEnsemble
from rl_training.models.policies import SquashedGaussian


class SACNetworkConfig(NetworkConfig):
    """Keywords of `MLPSACModel`."""

    num_critics: int = setting(2, "critics in the ensemble; targets take their minimum", ge=1)
    layer_norm: bool = setting(False, "layer normalisation in the critics, before the activation")
    orthogonal_init: bool = setting(
        False, "orthogonal weights (gain sqrt 2) with small outputs, as the CQL code base"
    )
    log_std_multiplier: float | None = setting(
        None, "learned scale of the policy's log std and its start value (CQL: 1.0); none: the network's own"
    )
    log_std_offset: float = setting(-1.0, "start value of the learned shift beside log_std_multiplier")


class MLPSACModel(TwinCriticModel):
    """`MLPSACModel(obs_dim=3, action_dim=1, hidden_sizes=(256, 256))`."""

    config_class: ClassVar[type[NetworkConfig]] = SACNetworkConfig

    def build(self, config: SACNetworkConfig, generator: torch.Generator | None) -> None:
        multiplier = config.log_std_multiplier
        self.actor = SquashedGaussian(
            self.obs_dim,
            self.action_dim,
            config.actor_widths,
            init="orthogonal" if config.orthogonal_init else "default",
            output_gain=1e-2 if config.orthogonal_init else None,
            log_std_affine=None if multiplier is None else (multiplier, config.log_std_offset),
            generator=generator,
        )
        self.critic = QEnsemble(
            self.obs_dim,
            self.action_dim,
            config.critic_widths,
            config.num_critics,
            init="orthogonal" if config.orthogonal_init else "default",
            output_gain=1e-2 if config.orthogonal_init else None,
            layer_norm=config.layer_norm,
            generator=generator,
        )
