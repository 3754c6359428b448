"""Cal-QL: CQL on data whose returns-to-go bound the penalty; they are derived from the processed rewards."""

from __future__ import annotations

from typing import Unpack

from rl_training.algorithms.cal_ql import CalQL, CalQLConfig
from rl_training.core.train_config import TrainConfig
from rl_training.experiment.training import Recipe, RunOptions
from rl_training.models.mlp_sac import MLPSACModel, SACNetworkConfig
from rl_training.runtime.run import TrainResult
from rl_training.runtime.sources.offline import OfflineFields, offline


class CalQLRunConfig(CalQLConfig, SACNetworkConfig, OfflineFields):
    """Every setting of a Cal-QL run."""


RECIPE = Recipe(name="cal_ql", learner=CalQL, model=MLPSACModel, config=CalQLRunConfig, phases=offline)


def train_cal_ql(config: TrainConfig, **options: Unpack[RunOptions]) -> TrainResult:
    """Train Cal-QL; `total_timesteps` counts gradient steps."""
    return RECIPE.run(config, **options)
