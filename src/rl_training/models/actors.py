"""Actors: observations in, actions in [-1, 1] out. Noise always comes in as a tensor.

Taking the squashed Gaussian (SAC) for the clipped ones (IQL, AWAC), or the other way round, is the classic
mistake with these algorithms: the density of a clipped Gaussian has no Jacobian term, and its standard
deviation does not depend on the state.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from rl_training.core.errors import ConfigError
from rl_training.models.distributions import gaussian_log_prob, squashed_log_prob, squashed_sample
from rl_training.models.layers import dropout_scale
from rl_training.models.network_settings import NetworkPlan
from rl_training.models.networks import build_network

LOG_STD_RANGE = (-20.0, 2.0)
ActorOptions = Mapping[str, float | None]


class Actor(nn.Module):
    """What acts. `kind` is its name in files, `draws` says in words how a random action is made."""

    kind: ClassVar[str]
    draws: ClassVar[str]
    outputs_per_action: ClassVar[int] = 1
    is_random: ClassVar[bool] = True
    """Whether `draw` explores by itself; otherwise whoever collects adds noise."""

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        plan: NetworkPlan | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.obs_dim, self.action_dim = obs_dim, action_dim
        self.net = build_network(
            obs_dim, self.outputs_per_action * action_dim, plan or NetworkPlan(), generator=generator
        )

    @property
    def noise_size(self) -> int:
        """Normal numbers that one random action takes."""
        return self.action_dim

    @abstractmethod
    def mode(self, obs: Tensor) -> Tensor:
        """The deterministic actions, `[*S, B, A]`."""

    def draw(self, obs: Tensor, noise: Tensor) -> Tensor:
        """Random actions from N(0, 1) noise `[*S, B, noise_size]`; what is not squashed is clipped."""
        actions: Tensor = self(obs, noise)[0]
        return actions.clamp(-1.0, 1.0)

    def options(self) -> dict[str, float | None]:
        """What the constructor needs beside sizes and network."""
        return {}


class DeterministicTanh(Actor):
    """a = tanh(m(s)) (TD3+BC, BC)."""

    kind = "deterministic"
    draws = "action = tanh(m); there is no distribution"
    is_random = False

    def mode(self, obs: Tensor) -> Tensor:
        actions: Tensor = self.net(obs)
        return actions.tanh()

    def forward(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """What a stochastic actor gives, without chance: the action, which has probability one."""
        actions = self.mode(obs)
        return actions, torch.zeros_like(actions[..., 0])


class GaussianActor(Actor):
    """An actor with a mean and a standard deviation per action."""

    @property
    def dropout_size(self) -> int:
        """Uniform numbers per row that `log_prob` takes in training; 0 without dropout."""
        return 0

    @abstractmethod
    def distribution(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean `[*S, B, A]` and log std `[*S, B or 1, A]`."""

    @abstractmethod
    def sample(self, mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """A reparameterised sample, not yet clipped, and its log-probability: `[*S, B, A]`, `[*S, B]`."""

    @abstractmethod
    def density(self, actions: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
        """log pi(a|s) of logged actions from a distribution at hand, `[*S, B]`."""

    @abstractmethod
    def mode_of(self, mean: Tensor) -> Tensor:
        """The action that a mean stands for."""

    def forward(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        return self.sample(*self.distribution(obs), noise)

    def log_prob(self, obs: Tensor, actions: Tensor, dropout_noise: Tensor | None = None) -> Tensor:
        """log pi(a|s) of logged actions, `[*S, B]`."""
        return self.density(actions, *self.distribution(obs))


class SquashedGaussian(GaussianActor):
    """a = tanh(u), u ~ N(mean(s), std(s)), log std clamped to [-20, 2].

    With `log_std_multiplier` given, log std = multiplier * net + offset with both learned (the CQL code base
    starts them at 1.0 and -1.0).
    """

    kind = "squashed"
    draws = "mean = m; action = tanh(mean); a draw is tanh(mean + exp(log_std) * noise)"
    outputs_per_action = 2

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        plan: NetworkPlan | None = None,
        *,
        log_std_multiplier: float | None = None,
        log_std_offset: float = -1.0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(obs_dim, action_dim, plan, generator=generator)
        self.log_std_affine = log_std_multiplier is not None
        if log_std_multiplier is not None:
            self.log_std_multiplier = nn.Parameter(torch.full((1, 1), log_std_multiplier))
            self.log_std_offset = nn.Parameter(torch.full((1, 1), log_std_offset))

    def options(self) -> dict[str, float | None]:
        return {"log_std_multiplier": 1.0} if self.log_std_affine else {}

    def distribution(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log std before squashing."""
        mean, log_std = self.net(obs).chunk(2, dim=-1)
        if self.log_std_affine:
            log_std = self.log_std_multiplier * log_std + self.log_std_offset
        return mean, log_std.clamp(*LOG_STD_RANGE)

    def sample(self, mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        return squashed_sample(mean, log_std, noise)

    def density(self, actions: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
        return squashed_log_prob(actions, mean, log_std)

    def mode_of(self, mean: Tensor) -> Tensor:
        return mean.tanh()

    def mode(self, obs: Tensor) -> Tensor:
        mean: Tensor = self.net(obs).chunk(2, dim=-1)[0]
        return self.mode_of(mean)


class UnboundedGaussian(GaussianActor):
    """N(m(s), std): the mean is a plain network output (AWAC as in CORL)."""

    kind = "unbounded"
    draws = "mean = m; action = clip(mean, -1, 1); a draw is clip(mean + exp(log_std) * noise, -1, 1)"
    log_std_range: ClassVar[tuple[float, float]] = LOG_STD_RANGE

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        plan: NetworkPlan | None = None,
        *,
        dropout: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(obs_dim, action_dim, plan, generator=generator)
        if dropout and not self.net.drops:
            raise ConfigError(
                f"actor_dropout must be 0 with network {self.net.plan.network!r}, got {dropout}"
            )
        self.free_log_std = nn.Parameter(torch.zeros(1, action_dim))
        self.dropout = dropout

    @property
    def dropout_size(self) -> int:
        return sum(self.net.hidden_sizes) if self.dropout else 0

    def mean(self, obs: Tensor, keep: Tensor | None = None) -> Tensor:
        mean: Tensor = self.net(obs) if keep is None else self.net(obs, keep)
        return mean

    def log_std(self) -> Tensor:
        """`[*S, 1, A]`; starts at 0."""
        return self.free_log_std.clamp(*self.log_std_range)

    def distribution(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        return self.mean(obs), self.log_std()

    def log_prob(self, obs: Tensor, actions: Tensor, dropout_noise: Tensor | None = None) -> Tensor:
        """With U[-1, 1) noise some hidden units are dropped."""
        keep = None if dropout_noise is None else dropout_scale(dropout_noise, self.dropout)
        return self.density(actions, self.mean(obs, keep), self.log_std())

    def sample(self, mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        actions = mean + log_std.exp() * noise
        return actions, gaussian_log_prob(actions, mean, log_std)

    def density(self, actions: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
        return gaussian_log_prob(actions, mean, log_std)

    def mode_of(self, mean: Tensor) -> Tensor:
        return mean.clamp(-1.0, 1.0)

    def mode(self, obs: Tensor) -> Tensor:
        return self.mode_of(self.mean(obs))


class TanhMeanGaussian(UnboundedGaussian):
    """N(tanh(m(s)), std), log std clamped to [-5, 2] (the official IQL)."""

    kind = "tanh_mean"
    draws = "mean = tanh(m); action = mean; a draw is clip(mean + exp(log_std) * noise, -1, 1)"
    log_std_range = (-5.0, 2.0)

    def mean(self, obs: Tensor, keep: Tensor | None = None) -> Tensor:
        return super().mean(obs, keep).tanh()


class SigmoidStdGaussian(TanhMeanGaussian):
    """N(tanh(m(s)), std), log std = -6 + 6 sigmoid(p), which starts at -3 (AWAC as in rlkit)."""

    kind = "sigmoid_std"
    log_std_range = (-6.0, 0.0)

    def log_std(self) -> Tensor:
        low, high = self.log_std_range
        return low + (high - low) * self.free_log_std.sigmoid()
