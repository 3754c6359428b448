"""TQC: online, one update per collected transition."""

from __future__ import annotations

from typing import Self, Unpack

from pydantic import model_validator

from rl_training.algorithms.tqc import TQC, TQCConfig, check_drop
from rl_training.config.run_fields import OnlineFields
from rl_training.core.train_config import TrainConfig
from rl_training.experiment.training import Recipe, RunOptions
from rl_training.models.mlp_tqc import MLPTQCModel, TQCNetworkConfig
from rl_training.runtime.run import TrainResult
from rl_training.runtime.sources.base import online


class TQCRunConfig(TQCConfig, TQCNetworkConfig, OnlineFields):
    """Every setting of a TQC run."""

    @model_validator(mode="after")
    def _some_atoms_stay(self) -> Self:
        check_drop(self.top_quantiles_to_drop_per_net, self.num_quantiles)
        return self


RECIPE = Recipe(name="tqc", learner=TQC, model=MLPTQCModel, config=TQCRunConfig, phases=online)


def train_tqc(config: TrainConfig, **options: Unpack[RunOptions]) -> TrainResult:
    """Train TQC; `total_timesteps` counts environment steps."""
    return RECIPE.run(config, **options)
