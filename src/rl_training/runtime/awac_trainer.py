"""AWAC: offline, imitation weighted by the advantage over the policy itself."""

from __future__ import annotations

from typing import Unpack

from rl_training.algorithms.awac import AWAC, AWACConfig
from rl_training.experiment.config import TrainConfig
from rl_training.models.mlp_awac import AWACNetworkConfig, MLPAWACModel
from rl_training.runtime.offline import OfflineFields, offline
from rl_training.runtime.recipe import Recipe, RunOptions
from rl_training.runtime.run import TrainResult


class AWACRunConfig(AWACConfig, AWACNetworkConfig, OfflineFields):
    """Every setting of an AWAC run."""


RECIPE = Recipe(name="awac", learner=AWAC, model=MLPAWACModel, config=AWACRunConfig, phases=offline)


def train_awac(config: TrainConfig, **options: Unpack[RunOptions]) -> TrainResult:
    """Train AWAC; `total_timesteps` counts gradient steps."""
    return RECIPE.run(config, **options)
