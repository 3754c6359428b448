"""Public PyTorch code with a squashed Gaussian: CORL's SAC-N and EDAC, the authors' REDQ, SB3's SAC and TQC.

They add 1e-6 inside the logarithm of the density, ours is exact. What that alone does is shown for SAC-N and
EDAC; else they are given the exact one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import gymnasium
import numpy as np
import torch
from common import (
    ACTIONS,
    BATCH,
    OBS,
    USUAL,
    Case,
    columns,
    give,
    linear_layers,
    linear_pairs,
    load_module,
    own_layers,
    torch_noise,
)
from torch import Tensor, nn
from torch_cases import NO_EPSILON, RATE, WIDE, Batch, Pairs, adam, forget_epsilon

from rl_training import models
from rl_training.algorithms import EDAC, REDQ, SAC, TQC
from rl_training.algorithms.losses import random_subset
from rl_training.models.actors import squashed_sample

QUANTILES = 16
"""A power of two: the levels of sb3-contrib are single-precision numbers, and exact only then."""


@torch.no_grad()
def give_members(net: nn.Module, critics: list[nn.Module]) -> None:
    for member, critic in enumerate(critics):
        give(net, linear_layers(critic), member)


def member_pairs(net: nn.Module, critics: list[nn.Module]) -> Iterator[tuple[Tensor, Tensor]]:
    for member, critic in enumerate(critics):
        yield from linear_pairs(net, linear_layers(critic), member)


class Heads:
    """A policy of theirs whose mean and spread are two layers, where ours is one."""

    def __init__(self, own: nn.Module, hidden: nn.Module, mean: nn.Linear, log_std: nn.Linear) -> None:
        self.own, self.hidden, self.mean, self.log_std = own, hidden, mean, log_std
        layers = self.layers()
        give(own, layers)
        split(layers[-1], mean, log_std)

    def layers(self) -> list[nn.Linear]:
        return [*linear_layers(self.hidden), joined(self.mean, self.log_std)]

    def pairs(self) -> Pairs:
        return linear_pairs(self.own, self.layers())


def ensemble(module: ModuleType, make: Callable[..., Any], eta: float, exact: bool) -> Case:
    """SAC-N or EDAC; `exact` replaces their log-density (1e-6 inside a logarithm) by the exact one."""
    critics = 5
    learner = EDAC(models.MLPEDACModel(OBS, ACTIONS, num_critics=critics), learning_rate=RATE, eta=eta)
    actor = module.Actor(OBS, ACTIONS, 256)
    critic = module.VectorizedCritic(OBS, ACTIONS, 256, critics)
    drawn: list[Tensor] = []

    def exact_forward(state: Tensor, deterministic: bool = False, need_log_prob: bool = False) -> Any:
        hidden = actor.trunk(state)
        return squashed_sample(actor.mu(hidden), actor.log_sigma(hidden).clip(-5, 2), drawn.pop(0))

    if exact:
        actor.forward = exact_forward
    heads = Heads(learner.actor.net, actor.trunk, actor.mu, actor.log_sigma)
    with torch.no_grad():
        vectors = [layer for layer in critic.critic if hasattr(layer, "weight")]
        for (weight, bias), layer in zip(own_layers(learner.critic.net), vectors, strict=True):
            layer.weight.copy_(weight)
            layer.bias.copy_(bias)
    theirs = make(actor, adam(actor), critic, adam(critic), alpha_learning_rate=RATE)
    theirs.log_alpha = theirs.log_alpha.detach().double().requires_grad_(True)
    theirs.alpha_optimizer = torch.optim.Adam([theirs.log_alpha], lr=RATE)

    def update(batch: Batch, noise: Batch) -> None:
        order = (noise["current"], noise["current"], noise["next"])
        drawn.extend(order if exact else ())
        with torch_noise(*(() if exact else order)):
            theirs.update(columns(batch, *USUAL))

    def vector_pairs(ours: Any, other: nn.Module) -> Iterator[tuple[Tensor, Tensor]]:
        layers = [layer for layer in other.critic if hasattr(layer, "weight")]  # type: ignore[union-attr, operator]
        for (weight, bias), layer in zip(own_layers(ours.net), layers, strict=True):
            yield weight.detach(), layer.weight.detach()  # type: ignore[union-attr, operator]
            yield bias.detach(), layer.bias.detach()  # type: ignore[union-attr, operator]

    def pairs() -> Pairs:
        return chain(
            heads.pairs(),
            [(learner.log_alpha.detach(), theirs.log_alpha.detach()[0])],
            vector_pairs(learner.critic, critic),
            vector_pairs(learner.target_critic, theirs.target_critic),
        )

    return Case(learner, update, pairs)


@torch.no_grad()
def joined(first: nn.Linear, second: nn.Linear) -> nn.Linear:
    """Two heads as one layer."""
    both = nn.Linear(first.in_features, first.out_features + second.out_features)
    both.weight.copy_(torch.cat([first.weight, second.weight]))
    both.bias.copy_(torch.cat([first.bias, second.bias]))
    return both


@torch.no_grad()
def split(both: nn.Linear, first: nn.Linear, second: nn.Linear) -> None:
    for name in ("weight", "bias"):
        parts = getattr(both, name).chunk(2)
        for head, part in zip((first, second), parts, strict=True):
            getattr(head, name).copy_(part)


def sac_n(checkout: Path, exact: bool = True) -> Case:
    module = load_module(checkout / "algorithms" / "offline" / "sac_n.py")
    return ensemble(module, module.SACN, 0.0, exact)


def edac(checkout: Path, exact: bool = True) -> Case:
    module = load_module(checkout / "algorithms" / "offline" / "edac.py")
    return ensemble(module, module.EDAC, 1.0, exact)


def redq(checkout: Path) -> Case:
    sys.path.append(str(checkout))
    from redq.algos.redq_sac import REDQSACAgent

    critics, subset_size = 5, 2
    learner = REDQ(
        models.MLPREDQModel(OBS, ACTIONS, num_critics=critics, hidden_sizes=WIDE),
        **{"learning_rate": RATE, "subset_size": subset_size, "policy_delay": 1},
    )
    theirs = REDQSACAgent(
        *("", OBS, ACTIONS, 1.0, torch.device("cpu")),
        **{"hidden_sizes": WIDE, "replay_size": 1, "lr": RATE, "target_entropy": "auto", "utd_ratio": 1},
        **{"num_Q": critics, "num_min": subset_size, "policy_update_delay": 1, "delay_update_steps": -1},
    )
    theirs.alpha = 1.0  # its log starts at 0, and this number follows it from the first step on
    policy = theirs.policy_net
    heads = Heads(learner.actor.net, policy.hidden_layers, policy.last_fc_layer, policy.last_fc_log_std)
    for networks in (theirs.q_net_list, theirs.q_target_net_list):
        give_members(learner.critic.net, networks)
    drawn: list[Tensor] = []

    def exact_forward(obs: Tensor) -> tuple[Any, ...]:
        hidden = obs
        for layer in policy.hidden_layers:
            hidden = layer(hidden).relu()
        mean, log_std = policy.last_fc_layer(hidden), policy.last_fc_log_std(hidden).clamp(-20, 2)
        actions, logprobs = squashed_sample(mean, log_std, drawn.pop(0))
        return actions, mean, log_std, logprobs.unsqueeze(-1), log_std.exp(), mean

    policy.forward = exact_forward

    def update(batch: Batch, noise: Batch) -> None:
        obs, actions, rewards, next_obs, dones = columns(batch, *USUAL)
        theirs.sample_data = lambda _: (obs, next_obs, actions, rewards, dones)
        drawn.extend([noise["next"], noise["current"]])
        chosen = random_subset(noise["subset"], subset_size).numpy()
        with mock.patch.object(np.random, "choice", lambda *_, **__: chosen):
            theirs.train(SimpleNamespace(store=lambda **_: None))

    def pairs() -> Pairs:
        return chain(
            heads.pairs(),
            [(learner.log_alpha.detach(), theirs.log_alpha.detach()[0])],
            member_pairs(learner.critic.net, theirs.q_net_list),
            member_pairs(learner.target_critic.net, theirs.q_target_net_list),
        )

    return Case(learner, update, pairs)


class Shapes(gymnasium.Env[Any, Any]):
    """An environment that is only asked for its spaces."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (OBS,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (ACTIONS,), np.float32)


