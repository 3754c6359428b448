"""The network of behaviour cloning: an actor alone."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch

from rl_training.config import setting
from rl_training.models.base import NetworkConfig, PolicyModel
from rl_training.models.deterministic import DeterministicTanh
from rl_training.models.gaussian_policies import TanhMeanGaussian


class BCNetworkConfig(NetworkConfig):
    """Keywords of `MLPBCModel`."""

    policy: Literal["deterministic", "gaussian"] = setting(
        "deterministic",
        "tanh actor fitted by squared error, or Gaussian around it with a free spread, fitted by likelihood",
    )


class MLPBCModel(PolicyModel):
    """`MLPBCModel(obs_dim=3, action_dim=1, policy="deterministic")`."""

    config_class: ClassVar[type[NetworkConfig]] = BCNetworkConfig

    def build(self, config: BCNetworkConfig, generator: torch.Generator | None) -> None:
        actor_class = DeterministicTanh if config.policy == "deterministic" else TanhMeanGaussian
        self.actor = actor_class(self.obs_dim, self.action_dim, config.actor_widths, generator=generator)
