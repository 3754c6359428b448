"""Parts of an ensemble of critics. Its axis is the third from the right in every parameter."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call

from rl_training.core.errors import ConfigError
from rl_training.models.models import PolicyModel


def agreed_size(name: str, given: int | None, model: PolicyModel) -> int:
    """A size of the model; a learner that is given it too must be given the same."""
    built: int = getattr(model.config, name)
    if given is not None and given != built:
        raise ConfigError(f"{name} must equal the model's ({built}), got {given}")
    return built


def check_subset(subset_size: int, num_critics: int) -> None:
    if subset_size > num_critics:
        raise ConfigError(f"subset_size must be <= num_critics ({num_critics}), got {subset_size}")


def random_subset(uniform: Tensor, size: int) -> Tensor:
    """Distinct members, all subsets equally likely: `[*S, N]` random numbers -> `[*S, size]` indices."""
    return uniform.topk(size).indices


def chosen_members(parameter: Tensor, members: Tensor) -> Tensor:
    """`[*S, N, …, …]`, `[*S, M]` -> `[*S, M, …, …]`: each seed's own choice."""
    flat = parameter.flatten(0, -3)
    seeds = members.shape[:-1]
    first = torch.arange(seeds.numel(), device=members.device) * parameter.shape[-3]
    rows = (members + first.reshape(*seeds, 1)).flatten()
    return flat.index_select(0, rows).reshape(*members.shape, *parameter.shape[-2:])


def values_of(critic: nn.Module, pick: Callable[[Tensor], Tensor], obs: Tensor, actions: Tensor) -> Tensor:
    """Values `[*S, M, B]` of the members that `pick` takes out of each parameter; the others cost nothing."""
    parameters = {name: pick(parameter.detach()) for name, parameter in critic.named_parameters()}
    values: Tensor = functional_call(critic, parameters, (obs, actions))
    return values
