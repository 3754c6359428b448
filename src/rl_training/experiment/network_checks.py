"""What a network from outside cannot do, said before it is trained."""

from __future__ import annotations

import warnings

import torch

from rl_training.algorithms.learner import Learner
from rl_training.algorithms.stacking import stack_learners
from rl_training.core.errors import ConfigError
from rl_training.models.networks import NETWORKS
from rl_training.policies.tracing import export_problem


def check_network(learner: Learner, *, stacked: bool) -> None:
    """What a network of somebody else cannot do is said before it is trained, not after."""
    network = learner.model.actor.net.plan.network
    if NETWORKS.package_of(network) is None:
        return
    if stacked and not stacks(learner):
        raise ConfigError(
            f"network {network!r} cannot be stacked, its numbers mix seeds: train the seeds one by one, or "
            "build its layers with self.layer"
        )
    problem = export_problem(learner.policy)
    if problem is not None:
        warnings.warn(f"{problem}; the policy will act from its checkpoints only", stacklevel=2)


def stacks(learner: Learner) -> bool:
    """Whether two copies of a learner's actor, stacked, act as each does alone."""
    actor = learner.model.actor
    obs = torch.linspace(-1.0, 1.0, 5 * actor.obs_dim, device=learner.device).reshape(5, actor.obs_dim)
    pair = stack_learners([learner, learner]).model.actor
    with torch.no_grad():
        alone = actor.mode(obs)
        try:
            together = pair.mode(torch.stack([obs, obs]))
        except RuntimeError:
            return False
    return together.shape == (2, *alone.shape) and torch.allclose(together[1], alone, atol=1e-5)
