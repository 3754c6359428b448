"""What is settled of a run before anything is built."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rl_training.algorithms.recipe import Recipe
from rl_training.config.data_fields import OfflineFields
from rl_training.config.run_fields import ControlFields
from rl_training.core.plain import State
from rl_training.core.train_config import TrainConfig
from rl_training.experiment.run_options import RunOptions
from rl_training.runtime.environments import EnvMaker


@dataclass(frozen=True)
class Plan:
    """What is settled before the first network is built."""

    recipe: Recipe
    settings: ControlFields
    configs: Sequence[TrainConfig]
    env: EnvMaker | None
    options: RunOptions

    @property
    def saved(self) -> State | None:
        return self.options.get("checkpoint_state")

    @property
    def judges_itself(self) -> bool:
        """Whether the log judges the policy in the end; a run that goes on elsewhere is tried out there."""
        settings, config = self.settings, self.configs[0]
        if not isinstance(settings, OfflineFields) or config.online_timesteps or self.options.get("live"):
            return False
        return self.env is None if settings.judge_at_end == "auto" else settings.judge_at_end


def update_budget(settings: ControlFields, rows: int | None) -> int | None:
    """The smaller of `max_updates` and `max_epochs` passes over the data."""
    limits = [settings.max_updates]
    if settings.max_epochs is not None and rows is not None:
        limits.append(settings.max_epochs * math.ceil(rows / settings.batch_size))
    given = [limit for limit in limits if limit is not None]
    return min(given) if given else None
