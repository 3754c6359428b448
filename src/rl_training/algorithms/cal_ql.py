"""Calibrated Q-Learning (Nakamoto et al. 2023, arXiv:2303.05479): CQL that stops at the data's returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Self

import torch
from pydantic import model_validator
from torch import Tensor

from rl_training.algorithms import conservative
from rl_training.algorithms.cql import CQL, CQLConfig, CQLRunConfig, cql_loss
from rl_training.algorithms.learner import Batch, MetricTensors
from rl_training.algorithms.recipe import Recipe
from rl_training.models.models import MLPSACModel


class CalQLConfig(CQLConfig):
    """Keywords of Cal-QL: those of CQL."""

    @model_validator(mode="after")
    def _a_policy_is_calibrated(self) -> Self:
        if self.action_sources == ("uniform",):
            raise ValueError("action_sources must name current or next (what is calibrated), got ['uniform']")
        return self


class CalQL(CQL):
    """CQL in which the values of the policy's actions count as at least the return that the data reached.

    Nothing else differs: uniform and data actions, Bellman target, actor and temperature are CQL's.
    """

    config_class = CalQLConfig
    config: CalQLConfig
    needs: ClassVar[frozenset[str]] = frozenset({"returns_to_go"})

    def online_needs(self) -> frozenset[str]:
        return frozenset() if self.config.cql_alpha_online == 0 else self.needs

    def calibrate(self, q_drawn: Tensor, batch: Batch) -> tuple[Tensor, MetricTensors]:
        """Floor the policy's columns (the uniform ones come first) at the return-to-go of the state."""
        returns = batch["returns_to_go"].unsqueeze(-2)
        uniform, policy = q_drawn[..., : self.num_uniform], q_drawn[..., self.num_uniform :]
        calibrated = conservative.floored(policy, returns)
        means = calibrated.detach().mean((-2, -1))
        metrics = {f"calibrated_q{i + 1}_mean": mean for i, mean in enumerate(means.unbind(-1))}
        metrics["calibration_rate"] = (policy < returns.unsqueeze(-1)).to(q_drawn.dtype).mean((-3, -2, -1))
        metrics["returns_to_go_mean"] = batch["returns_to_go"].mean(-1)
        return torch.cat([uniform, calibrated], -1), metrics


def cal_ql_loss(inputs: Mapping[str, Tensor | float]) -> dict[str, Tensor]:
    """From the inputs of `cql_loss` and `calibrated_q1 calibrated_q2 returns_to_go`."""
    means = {
        f"{name}_mean": torch.as_tensor(inputs[name]).mean()
        for name in ("calibrated_q1", "calibrated_q2", "returns_to_go")
    }
    return cql_loss(inputs) | means


class CalQLRunConfig(CalQLConfig, CQLRunConfig):
    """Every setting of a Cal-QL run."""


RECIPE = Recipe(
    "cal_ql", CalQL, MLPSACModel, CalQLRunConfig, title="Calibrated Q-learning", papers=("2303.05479",)
)
