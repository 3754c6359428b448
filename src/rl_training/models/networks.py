"""Networks by name and settings, for actor and critics apart: numbers in, numbers out.

Every parameter has free leading axes, `[*seeds, (ensemble), …]`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, ClassVar, Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rl_training.config import ConfigModel, setting
from rl_training.core.errors import ConfigError
from rl_training.core.registry import Registry
from rl_training.core.schema import MAX_LAYERS, MAX_WIDTH
from rl_training.models.layers import Init, LayerNorm, Linear, affine, fill_members, product

Activation = Literal["relu", "gelu", "silu", "tanh", "elu"]
Norm: TypeAlias = bool | Literal["after"]
Initial = Literal[
    "torch", "xavier", "orthogonal", "orthogonal_small", "small_xavier_output", "small_output", "fan_in_small"
]
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
        """The network of the actor, or of critics and values: its own setting, else that of both."""
        names = ("hidden_sizes", "network", "activation", "layer_norm", "init")
        own = {name: getattr(self, f"{part}_{name}") for name in names}
        chosen = {name: getattr(self, name) if value is None else value for name, value in own.items()}
        return NetworkPlan(part=part, options=self.network_options, **chosen)


ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "gelu": F.gelu,
    "silu": F.silu,
    "tanh": torch.tanh,
    "elu": F.elu,
}
HIDDEN_INITS: dict[Initial, Init] = {
    "xavier": "xavier",
    "orthogonal": "orthogonal",
    "orthogonal_small": "orthogonal",
}
SMALL_GAIN = 1e-2
SMALL_BOUNDS = {"actor": 1e-3, "critic": 3e-3}
HIDDEN_BIAS = 0.1


class NoOptions(ConfigModel):
    """A network without settings of its own."""


class Network(nn.Module):
    """The base of every kind of network. A subclass builds its layers in `build` and computes in `forward`.

    Layers come from `layer` and `output_layer`, so that leading axes and first weights are right. What else a
    network can do it says by two class attributes.
    """

    options_class: ClassVar[type[ConfigModel]] = NoOptions
    splits: ClassVar[bool] = False
    """Whether the first layer is one product (`first_layer`), which critics then share between actions."""
    drops: ClassVar[bool] = False
    """Whether `forward` takes `keep`, the factors of `sum(hidden_sizes)` hidden units (dropout)."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        plan: NetworkPlan,
        lead: Sequence[int] = (),
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.plan, self.lead, self.generator = plan, tuple(lead), generator
        self.activation = ACTIVATIONS[plan.activation]
        self.hidden_sizes = list(plan.hidden_sizes)
        self.build(in_features, out_features)
        self.generator = None  # first weights are drawn; a generator cannot be copied with the network

    def build(self, in_features: int, out_features: int) -> None:
        """Create the layers."""
        raise TypeError(f"{type(self).__name__} builds no layers")

    def _linear(self, in_features: int, out_features: int) -> Linear:
        init = HIDDEN_INITS.get(self.plan.init, "torch")
        return Linear(in_features, out_features, self.lead, init=init, generator=self.generator)

    def layer(self, in_features: int, out_features: int) -> Linear:
        """A hidden layer."""
        made = self._linear(in_features, out_features)
        if self.plan.init == "fan_in_small":
            nn.init.constant_(made.bias, HIDDEN_BIAS)
        return made

    def output_layer(self, in_features: int, out_features: int) -> Linear:
        """The last layer, which many code bases start close to zero."""
        init, made = self.plan.init, self._linear(in_features, out_features)
        with torch.no_grad():
            if init == "orthogonal_small":
                made.weight.mul_(SMALL_GAIN / 2.0**0.5)
            elif init == "small_xavier_output":
                fill_members(made.weight, "xavier", self.generator, gain=SMALL_GAIN)
                made.bias.zero_()
            elif init in ("small_output", "fan_in_small"):
                bound = SMALL_BOUNDS[self.plan.part]
                for parameter in made.parameters():
                    nn.init.uniform_(parameter, -bound, bound, generator=self.generator)
        return made

    def norm(self, features: int) -> nn.Module:
        """Layer normalisation where the plan asks for it, else nothing."""
        return LayerNorm(features, self.lead) if self.plan.layer_norm else nn.Identity()

    def first_layer(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        """What two halves of the input (with the bias, without) add to the first layer; rows may differ."""
        raise TypeError(f"{type(self).__name__} does not split its first layer")

    def from_first(self, x: Tensor) -> Tensor:
        """The rest of the network from the first layer's product on."""
        raise TypeError(f"{type(self).__name__} does not split its first layer")


def split_product(layer: Linear, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """`Network.first_layer` for a plain first layer."""
    width = left.shape[-1]
    return (
        affine(left, layer.weight[..., :width, :], layer.bias),
        product(right, layer.weight[..., width:, :]),
    )


class MLP(Network):
    """Linear -> (LayerNorm) -> activation (-> LayerNorm) for each hidden size, then a linear output."""

    splits = True
    drops = True

    def build(self, in_features: int, out_features: int) -> None:
        widths = [in_features, *self.hidden_sizes]
        self.hidden = nn.ModuleList(self.layer(a, b) for a, b in pairwise(widths))
        self.norms = nn.ModuleList(self.norm(width) for width in self.hidden_sizes if self.plan.layer_norm)
        self.output = self.output_layer(widths[-1], out_features)
        self.norm_last = self.plan.layer_norm == "after"

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        """`keep` `[*S, B, hidden_units]` multiplies the hidden units (`dropout_scale`)."""
        return self.from_first(self.hidden[0](x) if self.hidden else self.output(x), keep)

    def from_first(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        if not self.hidden:
            return x
        scales = () if keep is None else torch.split(keep, self.hidden_sizes, dim=-1)
        norms = tuple(self.norms)
        for index, layer in enumerate(self.hidden):  # indexing a ModuleList costs a third of a small layer
            if index:
                x = layer(x)
            if norms and not self.norm_last:
                x = norms[index](x)
            x = self.activation(x)
            if self.norm_last:
                x = norms[index](x)
            if scales:
                x = x * scales[index]
        out: Tensor = self.output(x)
        return out

    def first_layer(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        first = self.hidden[0] if self.hidden else self.output
        assert isinstance(first, Linear)
        return split_product(first, left, right)


class ResidualOptions(ConfigModel):
    """Settings of the residual network."""

    expansion: int = setting(4, "width inside a block, as a multiple of its width", ge=1, le=64)


class ResidualBlock(nn.Module):
    """x + W2 activation(W1 norm(x)), as in SimBa (Lee et al. 2024, arXiv:2410.09754)."""

    def __init__(self, network: Network, width: int, inner: int) -> None:
        super().__init__()
        self.norm = network.norm(width)
        self.widen = network.layer(width, inner)
        self.narrow = network.layer(inner, width)
        self.activation = network.activation

    def forward(self, x: Tensor) -> Tensor:
        inner: Tensor = self.narrow(self.activation(self.widen(self.norm(x))))
        return x + inner


class Residual(Network):
    """A linear embedding, one residual block per hidden size (all equal), a last norm, a linear output."""

    options_class = ResidualOptions
    splits = True

    def build(self, in_features: int, out_features: int) -> None:
        widths = set(self.hidden_sizes)
        if len(widths) != 1:
            raise ConfigError(
                f"hidden_sizes must be one or more equal widths for network residual, got {self.hidden_sizes}"
            )
        width = widths.pop()
        options = ResidualOptions.build(self.plan.options, where="network_options")
        self.embed = self.layer(in_features, width)
        self.blocks = nn.ModuleList(
            ResidualBlock(self, width, options.expansion * width) for _ in self.hidden_sizes
        )
        self.last_norm = self.norm(width)
        self.output = self.output_layer(width, out_features)

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        return self.from_first(self.embed(x))

    def from_first(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.output(self.last_norm(x))
        return out

    def first_layer(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        return split_product(self.embed, left, right)


NETWORKS: Registry[type[Network]] = Registry(
    "network",
    "rl_training.networks",
    {"mlp": f"{__name__}:MLP", "residual": f"{__name__}:Residual"},
)


def register_network(name: str, network: type[Network]) -> None:
    """Make a kind of network known under `name`, for settings and files."""
    if not (isinstance(network, type) and issubclass(network, Network)):
        raise ConfigError(f"network {name!r} must be a subclass of Network, got {network!r}")
    NETWORKS.register(name, network)


def build_network(
    in_features: int,
    out_features: int,
    plan: NetworkPlan,
    lead: Sequence[int] = (),
    *,
    generator: torch.Generator | None = None,
) -> Network:
    """The network that a plan describes."""
    chosen = NETWORKS.get(plan.network)
    known = chosen.options_class.model_fields
    options = {name: value for name, value in plan.options.items() if name in known}
    made = chosen(in_features, out_features, plan.replace(options=options), lead, generator=generator)
    for name, parameter in made.named_parameters():
        if parameter.shape[: len(lead)] != tuple(lead):
            raise ConfigError(
                f"network {plan.network!r} cannot be one of an ensemble: its parameter {name} has shape "
                f"{tuple(parameter.shape)} without the leading {tuple(lead)}; build layers with self.layer"
            )
    return made
