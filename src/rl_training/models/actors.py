"""Actors: observations in, actions in [-1, 1] out. Noise always comes in as a tensor."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rl_training.core.errors import ConfigError
from rl_training.models.critics import QEnsemble
from rl_training.models.layers import dropout_scale
from rl_training.models.networks import Network, NetworkPlan, build_network

HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)
LOG_TWO = math.log(2.0)

ACTION_LIMIT = 1.0 - 1e-6
"""Largest |a| whose atanh is useful in float32; atanh(1) is infinite."""


def log_tanh_derivative(pre_tanh: Tensor) -> Tensor:
    """log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2u)): exact where the policy saturates."""
    return 2.0 * (LOG_TWO - pre_tanh - F.softplus(-2.0 * pre_tanh))


def gaussian_log_prob(values: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """log N(x; mean, std), summed over the action axis."""
    standard = (values - mean) * (-log_std).exp()
    return (-0.5 * standard.square() - log_std - HALF_LOG_TWO_PI).sum(-1)


def squashed_sample(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """a = tanh(u), u = mean + std * noise, with log pi(a) from the u at hand (SAC, appendix C).

    Recovering u by atanh(a) would cap it near 7.25 and corrupt the density of a saturated policy.
    """
    pre_tanh = mean + log_std.exp() * noise
    log_prob = -0.5 * noise.square() - log_std - HALF_LOG_TWO_PI - log_tanh_derivative(pre_tanh)
    return pre_tanh.tanh(), log_prob.sum(-1)


def squashed_log_prob(actions: Tensor, mean: Tensor, log_std: Tensor, limit: float = ACTION_LIMIT) -> Tensor:
    """log pi of logged actions under tanh(N(mean, std)); actions are clipped to +-limit first."""
    pre_tanh = actions.clamp(-limit, limit).atanh()
    return gaussian_log_prob(pre_tanh, mean, log_std) - log_tanh_derivative(pre_tanh).sum(-1)


LOG_STD_RANGE = (-20.0, 2.0)
ActorOptions = dict[str, float | list[int] | str | None]


class Actor(nn.Module):
    """What acts. `kind` is its name in files, `draws` says in words how a random action is made."""

    kind: ClassVar[str]
    draws: ClassVar[str]
    outputs_per_action: ClassVar[int] = 1
    noise_is_input: ClassVar[bool] = False
    """Whether the network takes the noise of an action beside the observation."""
    is_random: ClassVar[bool] = True
    """Whether `draw` explores by itself; otherwise whoever collects adds noise."""
    masked: bool = False
    """Whether it heeds masks of actions, behind the observations."""

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
        inputs = obs_dim + (action_dim if self.noise_is_input else 0)
        outputs = self.outputs_per_action * action_dim
        self.net = build_network(inputs, outputs, plan or NetworkPlan(), generator=generator)

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

    def options(self) -> ActorOptions:
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


class DialledTanh(DeterministicTanh):
    """a = tanh(m(s) + λ n(s, λ)): at dial 0 exactly the imitated behaviour tanh(m(s)), whatever n has become.

    The dial is the last number of what it is asked with.
    """

    kind = "dialled"
    draws = "action = tanh(m + dial n); there is no distribution"

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        plan: NetworkPlan | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(obs_dim, action_dim, plan, generator=generator)
        self.usual = build_network(obs_dim - 1, action_dim, plan or NetworkPlan(), generator=generator)

    def mode(self, obs: Tensor) -> Tensor:
        return self.both(obs)[1]

    def both(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """What is usual, and what the dial makes of it."""
        seen, dial = torch.split(obs, [self.obs_dim - 1, 1], dim=-1)
        usual: Tensor = self.usual(seen)
        return usual.tanh(), (usual + dial * self.net(obs)).tanh()


class StochasticActor(Actor):
    """An actor whose distribution is at hand, as a mean and a log std for each number of an action."""

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

    def mode(self, obs: Tensor) -> Tensor:
        return self.mode_of(self.distribution(obs)[0])

    def forward(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        return self.sample(*self.distribution(obs), noise)

    def log_prob(self, obs: Tensor, actions: Tensor, dropout_noise: Tensor | None = None) -> Tensor:
        """log pi(a|s) of logged actions, `[*S, B]`."""
        return self.density(actions, *self.distribution(obs))


class GaussianActor(StochasticActor):
    """Every number of an action is drawn from a Gaussian of its own."""


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

    def options(self) -> ActorOptions:
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


def check_dropout(net: Network, dropout: float) -> None:
    if dropout and not net.drops:
        raise ConfigError(f"actor_dropout must be 0 with network {net.plan.network!r}, got {dropout}")


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
        check_dropout(self.net, dropout)
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


class NoisyActor(Actor):
    """A random action is clip(a + sigma * noise, -1, 1) around the actor's own action a (TD3)."""

    kind = "noisy"
    draws = "the deterministic action plus sigma * noise, clipped to [-1, 1]"

    def __init__(self, actor: Actor, sigma: float) -> None:
        nn.Module.__init__(self)  # the network exists already: nothing of Actor's is built
        self.obs_dim, self.action_dim = actor.obs_dim, actor.action_dim
        self.actor, self.sigma = actor, sigma

    def mode(self, obs: Tensor) -> Tensor:
        return self.actor.mode(obs)

    def draw(self, obs: Tensor, noise: Tensor) -> Tensor:
        return (self.mode(obs) + self.sigma * noise).clamp(-1.0, 1.0)


