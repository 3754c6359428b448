"""Models: an actor and its critics, each network chosen by name and settings, made by one builder."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Literal, NamedTuple, Self, cast

import torch
from torch import Tensor, nn

from rl_training.config import ConfigModel, setting
from rl_training.core.errors import ConfigError
from rl_training.core.schema import MAX_CRITICS, MAX_QUANTILES
from rl_training.core.spaces import Spaces, unit_spaces
from rl_training.models.actors import (
    Actor,
    DeterministicTanh,
    OneStepActor,
    SigmoidStdGaussian,
    SquashedGaussian,
    TanhMeanGaussian,
    UnboundedGaussian,
    VelocityField,
)
from rl_training.models.choices import FAMILIES, EpsilonGreedy, FactoredActor, LevelCritics
from rl_training.models.critics import QEnsemble, QuantileEnsemble, StateValue
from rl_training.models.networks import NETWORKS, Activation, Initial, NetworkConfig, Norm, widths


class ActionSample(NamedTuple):
    """Actions in [-1, 1], `(B, A)`, and their log-probabilities, `(B,)`."""

    actions: Tensor
    logprobs: Tensor


class PolicyModel(nn.Module):
    """A model with an `actor`; subclasses say which, and what stands beside it."""

    config_class: ClassVar[type[NetworkConfig]] = NetworkConfig
    actor_class: ClassVar[type[Actor]] = SquashedGaussian
    config: NetworkConfig
    actor: Actor

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        *,
        spaces: Spaces | None = None,
        generator: torch.Generator | None = None,
        **keywords: object,
    ) -> None:
        """`spaces` says what the `action_dim` numbers are; without it they are numbers in [-1, 1]."""
        super().__init__()
        for name, value in (("obs_dim", obs_dim), ("action_dim", action_dim)):
            if value < 1:
                raise ConfigError(f"{name} must be >= 1, got {value}")
        self.obs_dim, self.action_dim = obs_dim, action_dim
        self.spaces = spaces or unit_spaces(obs_dim, action_dim)
        self.config = self.config_class.build(keywords)
        check_network_options(self.config)
        self.build(generator)

    def build(self, generator: torch.Generator | None) -> None:
        """Create the networks."""
        self.actor = self.make_actor(generator)
        if self.spaces.masked and not self.actor.masked:
            raise ConfigError(
                f"action_mask cannot be heeded by {type(self).__name__}, whose actor is {self.actor.kind!r}; "
                "leave the mask out, or take dqn, discrete_cql, sac, bc, iql, awac or crr"
            )

    def make_actor(self, generator: torch.Generator | None) -> Actor:
        return self.actor_of(self.actor_class, generator)

    def actor_of(
        self, kind: type[Actor], generator: torch.Generator | None, **options: float | None
    ) -> Actor:
        """An actor of that kind with this model's sizes and network; where there are choices, with logits."""
        plan, build = self.config.plan("actor"), cast(Callable[..., Actor], kind)
        given: dict[str, object] = {**options}
        if self.spaces.choices and kind.kind in FAMILIES:
            own = {"levels": self.spaces.levels, "family": kind.kind, "masked": self.spaces.masked}
            build, given = FactoredActor, {**options, **own}
        return build(self.obs_dim, self.action_dim, plan, generator=generator, **given)

    @classmethod
    def from_config(cls, config: ConfigModel, spaces: Spaces, generator: torch.Generator | None) -> Self:
        """The model of a run: takes those fields of the run's config that are the model's."""
        keywords = {name: getattr(config, name) for name in cls.config_class.model_fields}
        return cls(spaces.obs_dim, spaces.action_dim, spaces=spaces, generator=generator, **keywords)

    def sample_actions(self, obs: Tensor, *, generator: torch.Generator | None = None) -> ActionSample:
        """Draw one action per observation; a single `(obs_dim,)` observation counts as a batch of one."""
        obs = as_batch(obs)
        size = self.actor.noise_size
        noise = torch.randn(*obs.shape[:-1], size, generator=generator, device=obs.device)
        actions, logprobs = self.actor(obs, noise)
        return ActionSample(actions.clamp(-1.0, 1.0), logprobs)


