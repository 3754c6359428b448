"""SAC: online, one update per collected transition."""

from __future__ import annotations

from typing import Unpack

from rl_training.algorithms.sac import SAC, SACConfig
from rl_training.config.run_fields import OnlineFields
from rl_training.core.train_config import TrainConfig
from rl_training.experiment.training import Recipe, RunOptions
from rl_training.models.mlp_sac import MLPSACModel, SACNetworkConfig
from rl_training.runtime.run import TrainResult
from rl_training.runtime.sources.base import online


class SACRunConfig(SACConfig, SACNetworkConfig, OnlineFields):
    """Every setting of a SAC run."""


RECIPE = Recipe(name="sac", learner=SAC, model=MLPSACModel, config=SACRunConfig, phases=online)


def train_sac(config: TrainConfig, **options: Unpack[RunOptions]) -> TrainResult:
    """Train SAC; `total_timesteps` counts environment steps."""
    return RECIPE.run(config, **options)
