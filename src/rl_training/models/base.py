"""What every model offers to learners, policies and people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from rl_training.config import ConfigModel, setting
from rl_training.core.errors import ConfigError


class ActionSample(NamedTuple):
    """Actions in [-1, 1], `(B, A)`, and their log-probabilities, `(B,)`."""

    actions: Tensor
    logprobs: Tensor


class NetworkConfig(ConfigModel):
    """Sizes shared by all models."""

    hidden_sizes: tuple[int, ...] = setting(
        (256, 256), "widths of the hidden layers, actor and critics", ge=1
    )
    actor_hidden_sizes: tuple[int, ...] | None = setting(
        None, "widths of the actor's hidden layers; none: hidden_sizes", ge=1
    )
    critic_hidden_sizes: tuple[int, ...] | None = setting(
        None, "widths of the critics' hidden layers; none: hidden_sizes", ge=1
    )

    @property
    def actor_widths(self) -> tuple[int, ...]:
        return self.hidden_sizes if self.actor_hidden_sizes is None else self.actor_hidden_sizes

    @property
    def critic_widths(self) -> tuple[int, ...]:
        return self.hidden_sizes if self.critic_hidden_sizes is None else self.critic_hidden_sizes


class PolicyModel(nn.Module):
    """A model with an `actor`; subclasses build the networks in `build`."""

    config_class: ClassVar[type[NetworkConfig]] = NetworkConfig
    actor: nn.Module

    def __init__(
        self, obs_dim: int, action_dim: int, *, generator: torch.Generator | None = None, **keywords: Any
    ) -> None:
        super().__init__()
        for name, value in (("obs_dim", obs_dim), ("action_dim", action_dim)):
            if value < 1:
                raise ConfigError(f"{name} must be >= 1, got {value}")
        self.obs_dim, self.action_dim = obs_dim, action_dim
        self.config = self.config_class.build(keywords)
        self.build(self.config, generator)

    def build(self, config: Any, generator: torch.Generator | None) -> None:
        """Create the networks from the typed keywords."""
        raise TypeError(f"{type(self).__name__} builds no networks")

    @classmethod
    def from_config(
        cls, config: ConfigModel, obs_dim: int, action_dim: int, generator: torch.Generator | None
    ) -> PolicyModel:
        """The model of a run: takes those fields of the run's config that are the model's."""
        keywords: Mapping[str, Any] = {name: getattr(config, name) for name in cls.config_class.model_fields}
        return cls(obs_dim, action_dim, generator=generator, **keywords)

    def act(self, obs: Tensor, noise: Tensor | None = None) -> Tensor:
        """Actions in [-1, 1]: the mode without noise, a sample with N(0, 1) noise of the action's shape."""
        if noise is None:
            return self.actor.mode(obs)  # type: ignore[no-any-return, operator]
        return self.actor(obs, noise)[0].clamp(-1.0, 1.0)  # type: ignore[no-any-return]

    def sample_actions(self, obs: Tensor, *, generator: torch.Generator | None = None) -> ActionSample:
        """Draw one action per observation; a single `(obs_dim,)` observation counts as a batch of one."""
        obs = as_batch(obs)
        noise = torch.randn(*obs.shape[:-1], self.action_dim, generator=generator, device=obs.device)
        actions, logprobs = self.actor(obs, noise)
        return ActionSample(actions.clamp(-1.0, 1.0), logprobs)


class TwinCriticModel(PolicyModel):
    """A policy model whose `critic` is an ensemble of scalar values."""

    critic: nn.Module

    def q_values(self, obs: Tensor, actions: Tensor) -> tuple[Tensor, ...]:
        """Q_1, Q_2 …, each `(B,)`."""
        return self.critic(as_batch(obs), as_batch(actions)).unbind(-2)  # type: ignore[no-any-return]


def as_batch(values: Tensor) -> Tensor:
    return values.unsqueeze(0) if values.dim() == 1 else values
