"""How the networks of a model are chosen: by name and typed settings, for actor and critics apart."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, TypeVar

from rl_training.config import ConfigModel, setting
from rl_training.config.limits import MAX_LAYERS, MAX_WIDTH

Activation = Literal["relu", "gelu", "silu", "tanh", "elu"]
Norm: TypeAlias = bool | Literal["after"]
Initial = Literal[
    "torch", "xavier", "orthogonal", "orthogonal_small", "small_xavier_output", "small_output", "fan_in_small"
]
T = TypeVar("T")
Part = Literal["actor", "critic"]
Options = dict[str, bool | int | float | str | list[int] | list[float] | None]

INITIAL_MEANING = (
    "first weights: torch (PyTorch's), xavier (zero biases), orthogonal (gain sqrt 2), orthogonal_small "
    "(outputs times 0.01), small_xavier_output (PyTorch's, outputs Xavier times 0.01), small_output "
    "(PyTorch's, outputs within 1e-3 for actors, 3e-3 for critics), fan_in_small (the same with hidden "
    "biases of 0.1)"
)


def widths(sizes: tuple[int, ...] | None, meaning: str) -> Any:
    """A setting for the widths of hidden layers."""
    return setting(sizes, meaning, ge=1, most=MAX_WIDTH, longest=MAX_LAYERS)


class NetworkPlan(ConfigModel):
    """One network as plain data: enough to build it again anywhere."""

    hidden_sizes: tuple[int, ...] = widths((256, 256), "widths of the hidden layers")
    network: str = setting("mlp", "kind of network")
    activation: Activation = setting("relu", "function behind every hidden layer")
    layer_norm: Norm = setting(False, "layer normalisation: true before the activation, after behind it")
    init: Initial = setting("torch", INITIAL_MEANING)
    part: Part = setting("actor", "what the network is for")
    options: Options = setting({}, "settings of that kind of network alone")


class NetworkConfig(ConfigModel):
    """Settings shared by all models."""

    hidden_sizes: tuple[int, ...] = widths((256, 256), "widths of the hidden layers, actor and critics")
    actor_hidden_sizes: tuple[int, ...] | None = widths(
        None, "widths of the actor's hidden layers; none: hidden_sizes"
    )
    critic_hidden_sizes: tuple[int, ...] | None = widths(
        None, "widths of the critics' hidden layers; none: hidden_sizes"
    )
    network: str = setting("mlp", "kind of network: mlp, residual, or one that a package registers")
    actor_network: str | None = setting(None, "kind of the actor's network; none: network")
    critic_network: str | None = setting(None, "kind of the critics' networks; none: network")
    network_options: Options = setting({}, "settings of that kind of network alone, such as expansion: 4")
    activation: Activation = setting("relu", "function behind every hidden layer")
    actor_activation: Activation | None = setting(None, "that of the actor; none: activation")
    critic_activation: Activation | None = setting(None, "that of the critics; none: activation")
    layer_norm: Norm = setting(
        False, "layer normalisation of hidden layers: true before the activation, after behind it"
    )
    actor_layer_norm: Norm | None = setting(None, "that of the actor; none: layer_norm")
    critic_layer_norm: Norm | None = setting(None, "that of the critics; none: layer_norm")
    init: Initial = setting("torch", INITIAL_MEANING)
    actor_init: Initial | None = setting(None, "first weights of the actor; none: init")
    critic_init: Initial | None = setting(None, "first weights of the critics; none: init")

    def plan(self, part: Part) -> NetworkPlan:
        """The network of the actor, or of critics and values."""
        actor = part == "actor"
        return NetworkPlan(
            hidden_sizes=chosen(
                self.hidden_sizes, self.actor_hidden_sizes if actor else self.critic_hidden_sizes
            ),
            network=chosen(self.network, self.actor_network if actor else self.critic_network),
            activation=chosen(self.activation, self.actor_activation if actor else self.critic_activation),
            layer_norm=chosen(self.layer_norm, self.actor_layer_norm if actor else self.critic_layer_norm),
            init=chosen(self.init, self.actor_init if actor else self.critic_init),
            part=part,
            options=self.network_options,
        )


def chosen(both: T, own: T | None) -> T:
    return both if own is None else own
