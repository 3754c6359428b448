"""BC: offline imitation, of all data or of its best episodes (`top_fraction`)."""

from __future__ import annotations

from typing import Unpack

from rl_training.algorithms.bc import BC
from rl_training.algorithms.learner import LearnerConfig
from rl_training.core.train_config import TrainConfig
from rl_training.experiment.training import Recipe, RunOptions
from rl_training.models.mlp_bc import BCNetworkConfig, MLPBCModel
from rl_training.runtime.run import TrainResult
from rl_training.runtime.sources.offline import OfflineFields, offline


class BCRunConfig(BCNetworkConfig, LearnerConfig, OfflineFields):
    """Every setting of a BC run."""


RECIPE = Recipe(name="bc", learner=BC, model=MLPBCModel, config=BCRunConfig, phases=offline)


def train_bc(config: TrainConfig, **options: Unpack[RunOptions]) -> TrainResult:
    """Train BC; `total_timesteps` counts gradient steps."""
    return RECIPE.run(config, **options)
