"""Flows of actions: a velocity field that carries noise to actions, and a policy that does it in one step."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rl_training.models.actors import Actor
from rl_training.models.network_settings import NetworkPlan
from rl_training.models.networks import build_network


class OneStepActor(Actor):
    """a = clip(m(s, z), -1, 1) with z ~ N(0, I) for random actions and z = 0 for the deterministic one."""

    kind = "one_step"
    draws = "action = clip(m(s, z), -1, 1) with z = 0; a draw takes z = noise"

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        plan: NetworkPlan | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        nn.Module.__init__(self)  # the network has more inputs than other actors'
        self.obs_dim, self.action_dim = obs_dim, action_dim
        self.net = build_network(obs_dim + action_dim, action_dim, plan or NetworkPlan(), generator=generator)

    def unclipped(self, obs: Tensor, noise: Tensor) -> Tensor:
        """m(s, z), `[*S, B, A]`."""
        actions: Tensor = self.net(torch.cat([obs, noise], dim=-1))
        return actions

    def mode(self, obs: Tensor) -> Tensor:
        # Zeros are appended by a product, which does not depend on the number of rows and so can be exported.
        wider = torch.eye(self.obs_dim, self.obs_dim + self.action_dim, dtype=obs.dtype, device=obs.device)
        actions: Tensor = self.net(obs @ wider)
        return actions.clamp(-1.0, 1.0)

    def forward(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions and, in place of their log-probabilities, NaN: the density of a flow is not at hand."""
        actions = self.unclipped(obs, noise).clamp(-1.0, 1.0)
        return actions, torch.full_like(actions[..., 0], torch.nan)


class VelocityField(nn.Module):
    """v(s, x, t): where an action on its way from noise (t = 0) to the data (t = 1) is heading."""

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        plan: NetworkPlan | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        inputs = obs_dim + action_dim + 1
        self.net = build_network(inputs, action_dim, plan or NetworkPlan(), generator=generator)

    def forward(self, obs: Tensor, x: Tensor, t: Tensor) -> Tensor:
        """`[*S, B, O]`, `[*S, B, A]`, `[*S, B, 1]` -> `[*S, B, A]`."""
        velocities: Tensor = self.net(torch.cat([obs, x, t], dim=-1))
        return velocities
