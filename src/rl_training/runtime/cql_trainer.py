"""CQL: offline, with a penalty on the values of actions away from the data."""

from __future__ import annotations

from typing import Unpack

from rl_training.algorithms.cql import CQL, CQLConfig
from rl_training.core.train_config import TrainConfig
from rl_training.experiment.training import Recipe, RunOptions
from rl_training.models.mlp_sac import MLPSACModel, SACNetworkConfig
from rl_training.runtime.run import TrainResult
from rl_training.runtime.sources.offline import OfflineFields, offline


class CQLRunConfig(CQLConfig, SACNetworkConfig, OfflineFields):
    """Every setting of a CQL run."""


RECIPE = Recipe(name="cql", learner=CQL, model=MLPSACModel, config=CQLRunConfig, phases=offline)


def train_cql(config: TrainConfig, **options: Unpack[RunOptions]) -> TrainResult:
    """Train CQL; `total_timesteps` counts gradient steps."""
    return RECIPE.run(config, **options)