class CriticModel(PolicyModel):
    """A model whose `critic` is an ensemble of values."""

    critic_class: ClassVar[type[QEnsemble]] = QEnsemble
    critic: QEnsemble

    def build(self, generator: torch.Generator | None) -> None:
        super().build(generator)
        self.critic = self.make_critic(generator)

    def make_critic(self, generator: torch.Generator | None) -> QEnsemble:
        """Critics of the whole action, or with a value for each where there are few."""
        plan, cap = self.config.plan("critic"), getattr(self.config, "max_q_value", None)
        if self.spaces.kind == "choices" and self.critic_class is QEnsemble:
            sizes = (self.obs_dim, self.spaces.levels, self.num_critics)
            return LevelCritics(*sizes, plan, cap=cap, generator=generator)
        outputs = getattr(self.config, "num_quantiles", 1)
        return self.critic_class(
            self.obs_dim,
            self.action_dim,
            self.num_critics,
            plan,
            outputs=outputs,
            cap=cap,
            generator=generator,
        )

    @property
    def num_critics(self) -> int:
        """The setting of that name, where a model has it; else twins."""
        count: int = getattr(self.config, "num_critics", 2)
        return count

    def q_values(self, obs: Tensor, actions: Tensor) -> tuple[Tensor, ...] | Tensor:
        """Q_1, Q_2 …, each `(B,)`."""
        values: Tensor = self.critic(as_batch(obs), as_batch(actions))
        return values.unbind(-2)


def check_network_options(config: NetworkConfig) -> None:
    """Options that no chosen network knows are mistakes; each network checks the values of its own."""
    chosen = {config.plan(part).network for part in ("actor", "critic")}
    known = {name for network in chosen for name in NETWORKS.get(network).options_class.model_fields}
    unknown = sorted(config.network_options.keys() - known)
    if unknown:
        raise ConfigError(
            f"network_options.{unknown[0]} is not a setting of network {' or '.join(sorted(chosen))}"
            f" (known: {', '.join(sorted(known)) or 'none'})"
        )


def as_batch(values: Tensor) -> Tensor:
    return values.unsqueeze(0) if values.dim() == 1 else values


class SACNetworkConfig(NetworkConfig):
    """Keywords of `MLPSACModel`."""

    num_critics: int = setting(
        2, "critics in the ensemble; targets take their minimum", ge=1, most=MAX_CRITICS
    )
    log_std_multiplier: float | None = setting(
        None, "learned scale of the policy's log std and its start value (CQL: 1.0); none: the network's own"
    )
    log_std_offset: float = setting(-1.0, "start value of the learned shift beside log_std_multiplier")


class MLPSACModel(CriticModel):
    """A squashed-Gaussian actor and an ensemble of critics (SAC, CQL, Cal-QL, CRR)."""

    config_class = SACNetworkConfig
    config: SACNetworkConfig

    def make_actor(self, generator: torch.Generator | None) -> Actor:
        scale, shift = self.config.log_std_multiplier, self.config.log_std_offset
        return self.actor_of(SquashedGaussian, generator, log_std_multiplier=scale, log_std_offset=shift)


class TQCNetworkConfig(NetworkConfig):
    """Keywords of `MLPTQCModel`."""

    num_critics: int = setting(
        5, "critics in the ensemble; their atoms are pooled in the target", ge=1, most=MAX_CRITICS
    )
    num_quantiles: int = setting(25, "quantiles that each critic gives", ge=1, most=MAX_QUANTILES)


class MLPTQCModel(CriticModel):
    """A squashed-Gaussian actor and critics that give quantiles of the return."""

    config_class = TQCNetworkConfig
    config: TQCNetworkConfig
    critic_class = QuantileEnsemble

    def quantile_values(self, obs: Tensor, actions: Tensor) -> Tensor:
        """All critics' quantiles, `(B, num_critics, num_quantiles)`."""
        values: Tensor = self.critic(as_batch(obs), as_batch(actions))
        return values.movedim(-3, -2)

    def q_values(self, obs: Tensor, actions: Tensor) -> tuple[Tensor, ...]:
        """Each critic's mean over its quantiles, `(B,)` each."""
        return self.quantile_values(obs, actions).mean(-1).unbind(-1)


class REDQNetworkConfig(NetworkConfig):
    """Keywords of `MLPREDQModel`."""

    num_critics: int = setting(10, "critics in the ensemble (N)", ge=1, most=MAX_CRITICS)
    init: Initial = setting("xavier", "first weights; the authors' are Xavier with zero biases")


class MLPREDQModel(CriticModel):
    """A squashed-Gaussian actor and a large ensemble of critics."""

    config_class = REDQNetworkConfig
    config: REDQNetworkConfig

    def q_values(self, obs: Tensor, actions: Tensor) -> Tensor:
        """All critics' values, `(B, num_critics)`."""
        values: Tensor = self.critic(as_batch(obs), as_batch(actions))
        return values.mT


