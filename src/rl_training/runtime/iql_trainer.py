"""IQL: offline, with values of logged actions only."""

from __future__ import annotations

from typing import Unpack

from rl_training.algorithms.iql import IQL, IQLConfig
from rl_training.core.train_config import TrainConfig
from rl_training.experiment.training import Recipe, RunOptions
from rl_training.models.mlp_iql import IQLNetworkConfig, MLPIQLModel
from rl_training.runtime.run import TrainResult
from rl_training.runtime.sources.offline import OfflineFields, offline


class IQLRunConfig(IQLConfig, IQLNetworkConfig, OfflineFields):
    """Every setting of an IQL run."""


RECIPE = Recipe(name="iql", learner=IQL, model=MLPIQLModel, config=IQLRunConfig, phases=offline)


def train_iql(config: TrainConfig, **options: Unpack[RunOptions]) -> TrainResult:
    """Train IQL; `total_timesteps` counts gradient steps."""
    return RECIPE.run(config, **options)
