"""TD3+BC: offline, an actor between its values and the data."""

from __future__ import annotations

from typing import Unpack

from rl_training.algorithms.td3_bc import TD3BC, TD3BCConfig
from rl_training.config import setting
from rl_training.core.train_config import TrainConfig
from rl_training.experiment.training import Recipe, RunOptions
from rl_training.models.base import NetworkConfig
from rl_training.models.mlp_td3 import MLPTD3Model
from rl_training.runtime.run import TrainResult
from rl_training.runtime.sources.offline import OfflineFields, offline


class TD3BCRunConfig(TD3BCConfig, NetworkConfig, OfflineFields):
    """Every setting of a TD3+BC run."""

    normalize_observations: bool = setting(
        True, "(obs - mean) / (std + 1e-3) over the data, saved with the policy"
    )


RECIPE = Recipe(name="td3_bc", learner=TD3BC, model=MLPTD3Model, config=TD3BCRunConfig, phases=offline)


def train_td3_bc(config: TrainConfig, **options: Unpack[RunOptions]) -> TrainResult:
    """Train TD3+BC; `total_timesteps` counts gradient steps."""
    return RECIPE.run(config, **options)
