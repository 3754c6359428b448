"""Gaussian policies whose samples are not squashed: the standard deviation is free of the state, the density
has no Jacobian term, and actions are clipped to [-1, 1] where they are used.

Taking these for the squashed Gaussian of `policies`, or the other way round, is the classic mistake with IQL.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from rl_training.models.distributions import gaussian_log_prob
from rl_training.models.layers import MLP, dropout_scale


class UnboundedGaussian(nn.Module):
    """N(m(s), std): the mean is a plain network output (AWAC as in CORL)."""

    log_std_range: ClassVar[tuple[float, float]] = (-20.0, 2.0)

    def __init__(
        self, obs_dim: int, action_dim: int, widths: Sequence[int], *, dropout: float = 0.0, **network: Any
    ) -> None:
        """`widths` are those of the hidden layers; `network` holds `MLP`'s keywords (init, generator)."""
        super().__init__()
        self.net = MLP(obs_dim, widths, action_dim, **network)
        self.free_log_std = nn.Parameter(torch.zeros(1, action_dim))
        self.dropout = dropout

    @property
    def dropout_size(self) -> int:
        """Uniform numbers per row that `log_prob` takes in training; 0 without dropout."""
        return sum(self.net.hidden_sizes) if self.dropout else 0

    def mean(self, obs: Tensor, keep: Tensor | None = None) -> Tensor:
        mean: Tensor = self.net(obs, keep)
        return mean

    def log_std(self) -> Tensor:
        """`[*S, 1, A]`; starts at 0."""
        return self.free_log_std.clamp(*self.log_std_range)

    def distribution(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean `[*S, B, A]` and log std `[*S, 1, A]`."""
        return self.mean(obs), self.log_std()

    def forward(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """A sample, not yet clipped, and its log-probability: `[*S, B, A]`, `[*S, B]`."""
        return self.sample(*self.distribution(obs), noise)

    def log_prob(self, obs: Tensor, actions: Tensor, dropout_noise: Tensor | None = None) -> Tensor:
        """log pi(a|s) of logged actions, `[*S, B]`; with U[-1, 1) noise some hidden units are dropped."""
        keep = None if dropout_noise is None else dropout_scale(dropout_noise, self.dropout)
        return self.density(actions, self.mean(obs, keep), self.log_std())

    def sample(self, mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """`forward` from a distribution at hand."""
        actions = mean + log_std.exp() * noise
        return actions, gaussian_log_prob(actions, mean, log_std)

    def density(self, actions: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
        """`log_prob` from a distribution at hand."""
        return gaussian_log_prob(actions, mean, log_std)

    def mode_of(self, mean: Tensor) -> Tensor:
        return mean.clamp(-1.0, 1.0)

    def mode(self, obs: Tensor) -> Tensor:
        return self.mode_of(self.mean(obs))


class TanhMeanGaussian(UnboundedGaussian):
    """N(tanh(m(s)), std), log std clamped to [-5, 2] (the official IQL)."""

    log_std_range: ClassVar[tuple[float, float]] = (-5.0, 2.0)

    def mean(self, obs: Tensor, keep: Tensor | None = None) -> Tensor:
        return super().mean(obs, keep).tanh()


class SigmoidStdGaussian(TanhMeanGaussian):
    """N(tanh(m(s)), std), log std = -6 + 6 sigmoid(p), which starts at -3 (AWAC as in rlkit)."""

    log_std_range: ClassVar[tuple[float, float]] = (-6.0, 0.0)

    def log_std(self) -> Tensor:
        low, high = self.log_std_range
        return low + (high - low) * self.free_log_std.sigmoid()
