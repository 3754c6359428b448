"""From a live policy to its graph: find the actor that acts, and take its numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.algorithms.learner import Learner
from rl_training.core.errors import UserError
from rl_training.core.spaces import FloatArray
from rl_training.core.streams import torch_generator
from rl_training.models.deterministic import DeterministicTanh
from rl_training.models.gaussian_policies import TanhMeanGaussian, UnboundedGaussian
from rl_training.models.layers import Linear
from rl_training.models.policies import LOG_STD_RANGE, SquashedGaussian
from rl_training.policies.graph import Layer, PolicyGraph, Spread
from rl_training.policies.policy import Policy

PROBES = 64


def policy_graph(policy: Policy, *, distribution: bool = False) -> PolicyGraph:
    """The graph of what `policy.predict` computes; with its mean and log std where asked for."""
    learner = policy.learner
    actor: Any = acting_actor(learner)
    head, output, spread = split_head(actor)
    if distribution:
        check_distribution(learner, spread)
    normalizer = policy.normalizer
    return PolicyGraph(
        spaces=policy.spaces,
        head=head,
        hidden=tuple(as_layer(layer) for layer in actor.net.hidden),
        output=output,
        obs_mean=None if normalizer is None else as_vector(normalizer.mean),
        obs_scale=None if normalizer is None else as_vector(normalizer.std + normalizer.epsilon),
        spread=spread if distribution else None,
    )


@torch.no_grad()
def acting_actor(learner: Learner) -> nn.Module:
    """The actor behind `act` of a policy's learner: the model's, or a target copy of it (CRR acts with its).

    Found by what it does, not by name: the one whose mode is what the learner does on probe observations.
    """
    shape = (PROBES, learner.model.obs_dim)
    generator = torch_generator(0, "probe", device=learner.device)
    obs = torch.randn(shape, generator=generator, device=learner.device, dtype=torch.float64)
    wanted = learner.act(obs)
    for candidate in (learner.model.actor, *learner.targets.values()):
        if not isinstance(candidate, DeterministicTanh | SquashedGaussian | UnboundedGaussian):
            continue
        if not candidate.net.norms and torch.equal(candidate.mode(obs), wanted):
            return candidate
    raise UserError(
        f"{type(learner).__name__} has no deterministic head that can be exported: it acts with "
        f"{type(learner.model.actor).__name__}; exportable are tanh and Gaussian actors on plain layers"
    )


@torch.no_grad()
def split_head(actor: nn.Module) -> tuple[str, Layer, Spread | None]:
    """Kind of head, the layer of the action's mean, and that of the log std."""
    if isinstance(actor, DeterministicTanh):
        return "deterministic", as_layer(actor.net.output), None
    if isinstance(actor, SquashedGaussian):
        return "squashed", *split_squashed(actor)
    assert isinstance(actor, UnboundedGaussian)
    mean = as_layer(actor.net.output)
    free = Layer(np.zeros_like(mean.weight), as_vector(actor.log_std()))
    head = "tanh_mean" if isinstance(actor, TanhMeanGaussian) else "unbounded"
    return head, mean, Spread(free, *actor.log_std_range)


def split_squashed(actor: SquashedGaussian) -> tuple[Layer, Spread]:
    """Both halves of the last layer; the learned scale and shift of the log std are folded into its half."""
    output: Linear = actor.net.output
    weights, biases = output.weight.chunk(2, dim=-1), output.bias.chunk(2, dim=-1)
    scale, shift = torch.ones(()), torch.zeros(())
    if actor.log_std_affine:
        scale, shift = actor.log_std_multiplier.squeeze(), actor.log_std_offset.squeeze()
    mean = Layer(as_matrix(weights[0]), as_vector(biases[0]))
    spread = Layer(as_matrix(weights[1] * scale), as_vector(biases[1] * scale + shift))
    return mean, Spread(spread, *LOG_STD_RANGE)


def check_distribution(learner: Learner, spread: Spread | None) -> None:
    name = type(learner).__name__
    if spread is None:
        raise UserError(f"distribution must be off: this {name} policy is deterministic, it has no log_std")
    if learner.act_noise_size != learner.model.action_dim:
        raise UserError(
            f"distribution must be off: this {name} draws actions with its critic, not from one Gaussian"
        )


def as_layer(linear: nn.Module) -> Layer:
    assert isinstance(linear, Linear)
    return Layer(as_matrix(linear.weight), as_vector(linear.bias))


def as_matrix(values: Tensor) -> FloatArray:
    return np.ascontiguousarray(values.detach().cpu().numpy(), dtype=np.float32)


def as_vector(values: Tensor) -> FloatArray:
    return as_matrix(values).reshape(-1)
