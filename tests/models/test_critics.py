"""The ensemble of critics: independent members, and many actions per state as one call."""

from __future__ import annotations

import pytest
import torch

from rl_training.models.critics import QEnsemble
from rl_training.models.networks import NetworkPlan


def ensemble(hidden_sizes: tuple[int, ...], *, layer_norm: bool = False) -> QEnsemble:
    plan = NetworkPlan(hidden_sizes=hidden_sizes, layer_norm=layer_norm, part="critic")
    return QEnsemble(5, 2, 3, plan, generator=torch.Generator().manual_seed(1)).double()


@pytest.mark.parametrize(("hidden_sizes", "layer_norm"), [((8, 6), False), ((7,), True), ((), False)])
def test_many_actions_have_the_values_of_one_at_a_time(
    hidden_sizes: tuple[int, ...], layer_norm: bool
) -> None:
    critic = ensemble(hidden_sizes, layer_norm=layer_norm)
    generator = torch.Generator().manual_seed(2)
    obs = torch.randn(4, 5, generator=generator, dtype=torch.float64)
    actions = torch.randn(4, 10, 2, generator=generator, dtype=torch.float64)
    together = critic.many(obs, actions)
    assert together.shape == (3, 4, 10)
    apart = torch.stack([critic(obs, actions[:, index]) for index in range(10)], dim=-1)
    torch.testing.assert_close(together, apart, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("lead", [(), (2,)])
def test_gradients_for_actions_are_those_of_the_joined_input(lead: tuple[int, ...]) -> None:
    critic = ensemble((8, 6))
    if lead:
        for parameter in critic.parameters():
            parameter.data = parameter.data.expand(*lead, *parameter.shape).clone()
    generator = torch.Generator().manual_seed(2)
    obs = torch.randn(*lead, 4, 5, generator=generator, dtype=torch.float64)
    actions = torch.randn(*lead, 4, 2, generator=generator, dtype=torch.float64)
    joined = torch.cat([obs, actions], dim=-1).requires_grad_(True)
    plain = critic.net(joined.unsqueeze(-3)).squeeze(-1)
    weights = list(critic.parameters())
    wanted = torch.autograd.grad(plain.square().sum(), [joined, *weights])
    apart = critic(obs, actions.requires_grad_(True))
    found = torch.autograd.grad(apart.square().sum(), [actions, *weights])
    torch.testing.assert_close(apart, plain, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found[0], wanted[0][..., 5:], rtol=1e-12, atol=1e-12)
    for one, other in zip(found[1:], wanted[1:], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_members_start_apart_and_do_not_depend_on_each_other() -> None:
    critic = ensemble((8, 6))
    obs, actions = torch.ones(1, 5, dtype=torch.float64), torch.ones(1, 2, dtype=torch.float64)
    values = critic(obs, actions)[:, 0]
    assert values.unique().numel() == 3
    with torch.no_grad():
        for parameter in critic.parameters():
            parameter[0] += 1.0
    changed = critic(obs, actions)[:, 0]
    assert changed[0] != values[0] and torch.equal(changed[1:], values[1:])