class BCNetworkConfig(NetworkConfig):
    """Keywords of `MLPBCModel`."""

    policy: Literal["deterministic", "gaussian"] = setting(
        "deterministic",
        "tanh actor fitted by squared error, or Gaussian around it with a free spread, fitted by likelihood "
        "(as all are where an action holds a choice)",
    )


class MLPBCModel(PolicyModel):
    """An actor alone, deterministic or Gaussian."""

    config_class = BCNetworkConfig
    config: BCNetworkConfig

    def make_actor(self, generator: torch.Generator | None) -> Actor:
        by_error = self.config.policy == "deterministic" and not self.spaces.choices
        return self.actor_of(DeterministicTanh if by_error else TanhMeanGaussian, generator)


class MLPTD3Model(CriticModel):
    """A deterministic actor and twin critics."""

    actor_class = DeterministicTanh


class AWACNetworkConfig(NetworkConfig):
    """Keywords of `MLPAWACModel`."""

    hidden_sizes: tuple[int, ...] = widths((256, 256, 256), "widths of the hidden layers, actor and critics")
    policy: Literal["unbounded", "tanh_mean", "squashed"] = setting(
        "unbounded",
        "actor: Gaussian with free mean (CORL), with tanh mean and log std in [-6, 0] (rlkit), or squashed",
    )
    max_q_value: float | None = setting(
        None, "upper limit of the critics' outputs (0 where rewards are -1 and 0); none: no limit"
    )


AWAC_ACTORS: dict[str, type[Actor]] = {
    "unbounded": UnboundedGaussian,
    "tanh_mean": SigmoidStdGaussian,
    "squashed": SquashedGaussian,
}


class MLPAWACModel(CriticModel):
    """Twin critics and the actor of one of AWAC's two published forms, or SAC's."""

    config_class = AWACNetworkConfig
    config: AWACNetworkConfig

    def make_actor(self, generator: torch.Generator | None) -> Actor:
        return self.actor_of(AWAC_ACTORS[self.config.policy], generator)


class IQLNetworkConfig(NetworkConfig):
    """Keywords of `MLPIQLModel`."""

    actor_dropout: float = setting(
        0.0, "share of the actor's hidden units dropped in training (adroit: 0.1)", ge=0, lt=1
    )
    init: Initial = setting("orthogonal", "first weights; the official code's are orthogonal, outputs too")


class MLPIQLModel(CriticModel):
    """A tanh-mean Gaussian actor, twin critics and a state value; `value(obs)` gives `(B,)`."""

    config_class = IQLNetworkConfig
    config: IQLNetworkConfig
    value: StateValue

    def build(self, generator: torch.Generator | None) -> None:
        super().build(generator)
        self.value = StateValue(self.obs_dim, self.config.plan("critic"), generator=generator)

    def make_actor(self, generator: torch.Generator | None) -> Actor:
        return self.actor_of(TanhMeanGaussian, generator, dropout=self.config.actor_dropout)


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


class DQNNetworkConfig(NetworkConfig):
    """Keywords of `MLPDQNModel`."""

    num_critics: int = setting(
        1, "networks of values; targets take their minimum, actions their mean", ge=1, most=MAX_CRITICS
    )


class MLPDQNModel(PolicyModel):
    """One network, or several, with a value for each combination of levels; the policy follows from it."""

    config_class = DQNNetworkConfig
    config: DQNNetworkConfig

    def make_actor(self, generator: torch.Generator | None) -> Actor:
        if self.spaces.kind != "choices":
            raise ConfigError(f"MLPDQNModel takes spaces of choices, these are of {self.spaces.kind}")
        return EpsilonGreedy(
            self.obs_dim,
            self.action_dim,
            self.config.plan("critic"),
            levels=self.spaces.levels,
            num_critics=self.config.num_critics,
            masked=self.spaces.masked,
            generator=generator,
        )

    @property
    def critic(self) -> LevelCritics:
        """That of the actor: there is one network."""
        assert isinstance(self.actor, EpsilonGreedy)
        return self.actor.critic

    def q_values(self, obs: Tensor, actions: Tensor) -> tuple[Tensor, ...]:
        """Q_1, Q_2 …, each `(B,)`."""
        values: Tensor = self.critic(as_batch(obs), as_batch(actions))
        return values.unbind(-2)