class CriticWeighted(Actor):
    """Of `samples` drawn actions one is kept, with probability softmax(min Q / temperature)."""

    kind = "critic_weighted"
    draws = "several draws of the actor, one of them kept with probability softmax(Q / temperature)"

    def __init__(self, actor: StochasticActor, critic: QEnsemble, samples: int, temperature: float) -> None:
        nn.Module.__init__(self)  # the networks exist already: nothing of Actor's is built
        self.obs_dim, self.action_dim = actor.obs_dim, actor.action_dim
        self.actor, self.critic = actor, critic
        self.samples, self.temperature = samples, temperature

    @property
    def noise_size(self) -> int:
        return self.samples * self.action_dim + 1

    def mode(self, obs: Tensor) -> Tensor:
        return self.actor.mode(obs)

    def draw(self, obs: Tensor, noise: Tensor) -> Tensor:
        shape = (self.samples, self.action_dim)
        candidates = draw_many(
            self.actor, self.actor.distribution(obs), noise[..., :-1].reshape(*obs.shape[:-1], *shape)
        )
        return resample(candidates, self.probabilities(obs, candidates), noise[..., -1])

    def probabilities(self, obs: Tensor, candidates: Tensor) -> Tensor:
        """softmax(Q / temperature) of each candidate, `[*S, B, N]`."""
        return torch.softmax(lowest_values(self.critic, obs, candidates) / self.temperature, dim=-1)


def resample(candidates: Tensor, probabilities: Tensor, normal: Tensor) -> Tensor:
    """One of the N candidates `[*S, B, N, A]` per row, by N(0, 1) numbers `[*S, B]` through their CDF."""
    uniform = torch.special.ndtr(normal).unsqueeze(-1)
    chosen = (probabilities.cumsum(-1) < uniform).sum(-1).clamp(max=probabilities.shape[-1] - 1)
    index = chosen[..., None, None].expand(*chosen.shape, 1, candidates.shape[-1])
    return candidates.gather(-2, index).squeeze(-2)


def draw(actor: StochasticActor, policy: tuple[Tensor, Tensor], noise: Tensor) -> Tensor:
    """One action per state from mean and log std and noise `[*S, B, A]`; what is not squashed is clipped."""
    return actor.sample(*policy, noise)[0].clamp(-1.0, 1.0)


def draw_many(actor: StochasticActor, policy: tuple[Tensor, Tensor], noise: Tensor) -> Tensor:
    """N actions per state from noise `[*S, B, N, A]` and one distribution per state."""
    return draw(actor, policy, noise.movedim(-2, 0)).movedim(0, -2)


def lowest_values(critic: QEnsemble, obs: Tensor, actions: Tensor) -> Tensor:
    """The minimum over critics for N actions per state: `[*S, B, N, A]` -> `[*S, B, N]`."""
    return critic.many(obs, actions).amin(-3)


class OneStepActor(Actor):
    """a = clip(m(s, z), -1, 1) with z ~ N(0, I) for random actions and z = 0 for the deterministic one."""

    kind = "one_step"
    draws = "action = clip(m(s, z), -1, 1) with z = 0; a draw takes z = noise"
    noise_is_input = True

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
