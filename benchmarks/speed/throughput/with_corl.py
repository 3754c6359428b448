"""Worker side of CORL (tinkoff-ai/CORL): its own classes and update, with networks as large as ours.

Its scripts fix the sizes of some networks (AWAC, CQL and EDAC have three hidden layers); here all have two.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from batches import Arrays, endless
from checkouts import load_script
from protocol import ACTION_DIM, OBS_DIM, Meter, Spec
from torch import nn

UNITS = {"td3_bc": 2}
"""Updates after which the pattern repeats: the delayed actor."""


def network(inputs: int, outputs: int, width: int, *last: nn.Module) -> nn.Sequential:
    layers = [nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, outputs), *last)


def adam(module: nn.Module) -> torch.optim.Adam:
    return torch.optim.Adam(module.parameters(), lr=3e-4)


def twins(make: Any, attribute: str, width: int) -> dict[str, Any]:
    """Two critics with their optimisers, under the names that CORL's classes take."""
    parts: dict[str, Any] = {}
    for name in ("critic_1", "critic_2"):
        critic = make()
        setattr(critic, attribute, network(OBS_DIM + ACTION_DIM, 1, width))
        parts |= {name: critic, f"{name}_optimizer": adam(critic)}
    return parts


def td3_bc(script: ModuleType, width: int) -> Any:
    actor = script.Actor(OBS_DIM, ACTION_DIM, 1.0)
    actor.net = network(OBS_DIM, ACTION_DIM, width, nn.Tanh())
    critics = twins(lambda: script.Critic(OBS_DIM, ACTION_DIM), "net", width)
    return script.TD3_BC(max_action=1.0, actor=actor, actor_optimizer=adam(actor), **critics).train


def iql(script: ModuleType, width: int) -> Any:
    sizes = {"hidden_dim": width, "n_hidden": 2}
    actor = script.GaussianPolicy(OBS_DIM, ACTION_DIM, 1.0, **sizes)
    critics, value = script.TwinQ(OBS_DIM, ACTION_DIM, **sizes), script.ValueFunction(OBS_DIM, **sizes)
    return script.ImplicitQLearning(
        max_action=1.0,
        actor=actor,
        actor_optimizer=adam(actor),
        q_network=critics,
        q_optimizer=adam(critics),
        v_network=value,
        v_optimizer=adam(value),
    ).train


def awac(script: ModuleType, width: int) -> Any:
    actor = script.Actor(OBS_DIM, ACTION_DIM, width)
    actor._mlp = network(OBS_DIM, ACTION_DIM, width)
    critics = twins(lambda: script.Critic(OBS_DIM, ACTION_DIM, width), "_mlp", width)
    return script.AdvantageWeightedActorCritic(actor=actor, actor_optimizer=adam(actor), **critics).update


def cql(script: ModuleType, width: int) -> Any:
    actor = script.TanhGaussianPolicy(OBS_DIM, ACTION_DIM, 1.0)
    actor.base_network = network(OBS_DIM, 2 * ACTION_DIM, width)
    critics = twins(lambda: script.FullyConnectedQFunction(OBS_DIM, ACTION_DIM), "network", width)
    return script.ContinuousCQL(
        actor=actor,
        actor_optimizer=adam(actor),
        target_entropy=-float(ACTION_DIM),
        backup_entropy=True,
        bc_steps=0,
        **critics,
    ).train


def edac(script: ModuleType, width: int) -> Any:
    actor = script.Actor(OBS_DIM, ACTION_DIM, width)
    actor.trunk = actor.trunk[:4]
    critic = script.VectorizedCritic(OBS_DIM, ACTION_DIM, width, 10)
    critic.critic = nn.Sequential(*critic.critic[:4], critic.critic[-1])
    return script.EDAC(actor, adam(actor), critic, adam(critic), eta=1.0, alpha_learning_rate=3e-4).update


MAKE = {"td3_bc": td3_bc, "iql": iql, "awac": awac, "cql": cql, "edac": edac}


def to_list(batch: Arrays) -> list[torch.Tensor]:
    """As its replay buffer gives them: rewards and ends as columns."""
    tensors = {name: torch.from_numpy(values) for name, values in batch.items()}
    columns = {name: tensors[name].unsqueeze(-1) for name in ("rewards", "dones")}
    return [tensors["obs"], tensors["actions"], columns["rewards"], tensors["next_obs"], columns["dones"]]


def updates(spec: Spec) -> None:
    torch.set_num_threads(spec.threads)
    script = load_script(spec.checkout, f"algorithms/offline/{spec.algo}.py")
    update = MAKE[spec.algo](script, spec.hidden)
    batches = endless(spec, to_list)
    unit = UNITS.get(spec.algo, 1)

    def several() -> None:
        for _ in range(unit):
            update(next(batches))

    Meter(unit=unit).repeat(several)


KINDS = {"update": updates}