def stable_baselines(made: Any, learner: SAC, networks: Callable[[Any], list[nn.Module]]) -> Case:
    """SAC or TQC of SB3, which makes observations single-precision numbers unless it is kept from it."""
    from stable_baselines3.common.logger import Logger
    from stable_baselines3.common.type_aliases import ReplayBufferSamples

    made.set_logger(Logger(None, []))
    actor, critic, target = made.actor, made.critic, made.critic_target
    for part in (actor, critic, target):
        part.extract_features = lambda obs, _: obs
    heads = Heads(learner.model.actor.net, actor.latent_pi, actor.mu, actor.log_std)
    for part in (critic, target):
        give_members(learner.critic.net, networks(part))
    drawn: list[Tensor] = []

    def exact(obs: Tensor) -> tuple[Tensor, Tensor]:
        hidden = actor.latent_pi(obs)
        return squashed_sample(actor.mu(hidden), actor.log_std(hidden).clamp(-20, 2), drawn.pop(0))

    actor.action_log_prob = exact

    def update(batch: Batch, noise: Batch) -> None:
        obs, actions, rewards, next_obs, dones = columns(batch, *USUAL)
        rows = ReplayBufferSamples(obs, actions, next_obs, dones, rewards)
        made.replay_buffer.sample = lambda *_, **__: rows
        drawn.extend([noise["current"], noise["next"]])
        made.train(1, BATCH)

    def pairs() -> Pairs:
        return chain(
            heads.pairs(),
            [(learner.log_alpha.detach(), made.log_ent_coef.detach()[0])],
            member_pairs(learner.critic.net, networks(critic)),
            member_pairs(learner.target_critic.net, networks(target)),
        )

    return Case(learner, update, pairs)


