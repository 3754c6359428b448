"""Models of offline algorithms whose papers say what their networks are."""

from __future__ import annotations

import torch

from rl_training.config import setting
from rl_training.config.limits import MAX_CRITICS
from rl_training.models.flow import OneStepActor, VelocityField
from rl_training.models.models import CriticModel, MLPSACModel, MLPTD3Model, SACNetworkConfig
from rl_training.models.network_settings import Activation, Initial, NetworkConfig, Norm, widths


class ReBRACNetworkConfig(NetworkConfig):
    """Keywords of `MLPReBRACModel`: the paper's networks."""

    hidden_sizes: tuple[int, ...] = widths((256, 256, 256), "widths of the hidden layers, actor and critics")
    critic_layer_norm: Norm | None = setting("after", "that of the critics; none: layer_norm")
    init: Initial = setting(
        "fan_in_small", "first weights; the authors' have small outputs and biases of 0.1"
    )


class MLPReBRACModel(MLPTD3Model):
    """TD3's networks, one layer deeper, with layer normalisation in the critics."""

    config_class = ReBRACNetworkConfig
    config: ReBRACNetworkConfig


class EDACNetworkConfig(SACNetworkConfig):
    """Keywords of `MLPEDACModel`: the paper's networks."""

    hidden_sizes: tuple[int, ...] = widths((256, 256, 256), "widths of the hidden layers, actor and critics")
    num_critics: int = setting(
        10, "critics in the ensemble (N); targets and actor take their minimum", ge=1, most=MAX_CRITICS
    )
    init: Initial = setting(
        "fan_in_small", "first weights; the authors' have small outputs and biases of 0.1"
    )


class MLPEDACModel(MLPSACModel):
    """A squashed-Gaussian actor and a large ensemble of critics, one layer deeper than SAC's."""

    config_class = EDACNetworkConfig
    config: EDACNetworkConfig


class FQLNetworkConfig(NetworkConfig):
    """Keywords of `MLPFQLModel`: the paper's networks."""

    hidden_sizes: tuple[int, ...] = widths(
        (512, 512, 512, 512), "widths of the hidden layers: policy, flow and critics"
    )
    activation: Activation = setting("gelu", "function behind every hidden layer")
    critic_layer_norm: Norm | None = setting("after", "that of the critics; none: layer_norm")
    init: Initial = setting("xavier", "first weights; the authors' are Xavier with zero biases")


class MLPFQLModel(CriticModel):
    """A one-step policy, the flow it is distilled from, and twin critics."""

    config_class = FQLNetworkConfig
    config: FQLNetworkConfig
    actor_class = OneStepActor
    flow: VelocityField

    def build(self, generator: torch.Generator | None) -> None:
        super().build(generator)
        self.flow = VelocityField(
            self.obs_dim, self.action_dim, self.config.plan("actor"), generator=generator
        )
