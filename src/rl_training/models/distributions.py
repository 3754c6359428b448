"""Densities of the policies, written once. The last axis is the action; results have it summed away."""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor

HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)
LOG_TWO = math.log(2.0)

ACTION_LIMIT = 1.0 - 1e-6
"""Largest |a| whose atanh is useful in float32; atanh(1) is infinite."""


def log_tanh_derivative(pre_tanh: Tensor) -> Tensor:
    """log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2u)): exact where the policy saturates."""
    return 2.0 * (LOG_TWO - pre_tanh - F.softplus(-2.0 * pre_tanh))


def gaussian_log_prob(values: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """log N(x; mean, std), summed over the action axis."""
    standard = (values - mean) * (-log_std).exp()
    return (-0.5 * standard.square() - log_std - HALF_LOG_TWO_PI).sum(-1)


def squashed_sample(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """a = tanh(u), u = mean + std * noise, with log pi(a) from the u at hand (SAC, appendix C).

    Recovering u by atanh(a) would cap it near 7.25 and corrupt the density of a saturated policy.
    """
    pre_tanh = mean + log_std.exp() * noise
    log_prob = -0.5 * noise.square() - log_std - HALF_LOG_TWO_PI - log_tanh_derivative(pre_tanh)
    return pre_tanh.tanh(), log_prob.sum(-1)


def squashed_log_prob(actions: Tensor, mean: Tensor, log_std: Tensor, limit: float = ACTION_LIMIT) -> Tensor:
    """log pi of logged actions under tanh(N(mean, std)); actions are clipped to +-limit first."""
    pre_tanh = actions.clamp(-limit, limit).atanh()
    return gaussian_log_prob(pre_tanh, mean, log_std) - log_tanh_derivative(pre_tanh).sum(-1)
