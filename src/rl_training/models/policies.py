"""Policies: observation in, distribution over actions in [-1, 1] out. Noise always comes in as a tensor."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rl_training.models.distributions import squashed_log_prob, squashed_sample
from rl_training.models.layers import MLP, Init

LOG_STD_RANGE = (-20.0, 2.0)


class SquashedGaussian(nn.Module):
    """a = tanh(u), u ~ N(mean(s), std(s)), log std clamped to [-20, 2].

    With `log_std_affine` (multiplier, offset) given, log std = multiplier * net + offset with both learned
    (the CQL code base starts them at 1.0 and -1.0).
    """

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        hidden_sizes: Sequence[int],
        *,
        init: Init = "default",
        output_gain: float | None = None,
        log_std_affine: tuple[float, float] | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.net = MLP(
            obs_dim, hidden_sizes, 2 * action_dim, init=init, output_gain=output_gain, generator=generator
        )
        self.log_std_affine = log_std_affine is not None
        if log_std_affine is not None:
            self.log_std_multiplier = nn.Parameter(torch.full((1, 1), log_std_affine[0]))
            self.log_std_offset = nn.Parameter(torch.full((1, 1), log_std_affine[1]))

    def distribution(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log std before squashing, each `[*S, B, A]`."""
        mean, log_std = self.net(obs).chunk(2, dim=-1)
        if self.log_std_affine:
            log_std = self.log_std_multiplier * log_std + self.log_std_offset
        return mean, log_std.clamp(*LOG_STD_RANGE)

    def forward(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """A reparameterised sample and its log-probability: `[*S, B, A]`, `[*S, B]`."""
        return self.sample(*self.distribution(obs), noise)

    def log_prob(self, obs: Tensor, actions: Tensor) -> Tensor:
        """log pi(a|s) of logged actions, `[*S, B]`."""
        return self.density(actions, *self.distribution(obs))

    def sample(self, mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """`forward` from a distribution at hand."""
        return squashed_sample(mean, log_std, noise)

    def density(self, actions: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
        """`log_prob` from a distribution at hand."""
        return squashed_log_prob(actions, mean, log_std)

    def mode_of(self, mean: Tensor) -> Tensor:
        return mean.tanh()

    def mode(self, obs: Tensor) -> Tensor:
        mean: Tensor = self.net(obs).chunk(2, dim=-1)[0]
        return self.mode_of(mean)
