"""d3rlpy's DiscreteCQL and DoubleDQN and Stable-Baselines3's DQN: equal weights and batches of choices."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from common import BATCH, OBS, USUAL, Case, columns, give, linear_layers, linear_pairs, real_modules
from torch import Tensor
from torch_cases import RATE, WIDE, Batch, Pairs

from rl_training import models
from rl_training.algorithms import DQN, DiscreteCQL
from rl_training.core.spaces import Choice, Spaces

LEVELS = 5
COPIED = 20
"""Updates between two copies of the target."""
SPACES = Spaces.of(OBS, [Choice(tuple(map(float, range(LEVELS))))])


def learner_of(kind: type[DQN], **keywords: Any) -> DQN:
    model = models.MLPDQNModel(OBS, LEVELS, spaces=SPACES, hidden_sizes=WIDE)
    how: dict[str, Any] = {"target_update": "hard", "target_update_interval": COPIED}
    return kind(model, learning_rate=RATE, **how, **keywords)


class Chosen:
    """Batches whose actions are levels: the largest of the numbers that a batch of ours holds."""

    def __init__(self, learner: DQN) -> None:
        self.learner, self.plain = learner, learner.step
        learner.step = self.step  # type: ignore[method-assign]  # what `compare` calls

    @staticmethod
    def places(batch: Batch) -> Tensor:
        return ((batch["actions"].sum(-1) * 1000).long() % LEVELS).abs()

    def step(self, batch: Batch, noise: Batch, stage: str) -> dict[str, Tensor]:
        actions = 2.0 * torch.nn.functional.one_hot(self.places(batch), LEVELS).double() - 1.0
        told = self.plain({**batch, "actions": actions}, noise, stage)
        if (self.learner.updates + 1) % COPIED == 0:
            self.learner.update_target("critic", self.learner.critic, 1.0)
        return told


def d3rlpy_case(name: str) -> Callable[[Path], Case]:
    def build(checkout: Path) -> Case:
        sys.path.append(str(checkout))
        with real_modules():
            import d3rlpy
            from d3rlpy.torch_utility import TorchMiniBatch
        conservative = name == "DiscreteCQLConfig"
        weight = {"alpha": 2.0} if conservative else {}
        config = getattr(d3rlpy.algos, name)(learning_rate=RATE, target_update_interval=COPIED, **weight)
        algo = config.create(device="cpu:0")
        algo.create_impl((OBS,), LEVELS)
        theirs, parts = algo.impl, algo.impl._modules
        learner = learner_of(DiscreteCQL, cql_alpha=2.0) if conservative else learner_of(DQN)
        chosen = Chosen(learner)
        own, target = linear_layers(parts.q_funcs[0]), linear_layers(parts.targ_q_funcs[0])
        for net, layers in ((learner.critic.net, own), (learner.target_critic.net, target)):
            give(net, layers)

        def update(batch: Batch, noise: Batch) -> None:
            obs, _, rewards, next_obs, dones = columns(batch, *USUAL)
            rows = TorchMiniBatch(
                observations=obs,
                actions=chosen.places(batch).unsqueeze(-1).double(),
                rewards=rewards,
                next_observations=next_obs,
                next_actions=torch.zeros_like(rewards),
                returns_to_go=rewards,
                terminals=dones,
                intervals=torch.ones_like(rewards),
                device="cpu:0",
            )
            theirs.inner_update(rows, learner.updates + 1)

        def pairs() -> Pairs:
            yield from linear_pairs(learner.critic.net, own)
            yield from linear_pairs(learner.target_critic.net, target)

        return Case(learner, update, pairs)

    return build


def sb3_dqn(checkout: Path) -> Case:
    sys.path.append(str(checkout))
    with real_modules():
        from stable_baselines3 import DQN as TheirDQN
        from stable_baselines3.common import policies
    policies.preprocess_obs = lambda obs, *_, **__: obs  # theirs makes single precision of them

    class Box(gymnasium.Env[Any, Any]):
        observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (OBS,))
        action_space = gymnasium.spaces.Discrete(LEVELS)

    theirs = TheirDQN(
        "MlpPolicy",
        Box(),
        learning_rate=RATE,
        gamma=0.99,
        batch_size=BATCH,
        max_grad_norm=1e12,
        policy_kwargs={"net_arch": list(WIDE)},
        device="cpu",
    )
    policy = theirs.policy.double()
    learner = learner_of(DQN, double=False)
    chosen = Chosen(learner)
    own, target = linear_layers(policy.q_net.q_net), linear_layers(policy.q_net_target.q_net)
    for net, layers in ((learner.critic.net, own), (learner.target_critic.net, target)):
        give(net, layers)
    theirs._logger = _Silent()
    rows: dict[str, Tensor] = {}
    theirs.replay_buffer = _Buffer(rows)

    def update(batch: Batch, noise: Batch) -> None:
        obs, _, rewards, next_obs, dones = columns(batch, *USUAL)
        rows.update(obs=obs, rewards=rewards, next_obs=next_obs, dones=dones)
        rows["actions"] = chosen.places(batch).unsqueeze(-1)
        theirs.train(gradient_steps=1, batch_size=BATCH)
        if (learner.updates + 1) % COPIED == 0:
            policy.q_net_target.load_state_dict(copy.deepcopy(policy.q_net.state_dict()))

    def pairs() -> Pairs:
        yield from linear_pairs(learner.critic.net, own)
        yield from linear_pairs(learner.target_critic.net, target)

    return Case(learner, update, pairs)


class _Silent:
    def record(self, *_: Any, **__: Any) -> None:
        """Stable-Baselines3 logs after an update."""


class _Buffer:
    """Gives the batch at hand."""

    def __init__(self, rows: dict[str, Tensor]) -> None:
        self.rows = rows

    def sample(self, batch_size: int, env: Any = None) -> Any:
        from types import SimpleNamespace

        rows = self.rows
        return SimpleNamespace(
            observations=rows["obs"],
            actions=rows["actions"],
            rewards=rows["rewards"],
            next_observations=rows["next_obs"],
            dones=rows["dones"],
            discounts=None,
        )


CASES: dict[str, tuple[str, Callable[[Path], Case]]] = {
    "discrete_cql": ("d3rlpy", d3rlpy_case("DiscreteCQLConfig")),
    "double_dqn": ("d3rlpy", d3rlpy_case("DoubleDQNConfig")),
    "dqn": ("sb3", sb3_dqn),
}
