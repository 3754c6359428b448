"""CRR: offline, imitation filtered by the critic."""

from __future__ import annotations

from typing import Unpack

from rl_training.algorithms.crr import CRR, CRRConfig
from rl_training.core.train_config import TrainConfig
from rl_training.experiment.training import Recipe, RunOptions
from rl_training.models.mlp_sac import MLPSACModel, SACNetworkConfig
from rl_training.runtime.run import TrainResult
from rl_training.runtime.sources.offline import OfflineFields, offline


class CRRRunConfig(CRRConfig, SACNetworkConfig, OfflineFields):
    """Every setting of a CRR run."""


RECIPE = Recipe(name="crr", learner=CRR, model=MLPSACModel, config=CRRRunConfig, phases=offline)


def train_crr(config: TrainConfig, **options: Unpack[RunOptions]) -> TrainResult:
    """Train CRR; `total_timesteps` counts gradient steps."""
    return RECIPE.run(config, **options)
