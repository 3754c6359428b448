"""REDQ: online, many updates per collected transition."""

from __future__ import annotations

from typing import Self, Unpack

from pydantic import model_validator

from rl_training.algorithms.redq import REDQ, REDQConfig, check_subset
from rl_training.config import setting
from rl_training.config.run_fields import OnlineFields
from rl_training.core.train_config import TrainConfig
from rl_training.experiment.training import Recipe, RunOptions
from rl_training.models.mlp_redq import MLPREDQModel, REDQNetworkConfig
from rl_training.runtime.run import TrainResult
from rl_training.runtime.sources.base import online


class REDQRunConfig(REDQConfig, REDQNetworkConfig, OnlineFields):
    """Every setting of a REDQ run."""

    gradient_updates_per_step: int = setting(20, "updates per collected transition (G)", ge=1)

    @model_validator(mode="after")
    def _subset_fits(self) -> Self:
        check_subset(self.subset_size, self.num_critics)
        return self


RECIPE = Recipe(name="redq", learner=REDQ, model=MLPREDQModel, config=REDQRunConfig, phases=online)


def train_redq(config: TrainConfig, **options: Unpack[RunOptions]) -> TrainResult:
    """Train REDQ; `total_timesteps` counts environment steps."""
    return RECIPE.run(config, **options)
