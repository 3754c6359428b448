"""d3rlpy's CRR, brought to ours: one critic, a squashed Gaussian, and acme's order of the two gradients.

d3rlpy's policy is a Gaussian around a tanh mean. Its own squashed one, of its SAC, is put in that place.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import torch
from common import ACTIONS, OBS, USUAL, Case, columns, linear_pairs, real_modules, torch_noise
from soft_cases import Heads, give_members, member_pairs
from torch_cases import RATE, WIDE, Batch, Pairs

from rl_training import models
from rl_training.algorithms import CRR


def crr(checkout: Path) -> Case:
    sys.path.append(str(checkout))
    with real_modules():
        import d3rlpy
        from d3rlpy.algos.qlearning.torch import crr_impl
        from d3rlpy.models.torch.policies import build_squashed_gaussian_distribution
        from d3rlpy.torch_utility import TorchMiniBatch
    crr_impl.build_gaussian_distribution = build_squashed_gaussian_distribution
    rates = {"actor_learning_rate": RATE, "critic_learning_rate": RATE}
    config = d3rlpy.algos.CRRConfig(
        n_critics=1, advantage_type="mean", weight_type="exp", target_update_type="soft", **rates
    )
    algo = config.create(device="cpu:0")
    algo.create_impl((OBS,), ACTIONS)
    theirs, parts = algo.impl, algo.impl._modules
    learner = CRR(
        models.MLPSACModel(OBS, ACTIONS, hidden_sizes=WIDE, num_critics=1),
        learning_rate=RATE,
        target_update="soft",
    )
    heads = [
        Heads(learner.actor.net, p._encoder, p._mu, p._logstd) for p in (parts.policy, parts.targ_policy)
    ]
    for critics in (parts.q_funcs, parts.targ_q_funcs):
        give_members(learner.critic.net, list(critics))

    def update(batch: Batch, noise: Batch) -> None:
        obs, actions, rewards, next_obs, dones = columns(batch, *USUAL)
        rows = TorchMiniBatch(
            observations=obs,
            actions=actions,
            rewards=rewards,
            next_observations=next_obs,
            next_actions=actions,
            returns_to_go=rewards,
            terminals=dones,
            intervals=torch.ones_like(rewards),
            device="cpu:0",
        )
        with torch_noise(noise["next"], noise["current"].transpose(0, 1)):
            theirs.compute_critic_grad(rows)
            theirs.compute_actor_grad(rows)  # before the critic's step, as acme
        parts.critic_optim.step()
        parts.actor_optim.step()
        theirs.update_critic_target()
        theirs.update_actor_target()

    def pairs() -> Pairs:
        return chain(
            heads[0].pairs(),
            linear_pairs(learner.target_actor.net, heads[1].layers()),
            member_pairs(learner.critic.net, list(parts.q_funcs)),
            member_pairs(learner.target_critic.net, list(parts.targ_q_funcs)),
        )

    return Case(learner, update, pairs)


CASES: dict[str, tuple[str, Callable[[Path], Case]]] = {"crr": ("d3rlpy", crr)}