def sac(checkout: Path) -> Case:
    """SB3 halves the critics' loss."""
    sys.path.append(str(checkout))
    import stable_baselines3

    learner = SAC(models.MLPSACModel(OBS, ACTIONS, hidden_sizes=WIDE), learning_rate=RATE)
    made = stable_baselines3.SAC("MlpPolicy", Shapes(), learning_rate=RATE, buffer_size=1, device="cpu")
    made.critic.optimizer.param_groups[0]["eps"] = NO_EPSILON
    forget_epsilon(learner, "critic")
    return stable_baselines(made, learner, lambda critic: list(critic.q_networks))


def tqc(checkout: Path) -> Case:
    sys.path.append(str(checkout))
    import sb3_contrib

    sizes = {"num_critics": 2, "num_quantiles": QUANTILES}
    model = models.MLPTQCModel(OBS, ACTIONS, hidden_sizes=WIDE, **sizes)
    learner = TQC(model, learning_rate=RATE, top_quantiles_to_drop_per_net=2)
    policy = {"n_critics": 2, "n_quantiles": QUANTILES}
    made = sb3_contrib.TQC(
        *("MlpPolicy", Shapes()),
        **{"learning_rate": RATE, "buffer_size": 1, "device": "cpu", "policy_kwargs": policy},
    )
    return stable_baselines(made, learner, lambda critic: list(critic.q_networks))


CASES: dict[str, tuple[str, Callable[[Path], Case]]] = {
    "sac": ("sb3", sac),
    "tqc": ("sb3", tqc),
    "redq": ("redq", redq),
    "sac_n": ("corl", sac_n),
    "edac": ("corl", edac),
    "sac_n, their log-density": ("corl", lambda checkout: sac_n(checkout, exact=False)),
    "edac, their log-density": ("corl", lambda checkout: edac(checkout, exact=False)),
}
"""Name -> which checkout it needs, and how the two learners are built."""
