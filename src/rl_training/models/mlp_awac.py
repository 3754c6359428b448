"""The network of AWAC: twin critics and the actor of one of its two published forms, or SAC's."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from rl_training.config import setting
from rl_training.models.base import NetworkConfig, TwinCriticModel
from rl_training.models.critics import QEnsemble
from rl_training.models.gaussian_policies import SigmoidStdGaussian, UnboundedGaussian
from rl_training.models.layers import MLP
from rl_training.models.policies import SquashedGaussian

POLICIES: dict[str, type[UnboundedGaussian | SquashedGaussian]] = {
    "unbounded": UnboundedGaussian,
    "tanh_mean": SigmoidStdGaussian,
    "squashed": SquashedGaussian,
}
ACTOR_OUTPUT_BOUND, CRITIC_OUTPUT_BOUND = 1e-3, 3e-3


class AWACNetworkConfig(NetworkConfig):
    """Keywords of `MLPAWACModel`."""

    hidden_sizes: tuple[int, ...] = setting((256, 256, 256), "widths of the hidden layers, actor and critics")
    policy: Literal["unbounded", "tanh_mean", "squashed"] = setting(
        "unbounded",
        "actor: Gaussian with free mean (CORL), with tanh mean and log std in [-6, 0] (rlkit), or squashed",
    )
    small_output_init: bool = setting(
        False, "outputs start uniform within 1e-3 (actor) and 3e-3 (critics) of zero, as rlkit"
    )
    max_q_value: float | None = setting(
        None, "upper limit of the critics' outputs (0 where rewards are -1 and 0); none: no limit"
    )


class CappedQEnsemble(QEnsemble):
    """Critics whose values never exceed `cap`, where the reward's sign bounds what is possible."""

    cap: float | None = None

    def forward(self, obs: Tensor, actions: Tensor) -> Tensor:
        return self.capped(super().forward(obs, actions))

    def many(self, obs: Tensor, actions: Tensor) -> Tensor:
        return self.capped(super().many(obs, actions))

    def capped(self, values: Tensor) -> Tensor:
        return values if self.cap is None else values.clamp(max=self.cap)


class MLPAWACModel(TwinCriticModel):
    """`MLPAWACModel(obs_dim=3, action_dim=1, policy="unbounded")`."""

    config_class: ClassVar[type[NetworkConfig]] = AWACNetworkConfig

    def build(self, config: AWACNetworkConfig, generator: torch.Generator | None) -> None:
        actor = POLICIES[config.policy](
            self.obs_dim, self.action_dim, config.actor_widths, generator=generator
        )
        critic = CappedQEnsemble(self.obs_dim, self.action_dim, config.critic_widths, 2, generator=generator)
        critic.cap = config.max_q_value
        if config.small_output_init:
            shrink_output(actor.net, ACTOR_OUTPUT_BOUND, generator)
            shrink_output(critic.net, CRITIC_OUTPUT_BOUND, generator)
        self.actor, self.critic = actor, critic


def shrink_output(net: MLP, bound: float, generator: torch.Generator | None) -> None:
    """Draw the output layer anew from U[-bound, bound)."""
    for parameter in net.output.parameters():
        nn.init.uniform_(parameter, -bound, bound, generator=generator)
