"""The network of IQL: a tanh-mean Gaussian actor, twin critics and a state value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from rl_training.config import setting
from rl_training.models.base import NetworkConfig, TwinCriticModel, as_batch
from rl_training.models.critics import QEnsemble
from rl_training.models.gaussian_policies import TanhMeanGaussian
from rl_training.models.layers import MLP, Init


class IQLNetworkConfig(NetworkConfig):
    """Keywords of `MLPIQLModel`."""

    actor_dropout: float = setting(
        0.0, "share of the actor's hidden units dropped in training (adroit: 0.1)", ge=0, lt=1
    )
    orthogonal_init: bool = setting(
        True, "orthogonal weights (gain sqrt 2, outputs too) as the official code; false: PyTorch's default"
    )


class StateValue(nn.Module):
    """V(s): `[*S, B, O]` -> `[*S, B]`."""

    def __init__(
        self, obs_dim: int, hidden_sizes: Sequence[int], *, init: Init, generator: torch.Generator | None
    ) -> None:
        super().__init__()
        self.net = MLP(obs_dim, hidden_sizes, 1, init=init, generator=generator)

    def forward(self, obs: Tensor) -> Tensor:
        values: Tensor = self.net(as_batch(obs)).squeeze(-1)
        return values


class MLPIQLModel(TwinCriticModel):
    """`MLPIQLModel(obs_dim=3, action_dim=1, hidden_sizes=(256, 256))`; `value(obs)` gives `(B,)`."""

    config_class: ClassVar[type[NetworkConfig]] = IQLNetworkConfig

    def build(self, config: IQLNetworkConfig, generator: torch.Generator | None) -> None:
        init: Init = "orthogonal" if config.orthogonal_init else "default"
        self.actor = TanhMeanGaussian(
            self.obs_dim,
            self.action_dim,
            config.actor_widths,
            init=init,
            dropout=config.actor_dropout,
            generator=generator,
        )
        self.critic = QEnsemble(
            self.obs_dim, self.action_dim, config.critic_widths, 2, init=init, generator=generator
        )
        self.value = StateValue(self.obs_dim, config.critic_widths, init=init, generator=generator)
