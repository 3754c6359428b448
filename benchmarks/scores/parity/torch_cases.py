"""Public PyTorch code: TD3 by its authors, and CORL's BC, TD3+BC, IQL, AWAC, CQL and Cal-QL."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import torch
from common import (
    ACTIONS,
    OBS,
    USUAL,
    Case,
    columns,
    give,
    linear_layers,
    linear_pairs,
    load_module,
    torch_noise,
)
from torch import Tensor, nn

from rl_training import models
from rl_training.algorithms import AWAC, BC, CQL, IQL, TD3, TD3BC, CalQL, optim
from rl_training.algorithms.learner import Learner

Batch = Mapping[str, Tensor]
Pairs = Iterable[tuple[Tensor, Tensor]]
RATE = 3e-4
NO_EPSILON = 1e-30
WIDE = (256, 256)


def adam(module: nn.Module, epsilon: float = 1e-8) -> torch.optim.Adam:
    return torch.optim.Adam(module.parameters(), lr=RATE, eps=epsilon)


def twin_pairs(ours: Any, theirs: tuple[nn.Module, nn.Module]) -> Iterator[tuple[Tensor, Tensor]]:
    for member, critic in enumerate(theirs):
        yield from linear_pairs(ours.net, linear_layers(critic), member)


def give_twins(critic: Any, theirs: tuple[nn.Module, nn.Module]) -> None:
    for member, each in enumerate(theirs):
        give(critic.net, linear_layers(each), member)


def forget_epsilon(learner: Learner, optimizer: str) -> None:
    """Adam forgets a factor before a loss but for its epsilon: here one of ours is made negligible."""
    apply = learner.optimizers[optimizer].apply

    def apply_without(gradients: Any) -> None:
        with mock.patch.object(optim, "EPSILON", NO_EPSILON):
            apply(gradients)

    learner.optimizers[optimizer].apply = apply_without  # type: ignore[method-assign]


def bc(checkout: Path) -> Case:
    module = load_module(checkout / "algorithms" / "offline" / "any_percent_bc.py")
    learner = BC(models.MLPBCModel(OBS, ACTIONS, hidden_sizes=WIDE), learning_rate=RATE)
    actor = module.Actor(OBS, ACTIONS, 1.0)
    give(learner.actor.net, linear_layers(actor))
    theirs = module.BC(1.0, actor, adam(actor))

    def update(batch: Batch, noise: Batch) -> None:
        theirs.train(columns(batch, *USUAL))

    return Case(learner, update, lambda: linear_pairs(learner.actor.net, linear_layers(actor)))


def td3(checkout: Path) -> Case:
    module = load_module(checkout / "TD3.py")
    learner = TD3(models.MLPTD3Model(OBS, ACTIONS, hidden_sizes=WIDE), learning_rate=RATE)
    theirs = module.TD3(OBS, ACTIONS, 1.0)

    def halves(critic: nn.Module) -> tuple[nn.Module, nn.Module]:
        layers = linear_layers(critic)
        return nn.Sequential(*layers[:3]), nn.Sequential(*layers[3:])

    for name in ("actor", "actor_target"):
        give(learner.actor.net, linear_layers(getattr(theirs, name)))
    for name in ("critic", "critic_target"):
        give_twins(learner.critic, halves(getattr(theirs, name)))

    def update(batch: Batch, noise: Batch) -> None:
        obs, actions, rewards, next_obs, dones = columns(batch, *USUAL)
        buffer = SimpleNamespace(sample=lambda _: (obs, actions, next_obs, rewards, 1.0 - dones))
        with torch_noise(noise["next"]):
            theirs.train(buffer)

    def pairs() -> Pairs:
        return chain(
            linear_pairs(learner.actor.net, linear_layers(theirs.actor)),
            linear_pairs(learner.target_actor.net, linear_layers(theirs.actor_target)),
            twin_pairs(learner.critic, halves(theirs.critic)),
            twin_pairs(learner.target_critic, halves(theirs.critic_target)),
        )

    return Case(learner, update, pairs)


def td3_bc(checkout: Path) -> Case:
    module = load_module(checkout / "algorithms" / "offline" / "td3_bc.py")
    learner = TD3BC(models.MLPTD3Model(OBS, ACTIONS, hidden_sizes=WIDE), learning_rate=RATE)
    actor = module.Actor(OBS, ACTIONS, 1.0)
    critics = (module.Critic(OBS, ACTIONS), module.Critic(OBS, ACTIONS))
    give(learner.actor.net, linear_layers(actor))
    give_twins(learner.critic, critics)
    theirs = module.TD3_BC(
        1.0, actor, adam(actor), critics[0], adam(critics[0]), critics[1], adam(critics[1])
    )

    def update(batch: Batch, noise: Batch) -> None:
        with torch_noise(noise["next"]):
            theirs.train(columns(batch, *USUAL))

    def pairs() -> Pairs:
        return chain(
            linear_pairs(learner.actor.net, linear_layers(actor)),
            linear_pairs(learner.target_actor.net, linear_layers(theirs.actor_target)),
            twin_pairs(learner.critic, critics),
            twin_pairs(learner.target_critic, (theirs.critic_1_target, theirs.critic_2_target)),
        )

    return Case(learner, update, pairs)


def iql(checkout: Path) -> Case:
    """CORL's losses in the order of the authors' code, which we follow: V, then actor and Q with the new V.

    CORL halves the critics' loss. Adam forgets such factors but for its epsilon, made negligible here.
    """
    module = load_module(checkout / "algorithms" / "offline" / "iql.py")
    learner = IQL(models.MLPIQLModel(OBS, ACTIONS, hidden_sizes=WIDE), learning_rate=RATE)
    actor = module.GaussianPolicy(OBS, ACTIONS, 1.0).double()
    twin, value = module.TwinQ(OBS, ACTIONS), module.ValueFunction(OBS)
    give(learner.actor.net, linear_layers(actor))
    give(learner.value.net, linear_layers(value))
    give_twins(learner.critic, (twin.q1, twin.q2))
    theirs = module.ImplicitQLearning(
        1.0, actor, adam(actor), twin, adam(twin, NO_EPSILON), value, adam(value), max_steps=10**12
    )

    def update(batch: Batch, noise: Batch) -> None:
        log: dict[str, float] = {}
        obs, actions = batch["obs"], batch["actions"]
        with torch.no_grad():
            q = theirs.q_target(obs, actions)
        theirs._update_v(obs, actions, log)
        with torch.no_grad():
            advantage, next_value = q - theirs.vf(obs), theirs.vf(batch["next_obs"])
        theirs._update_policy(advantage, obs, actions, log)
        theirs._update_q(next_value, obs, actions, batch["rewards"], batch["dones"], log)

    forget_epsilon(learner, "critic")

    def pairs() -> Pairs:
        return chain(
            linear_pairs(learner.actor.net, linear_layers(actor)),
            [(learner.actor.free_log_std.detach()[0], actor.log_std.detach())],  # type: ignore[attr-defined]
            linear_pairs(learner.value.net, linear_layers(value)),
            twin_pairs(learner.critic, (twin.q1, twin.q2)),
            twin_pairs(learner.target_critic, (theirs.q_target.q1, theirs.q_target.q2)),
        )

    return Case(learner, update, pairs)


def awac(checkout: Path) -> Case:
    module = load_module(checkout / "algorithms" / "offline" / "awac.py")
    learner = AWAC(models.MLPAWACModel(OBS, ACTIONS), learning_rate=RATE, temperature=1.0)
    actor = module.Actor(OBS, ACTIONS, 256).double()
    critics = (module.Critic(OBS, ACTIONS, 256), module.Critic(OBS, ACTIONS, 256))
    give(learner.actor.net, linear_layers(actor))
    give_twins(learner.critic, critics)
    theirs = module.AdvantageWeightedActorCritic(
        actor, adam(actor), critics[0], adam(critics[0]), critics[1], adam(critics[1])
    )

    def update(batch: Batch, noise: Batch) -> None:
        with torch_noise(noise["next"], noise["current"]):
            theirs.update(columns(batch, *USUAL))

    def pairs() -> Pairs:
        return chain(
            linear_pairs(learner.actor.net, linear_layers(actor)),
            [(learner.actor.free_log_std.detach()[0], actor._log_std.detach())],  # type: ignore[attr-defined]
            twin_pairs(learner.critic, critics),
            twin_pairs(learner.target_critic, (theirs._target_critic_1, theirs._target_critic_2)),
        )

    return Case(learner, update, pairs)


def conservative(module: ModuleType, make: Callable[..., Any], learner: CQL, fields: tuple[str, ...]) -> Case:
    """CQL or Cal-QL: they differ in one field of the batch."""
    actor = module.TanhGaussianPolicy(OBS, ACTIONS, 1.0).double()
    critics = (
        module.FullyConnectedQFunction(OBS, ACTIONS, n_hidden_layers=3),
        module.FullyConnectedQFunction(OBS, ACTIONS, n_hidden_layers=3),
    )
    give(learner.gaussian.net, linear_layers(actor))
    give_twins(learner.critic, critics)
    theirs = make(
        critic_1=critics[0],
        critic_1_optimizer=adam(critics[0]),
        critic_2=critics[1],
        critic_2_optimizer=adam(critics[1]),
        actor=actor,
        actor_optimizer=adam(actor),
        target_entropy=-float(ACTIONS),
        bc_steps=0,
    )
    theirs.log_alpha.double()

    def update(batch: Batch, noise: Batch) -> None:
        proposals = (noise["proposal_uniform"], noise["proposal_current"], noise["proposal_next"])
        with torch_noise(noise["current"], noise["next"], *proposals):
            theirs.train(columns(batch, *fields))

    def pairs() -> Pairs:
        own = learner.gaussian
        return chain(
            linear_pairs(own.net, linear_layers(actor)),
            [
                (own.log_std_multiplier.detach()[0, 0], actor.log_std_multiplier.constant.detach()),
                (own.log_std_offset.detach()[0, 0], actor.log_std_offset.constant.detach()),
                (learner.log_alpha.detach(), theirs.log_alpha.constant.detach()),
            ],
            twin_pairs(learner.critic, critics),
            twin_pairs(learner.target_critic, (theirs.target_critic_1, theirs.target_critic_2)),
        )

    return Case(learner, update, pairs)


def deep_sac_model() -> models.MLPSACModel:
    return models.MLPSACModel(OBS, ACTIONS, hidden_sizes=(256, 256, 256), log_std_multiplier=1.0)


def cql(checkout: Path) -> Case:
    module = load_module(checkout / "algorithms" / "offline" / "cql.py")
    return conservative(module, module.ContinuousCQL, CQL(deep_sac_model(), learning_rate=RATE), USUAL)


def cal_ql(checkout: Path) -> Case:
    module = load_module(checkout / "algorithms" / "finetune" / "cal_ql.py")
    learner = CalQL(deep_sac_model(), learning_rate=RATE)
    return conservative(module, module.CalQL, learner, (*USUAL, "returns_to_go"))


CASES: dict[str, tuple[str, Callable[[Path], Case]]] = {
    "bc": ("corl", bc),
    "td3": ("td3", td3),
    "td3_bc": ("corl", td3_bc),
    "iql": ("corl", iql),
    "awac": ("corl", awac),
    "cql": ("corl", cql),
    "cal_ql": ("corl", cal_ql),
}
"""Name -> which checkout it needs, and how the two learners are built."""
