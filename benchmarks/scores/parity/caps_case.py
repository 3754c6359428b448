"""CAPS by its authors (yassineCh/CAPS, `capsiql.py`)."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from unittest import mock

import torch
from common import ACTIONS, OBS, Case, Empty, give, linear_layers, linear_pairs, load_module
from torch import Tensor, nn
from torch_cases import NO_EPSILON, RATE, WIDE, forget_epsilon, give_twins, twin_pairs

from rl_training import models
from rl_training.algorithms import CAPS
from rl_training.models.networks import MLP


def caps(checkout: Path) -> Case:
    """Their losses in the order of IQL's authors, which we follow: V, then actor and critics with the new V.

    They halve the critics' losses, so Adam's epsilon is made negligible there. The spread of their heads is
    in a plain list, which no optimiser sees: it stays 1, and so does ours here. What they make single
    precision stays double.
    """
    sys.modules.update({name: Empty(name) for name in ("fsrl", "fsrl.utils", "osrl", "osrl.common")})
    sys.modules["osrl.common.net"] = load_module(checkout / "osrl" / "common" / "net.py")
    module = load_module(checkout / "osrl" / "algorthims" / "capsiql.py")
    model = models.MLPCAPSModel(OBS, ACTIONS, hidden_sizes=WIDE)
    learner = CAPS(model, learning_rate=RATE, limit="10 per episode")
    theirs = module.CapsIQL(
        OBS, ACTIONS, 1.0, hidden_dim=WIDE[0], iql_tau=0.7, iql_tau_cost=0.7, beta=3.0, beta_cost=3.0
    )
    with torch.no_grad():
        for log_std in theirs.actor.log_stds:
            log_std.data = log_std.data.double()
        for ours, other in actor_pairs(model.actor.heads.net, theirs.actor):
            other.copy_(ours)
    halves = (
        ("critic", model.critic, model.value, theirs.reward_q, theirs.reward_q_target, theirs.reward_v),
        (
            "cost_critic",
            model.cost_critic,
            model.cost_value,
            theirs.cost_q,
            theirs.cost_q_target,
            theirs.cost_v,
        ),
    )
    for name, critic, value, twin, target, their_value in halves:
        give(value.net, linear_layers(their_value))
        for each in (twin, target):
            give_twins(critic, (each.q1, each.q2))
        forget_epsilon(learner, name)
    theirs.setup_optimizers(RATE, RATE, RATE, 10**12)
    for optimizer in (theirs.reward_q_optim, theirs.cost_q_optim):
        optimizer.defaults["eps"] = optimizer.param_groups[0]["eps"] = NO_EPSILON
    keep_spread(learner)

    def update(batch: Mapping[str, Tensor], noise: Mapping[str, Tensor]) -> None:
        obs, actions, next_obs, dones = (batch[name] for name in ("obs", "actions", "next_obs", "dones"))
        with mock.patch.object(Tensor, "float", Tensor.double):
            with torch.no_grad():
                q, of_cost = theirs.reward_q_target(obs, actions), theirs.cost_q_target(obs, actions)
            theirs.value_loss(obs, actions)
            theirs.cost_value_loss(obs, actions)
            with torch.no_grad():
                advantages = q - theirs.reward_v(obs), of_cost - theirs.cost_v(obs)
                following = theirs.reward_v(next_obs), theirs.cost_v(next_obs)
            theirs.reward_q_loss(obs, actions, batch["rewards"], dones, following[0])
            theirs.cost_q_loss(obs, actions, batch["costs"].squeeze(-1), dones, following[1])
            theirs.actor_loss(obs, actions, *advantages)
            theirs.sync_weight()

    def pairs() -> Iterable[tuple[Tensor, Tensor]]:
        found = [actor_pairs(model.actor.heads.net, theirs.actor)]
        for name, critic, value, twin, target, their_value in halves:
            own_target = learner.targets[name]
            found.append(linear_pairs(value.net, linear_layers(their_value)))
            found.append(twin_pairs(critic, (twin.q1, twin.q2)))
            found.append(twin_pairs(own_target, (target.q1, target.q2)))
        return chain.from_iterable(found)

    return Case(learner, update, pairs)


def actor_pairs(net: nn.Module, theirs: nn.Module) -> Iterator[tuple[Tensor, Tensor]]:
    """The trunk, and the last layer of each head beside its columns of ours."""
    assert isinstance(net, MLP)
    trunk = linear_layers(theirs.net)  # type: ignore[arg-type]
    for ours, layer in zip(net.hidden, trunk, strict=True):
        yield ours.weight.detach().mT, layer.weight.detach()  # type: ignore[operator, union-attr]
        yield ours.bias.detach()[0], layer.bias.detach()  # type: ignore[operator, union-attr]
    for head in range(2):
        columns, last = slice(head * ACTIONS, (head + 1) * ACTIONS), theirs.tasks[f"a_{head}"]  # type: ignore[index]
        yield net.output.weight.detach()[:, columns].mT, last.weight.detach()
        yield net.output.bias.detach()[0, columns], last.bias.detach()


def keep_spread(learner: CAPS) -> None:
    optimizer = learner.optimizers["actor"]
    apply, free = optimizer.apply, learner.actor.free_log_std  # type: ignore[attr-defined]

    def apply_without(gradients: Sequence[Tensor]) -> None:
        apply(
            [
                torch.zeros_like(each) if own is free else each
                for own, each in zip(optimizer.parameters, gradients, strict=True)
            ]
        )

    optimizer.apply = apply_without  # type: ignore[method-assign]


CASES = {"caps": ("caps", caps)}
