"""Ensembles of state-action values as one batched computation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from rl_training.models.layers import MLP, Linear, affine, product


class QEnsemble(nn.Module):
    """`num_critics` independent networks Q_i(s, a), each with `outputs` numbers (1, or quantiles)."""

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        hidden_sizes: Sequence[int],
        num_critics: int,
        *,
        outputs: int = 1,
        **network: Any,
    ) -> None:
        """`network` holds `MLP`'s keywords (init, output_gain, layer_norm, generator)."""
        super().__init__()
        self.obs_dim = obs_dim
        self.net = MLP(obs_dim + action_dim, hidden_sizes, outputs, (num_critics,), **network)

    def outputs(self, obs: Tensor, actions: Tensor) -> Tensor:
        """`[*S, B, O]`, `[*S, B, A]` -> `[*S, E, B, outputs]`."""
        if actions.requires_grad and self.net.hidden:
            # Two products, so that the way back computes the gradient of the actions alone.
            of_state, of_action = self.first_layer(obs, actions)
            return self.net.from_first(of_state + of_action)
        return self.net(torch.cat([obs, actions], dim=-1).unsqueeze(-3))  # type: ignore[no-any-return]

    def forward(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Values of scalar critics, `[*S, E, B]`."""
        return self.outputs(obs, actions).squeeze(-1)

    def many(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Values of N actions per state: `[*S, B, O]`, `[*S, B, N, A]` -> `[*S, E, B, N]`.

        The observation half of the first layer is computed once per state, not once per action.
        """
        batch, count = actions.shape[-3:-1]
        of_state, of_action = self.first_layer(obs, actions.flatten(-3, -2))
        lead, width = of_action.shape[:-2], of_action.shape[-1]
        hidden = of_action.reshape(*lead, batch, count, width) + of_state.unsqueeze(-2)
        rows = hidden.flatten(-3, -2)
        values = self.net.from_first(rows) if self.net.hidden else rows
        return values.reshape(*lead, batch, count)

    def first_layer(self, obs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """What observations (with the bias) and actions add to the first layer; their rows may differ."""
        first = cast(Linear, self.net.hidden[0] if self.net.hidden else self.net.output)
        of_state = affine(obs.unsqueeze(-3), first.weight[..., : self.obs_dim, :], first.bias)
        return of_state, product(actions.unsqueeze(-3), first.weight[..., self.obs_dim :, :])
