"""Conservative Q-learning for choices (Kumar et al. 2020, arXiv:2006.04779, eq. 4 with few actions)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rl_training.algorithms.dqn import DQN, DQNConfig, OneNetworkFields, dqn_loss
from rl_training.algorithms.learner import MetricTensors
from rl_training.algorithms.recipe import Recipe
from rl_training.config import setting
from rl_training.config.data import OfflineFields
from rl_training.models.models import DQNNetworkConfig, MLPDQNModel


class DiscreteCQLConfig(DQNConfig):
    """Keywords of discrete CQL."""

    cql_alpha: float = setting(1.0, "weight of the conservative term; 0 is double DQN", ge=0)
    cql_alpha_online: float | None = setting(
        None,
        "weight of the conservative term in an online phase; 0 leaves it out (dqn); none: cql_alpha",
        ge=0,
    )
    epsilon_start: float = setting(0.05, "share of random actions at the first update", ge=0, le=1)


class DiscreteCQL(DQN):
    """DQN that keeps the values of levels down which the log did not take."""

    config_class = DiscreteCQLConfig
    config: DiscreteCQLConfig

    @property
    def weight(self) -> float:
        """Of the conservative term, by now."""
        online = self.config.cql_alpha_online
        return self.config.cql_alpha if online is None or not self.online else online

    def penalised(self, loss: Tensor, values: Tensor, q: Tensor) -> tuple[Tensor, MetricTensors]:
        penalty = conservative_penalty(values, q).sum(-1)
        return loss + self.weight * penalty, {"cql_penalty": penalty.detach()}


def conservative_penalty(values: Tensor, q: Tensor) -> Tensor:
    """mean logsumexp Q(s, .) - Q(s, a): `[*S, E, B, K]`, `[*S, E, B]` -> `[*S, E]`."""
    return (torch.logsumexp(values, dim=-1) - q).mean(-1)


def discrete_cql_loss(inputs: Mapping[str, Any]) -> dict[str, Tensor]:
    """From what `dqn_loss` takes, and `cql_alpha`; `loss` is what is minimised."""
    values, places = inputs["q_values"], inputs["actions"]
    q = values.gather(-1, places.unsqueeze(-1)).squeeze(-1)
    penalty = conservative_penalty(values, q)
    found = dqn_loss(inputs)
    loss = found["critic_loss"] + inputs["cql_alpha"] * penalty
    return found | {"cql_penalty": penalty, "loss": loss}


class DiscreteCQLRunConfig(DiscreteCQLConfig, DQNNetworkConfig, OneNetworkFields, OfflineFields):
    """Every setting of a run of discrete CQL."""


RECIPE = Recipe(
    "discrete_cql",
    DiscreteCQL,
    MLPDQNModel,
    DiscreteCQLRunConfig,
    title="Conservative Q-learning for choices",
    papers=("2006.04779",),
)
