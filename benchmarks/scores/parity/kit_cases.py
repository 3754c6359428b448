"""OfflineRL-Kit's MOPO and MOBILE: rows imagined in its model, penalised by its code, learned from by it.

What is made equal first: units of 1 in our model, its log variances by our bounds, all members in its elite,
its log-density exact, its single-precision numbers double, no clipping of MOBILE's targets at 0. Its Bellman
penalty is of the successors' values alone: members agree on rewards here, and its weight is ours times gamma.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import gymnasium
import numpy as np
import torch
from common import ACTIONS, OBS, Case, Empty, own_layers, torch_noise
from soft_cases import Heads, give_members, member_pairs
from torch import Tensor
from torch_cases import NO_EPSILON, RATE, WIDE, Batch, Pairs, adam, forget_epsilon

from rl_training import models
from rl_training.algorithms import MOBILE, MOPO
from rl_training.algorithms.mopo import ROLLOUT_NOISE, chosen_members
from rl_training.models.actors import squashed_sample
from rl_training.models.dynamics import LOG_STD_RANGE

MEMBERS, MODEL_WIDTHS, SAMPLES, GAMMA = 4, (32, 32), 3, 0.99


class Doubled:
    """A module of theirs calls numpy or torch: its single-precision numbers are double ones."""

    def __init__(self, module: Any, **changed: Any) -> None:
        self.module, self.changed = module, changed

    def __getattr__(self, name: str) -> Any:
        if name in self.changed:
            return self.changed[name]
        return getattr(self.module, "float64" if name == "float32" else name)


def kit(checkout: Path) -> SimpleNamespace:
    """The modules that are compared with."""
    mujoco = Empty("gym.envs.mujoco")
    mujoco.mujoco_env = Empty("mujoco_env")
    unneeded = {"gym": gymnasium, "gym.envs": Empty("gym.envs"), "gym.envs.mujoco": mujoco}
    sys.path.append(str(checkout))
    names = {
        "dynamics": "dynamics.ensemble_dynamics",
        "network": "modules.dynamics_module",
        "sac": "policy.model_free.sac",
        "mopo": "policy.model_based.mopo",
        "mobile": "policy.model_based.mobile",
        "actor": "modules.actor_module",
        "critic": "modules.critic_module",
        "heads": "modules.dist_module",
        "nets": "nets.mlp",
        "scaler": "utils.scaler",
    }
    with mock.patch.dict(sys.modules, unneeded):
        found = {short: importlib.import_module(f"offlinerlkit.{name}") for short, name in names.items()}
    found["dynamics"].np = Doubled(np)
    for short in ("network", "actor", "critic"):
        found[short].torch = Doubled(torch)
    for short in ("sac", "mobile"):
        found[short].torch = Doubled(torch, clamp=lambda values, *_: values)
    low, high = LOG_STD_RANGE
    found["network"].soft_clamp = lambda x, *_: 2.0 * (low + (high - low) * x.sigmoid())
    return SimpleNamespace(**found)


def their_model(code: SimpleNamespace, learner: MOPO, coefficient: float) -> Any:
    """Our kept ensemble as their dynamics, whose steps pay `coefficient` times their aleatoric penalty."""
    network = code.network.EnsembleDynamicsModel(
        *(OBS, ACTIONS, MODEL_WIDTHS),
        **{"num_ensemble": MEMBERS, "num_elites": MEMBERS, "weight_decays": [0.0] * (len(MODEL_WIDTHS) + 1)},
    )
    layers = [*network.backbones, network.output_layer]
    with torch.no_grad():
        for (weight, bias), layer in zip(own_layers(learner.kept_dynamics.net), layers, strict=True):
            layer.weight.copy_(weight)
            layer.bias.copy_(bias)
    scaler = code.scaler.StandardScaler(np.zeros((1, OBS + ACTIONS)), np.ones((1, OBS + ACTIONS)))
    goes_on = lambda obs, action, following: np.zeros((len(obs), 1), dtype=bool)  # noqa: E731
    return code.dynamics.EnsembleDynamics(network, None, scaler, goes_on, penalty_coef=coefficient)


def built(
    kind: type[MOPO], code: SimpleNamespace
) -> tuple[MOPO, dict[str, Any], Heads, list[Any], list[Tensor]]:
    """Our learner, in its second stage, and their actor and critics with its weights."""
    sizes = {"hidden_sizes": WIDE, "model_hidden_sizes": MODEL_WIDTHS, "members": MEMBERS}
    model = models.MLPModelBasedSACModel(OBS, ACTIONS, **sizes)
    with torch.no_grad():
        out = model.dynamics.net.output
        out.weight[..., OBS], out.bias[..., OBS] = 0.0, 0.3  # members agree on the mean reward
        model.dynamics.has_ends.zero_()
    settings = {"penalty_samples": SAMPLES, "horizon": 3, "imagined_share": 0.75, "penalty_coef": 0.7}
    learner = kind(model, learning_rate=RATE, gamma=GAMMA, model_updates=1, **settings)
    learner.updates = 1

    def body(inputs: int) -> Any:
        return code.nets.MLP(inputs, WIDE)

    head = code.heads.TanhDiagGaussian(WIDE[-1], ACTIONS, unbounded=True, conditioned_sigma=True)
    actor = code.actor.ActorProb(body(OBS), head)
    critics = [code.critic.Critic(body(OBS + ACTIONS)) for _ in range(2)]
    heads = Heads(learner.actor.net, actor.backbone, head.mu, head.sigma)
    give_members(learner.critic.net, critics)
    log_alpha = torch.zeros(1, requires_grad=True)
    shared = {
        "actor": actor,
        "actor_optim": adam(actor),
        "gamma": GAMMA,
        "alpha": (-float(ACTIONS), log_alpha, torch.optim.Adam([log_alpha], lr=RATE)),
    }
    return learner, shared, heads, critics, [log_alpha]


def exact_actions(policy: Any, drawn: list[Tensor]) -> None:
    """Their policy with the exact log-density, and with our noise."""

    def actforward(obs: Any, deterministic: bool = False) -> tuple[Tensor, Tensor]:
        hidden = policy.actor.backbone(torch.as_tensor(obs))
        head = policy.actor.dist_net
        actions, logprobs = squashed_sample(head.mu(hidden), head.sigma(hidden).clamp(-5, 2), drawn.pop(0))
        return actions, logprobs.unsqueeze(-1)

    policy.actforward = actforward


def their_rows(
    learner: MOPO, policy: Any, batch: Batch, noise: Batch, drawn: list[Tensor]
) -> dict[str, Tensor]:
    """The rows that their policy and model imagine from the states that ours begins at."""
    count = learner.imagined_rows(len(batch["rewards"]))
    obs = batch["obs"][-learner.starts(count) :].numpy()
    steps = []
    for index in range(learner.config.horizon):
        member, action, change = (noise[f"rollout_{name}"][index] for name in ROLLOUT_NOISE)
        drawn.append(action)
        actions = policy.select_action(obs)
        choice = chosen_members(member, MEMBERS).argmax(0).numpy()
        scatter = np.broadcast_to(change.numpy(), (MEMBERS, *change.shape))
        with (
            mock.patch.object(np.random, "normal", lambda size, scatter=scatter: scatter),
            mock.patch.object(policy.dynamics.model, "random_elite_idxs", lambda _, choice=choice: choice),
        ):
            following, reward, ended, _ = policy.dynamics.step(obs, actions)
        steps.append((obs, actions, following, reward, ended))
        obs = following
    whole = [torch.from_numpy(np.concatenate(parts)[:count]).double() for parts in zip(*steps, strict=True)]
    return dict(zip(NAMES, whole, strict=True))


NAMES = ("observations", "actions", "next_observations", "rewards", "terminals")


def logged_rows(learner: MOPO, batch: Batch) -> dict[str, Tensor]:
    kept = len(batch["rewards"]) - learner.imagined_rows(len(batch["rewards"]))
    fields = {
        "observations": batch["obs"],
        "actions": batch["actions"],
        "next_observations": batch["next_obs"],
        "rewards": batch["rewards"].unsqueeze(-1),
        "terminals": batch["dones"].unsqueeze(-1),
    }
    return {name: values[:kept] for name, values in fields.items()}


def mopo(checkout: Path) -> Case:
    code = kit(checkout)
    learner, shared, heads, critics, logs = built(MOPO, code)
    theirs = code.mopo.MOPOPolicy(
        their_model(code, learner, learner.config.penalty_coef),
        critic1=critics[0],
        critic2=critics[1],
        critic1_optim=adam(critics[0]),
        critic2_optim=adam(critics[1]),
        **shared,
    )
    drawn: list[Tensor] = []
    exact_actions(theirs, drawn)

    def update(batch: Batch, noise: Batch) -> None:
        fake = their_rows(learner, theirs, batch, noise, drawn)
        drawn.extend([noise["next"], noise["current"]])
        theirs.learn({"real": logged_rows(learner, batch), "fake": fake})

    return Case(
        learner, update, pairs_of(learner, heads, logs, critics, [theirs.critic1_old, theirs.critic2_old])
    )


def mobile(checkout: Path) -> Case:
    code = kit(checkout)
    learner, shared, heads, critics, logs = built(MOBILE, code)
    together = torch.nn.ModuleList(critics)
    forget_epsilon(learner, "critic")  # theirs takes the mean over critics
    theirs = code.mobile.MOBILEPolicy(
        their_model(code, learner, 0.0),
        critics=together,
        critics_optim=adam(together, NO_EPSILON),
        penalty_coef=learner.config.penalty_coef * GAMMA,
        num_samples=SAMPLES,
        deterministic_backup=True,
        **shared,
    )
    drawn: list[Tensor] = []
    exact_actions(theirs, drawn)

    def update(batch: Batch, noise: Batch) -> None:
        fake = their_rows(learner, theirs, batch, noise, drawn)
        logged = len(batch["rewards"]) - len(fake["rewards"])
        # theirs asks for all rows and forgets the logged ones; rewards are drawn and not used
        states = padded(noise["penalty_state"], logged, 1)
        drawn.extend(
            [padded(noise["penalty_action"], logged, 0).flatten(0, 2), noise["next"], noise["current"]]
        )
        with torch_noise(*states):
            theirs.learn({"real": logged_rows(learner, batch), "fake": fake})

    return Case(learner, update, pairs_of(learner, heads, logs, critics, list(theirs.critics_old)))


def padded(noise: Tensor, rows: int, columns: int) -> Tensor:
    """Our `[members, samples * rows, K]` as theirs, `[samples, members, all rows, more columns]`."""
    apart = noise.unflatten(1, (SAMPLES, -1)).movedim(1, 0)  # type: ignore[no-untyped-call]
    return torch.nn.functional.pad(apart, (0, columns, rows, 0))


def pairs_of(
    learner: MOPO, heads: Heads, logs: list[Tensor], critics: list[Any], targets: list[Any]
) -> Callable[[], Pairs]:
    return lambda: chain(
        heads.pairs(),
        [(learner.log_alpha.detach(), logs[0].detach()[0])],
        member_pairs(learner.critic.net, critics),
        member_pairs(learner.target_critic.net, targets),
    )


CASES: dict[str, tuple[str, Callable[[Path], Case]]] = {"mopo": ("kit", mopo), "mobile": ("kit", mobile)}
"""Name -> which checkout it needs, and how the two learners are built."""
