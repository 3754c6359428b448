"""Ensembles of state-action values as one batched computation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from rl_training.models.layers import MLP, Linear


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
        return self.net(torch.cat([obs, actions], dim=-1).unsqueeze(-3))  # type: ignore[no-any-return]

    def forward(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Values of scalar critics, `[*S, E, B]`."""
        return self.outputs(obs, actions).squeeze(-1)

    def many(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Values of N actions per state: `[*S, B, O]`, `[*S, B, N, A]` -> `[*S, E, B, N]`.

        The observation half of the first layer is computed once per state, not once per action.
        """
        batch, count = actions.shape[-3:-1]
        first = cast(Linear, self.net.hidden[0] if self.net.hidden else self.net.output)
        weight, bias = first.weight, first.bias
        of_state = torch.matmul(obs.unsqueeze(-3), weight[..., : self.obs_dim, :]) + bias
        of_action = torch.matmul(actions.flatten(-3, -2).unsqueeze(-3), weight[..., self.obs_dim :, :])
        lead, width = of_action.shape[:-2], of_action.shape[-1]
        hidden = of_action.reshape(*lead, batch, count, width) + of_state.unsqueeze(-2)
        rows = hidden.flatten(-3, -2)
        values = self.net.from_first(rows) if self.net.hidden else rows
        return values.reshape(*lead, batch, count)
