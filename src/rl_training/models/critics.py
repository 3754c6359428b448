"""Ensembles of state-action values as one batched computation, and state values."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call

from rl_training.models.networks import NetworkPlan, build_network


class QEnsemble(nn.Module):
    """`num_critics` independent networks Q_i(s, a), each with `outputs` numbers (1, or quantiles).

    With `cap`, values never exceed it, where the reward's sign bounds what is possible.
    """

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        num_critics: int,
        plan: NetworkPlan | None = None,
        *,
        outputs: int = 1,
        cap: float | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.obs_dim, self.action_dim = obs_dim, action_dim
        self.num_critics, self.num_outputs, self.cap = num_critics, outputs, cap
        plan = plan or NetworkPlan(part="critic")
        self.net = build_network(obs_dim + action_dim, outputs, plan, (num_critics,), generator=generator)

    def outputs(self, obs: Tensor, actions: Tensor) -> Tensor:
        """`[*S, B, O]`, `[*S, B, A]` -> `[*S, E, B, outputs]`."""
        if actions.requires_grad and self.net.splits:
            # Two products, so that the way back computes the gradient of the actions alone.
            of_state, of_action = self.net.first_layer(obs.unsqueeze(-3), actions.unsqueeze(-3))
            return self.net.from_first(of_state + of_action)
        values: Tensor = self.net(torch.cat([obs, actions], dim=-1).unsqueeze(-3))
        return values

    def forward(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Values of scalar critics, `[*S, E, B]`."""
        return self.capped(self.outputs(obs, actions).squeeze(-1))

    def each(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Values of actions of each critic's own: `[*S, B, O]`, `[*S, E, B, A]` -> `[*S, E, B]`."""
        rows = obs.unsqueeze(-3)
        if self.net.splits:
            of_state, of_action = self.net.first_layer(rows, actions)
            return self.capped(self.net.from_first(of_state + of_action).squeeze(-1))
        joined = torch.cat([rows.expand(*actions.shape[:-1], rows.shape[-1]), actions], dim=-1)
        return self.capped(self.net(joined).squeeze(-1))

    def many(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Values of N actions per state: `[*S, B, O]`, `[*S, B, N, A]` -> `[*S, E, B, N]`.

        Where the network allows it, the observation half of the first layer is computed once per state.
        """
        batch, count = actions.shape[-3:-1]
        rows = actions.flatten(-3, -2)
        if self.net.splits:
            of_state, of_action = self.net.first_layer(obs.unsqueeze(-3), rows.unsqueeze(-3))
            lead, width = of_action.shape[:-2], of_action.shape[-1]
            hidden = of_action.reshape(*lead, batch, count, width) + of_state.unsqueeze(-2)
            values = self.net.from_first(hidden.flatten(-3, -2))
        else:
            values = self.outputs(obs.repeat_interleave(count, dim=-2), rows)
        return self.capped(values.reshape(*values.shape[:-2], batch, count))

    def capped(self, values: Tensor) -> Tensor:
        return values if self.cap is None else values.clamp(max=self.cap)


class QuantileEnsemble(QEnsemble):
    """Critics whose values are quantiles, `[*S, E, B, K]`."""

    def forward(self, obs: Tensor, actions: Tensor) -> Tensor:
        return self.outputs(obs, actions)


def each_member(critic: QEnsemble, inputs: Tensor) -> list[Tensor]:
    """What each of several networks gives for `[*S, B, inputs]`, one after the other: files have no axis for
    an ensemble.
    """
    networks = [
        {name: values[..., member, :, :] for name, values in critic.net.named_parameters()}
        for member in range(critic.num_critics)
    ]
    return [functional_call(critic.net, own, (inputs,)) for own in networks]


class StateValue(nn.Module):
    """V(s): `[*S, B, O]` -> `[*S, B]`."""

    def __init__(
        self, obs_dim: int, plan: NetworkPlan | None = None, *, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        self.net = build_network(obs_dim, 1, plan or NetworkPlan(part="critic"), generator=generator)

    def forward(self, obs: Tensor) -> Tensor:
        values: Tensor = self.net(obs if obs.dim() > 1 else obs.unsqueeze(0)).squeeze(-1)
        return values
