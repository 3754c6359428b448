"""AWAC: offline, imitation weighted by the advantage over the policy itself."""

from __future__ import annotations

from typing import Unpack

from rl_training.algorithms.awac import AWAC, AWACConfig
from rl_training.core.train_config import TrainConfig
from rl_training.experiment.training import Recipe, RunOptions
from rl_training.models.mlp_awac import AWACNetworkConfig, MLPAWACModel
from rl_training.runtime.run import TrainResult
from rl_training.runtime.sources.offline import OfflineFields, offline


class AWACRunConfig(AWACConfig, AWACNetworkConfig, OfflineFields):
    """Every setting of an AWAC run."""


RECIPE = Recipe(name="awac", learner=AWAC, model=MLPAWACModel, config=AWACRunConfig, phases=offline)


def train_awac(config: TrainConfig, **options: Unpack[RunOptions]) -> TrainResult:
    """Train AWAC; `total_timesteps` counts gradient steps."""
    return RECIPE.run(config, **options)
