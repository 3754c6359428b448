"""What a run learns from: environments that are stepped, or transitions that were logged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from rl_training.algorithms.learner import Learner
from rl_training.core.errors import ConfigError
from rl_training.core.train_config import TrainConfig
from rl_training.core.transforms import ObservationNormalizer
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.reference_scores import reference_returns
from rl_training.runtime.environments import spaces_of
from rl_training.runtime.loop import Phase
from rl_training.runtime.run import Acting
from rl_training.runtime.sources.online import OnlineCollection


class Material(Acting, Protocol):
    """Spaces and scaling first, so that a learner can be built; then the phases."""

    rows: int | None
    summary: dict[str, Any]

    def phases(self, device: torch.device, state: dict[str, Any] | None) -> list[Phase]: ...


class online:
    """Transitions come from environments that the run steps itself."""

    normalizer: ObservationNormalizer | None = None
    rows: int | None = None

    def __init__(
        self,
        configs: Sequence[TrainConfig],
        settings: Any,
        learner: type[Learner],
        dataset: TransitionDataset | None,
    ) -> None:
        config = configs[0]
        assert config.env_id is not None  # the config's own check
        if dataset is not None:
            raise ConfigError(f"dataset must be none: {config.algo} learns online, from its environment")
        self.configs, self.settings = configs, settings
        self.summary: dict[str, Any] = {}
        self.spaces = spaces_of(config.env_id, config.env_kwargs)
        self.reference = reference_returns(config.env_id)

    def phases(self, device: torch.device, state: dict[str, Any] | None) -> list[Phase]:
        collection = OnlineCollection(self.configs, self.settings, self.spaces, device)
        if state is not None:
            collection.load_state_dict(state)
        return [
            Phase(
                "online",
                self.configs[0].total_timesteps,
                collection,
                collection,
                learning_starts=self.settings.learning_starts,
                train_frequency=self.settings.train_frequency,
                updates_per_step=self.settings.gradient_updates_per_step,
            )
        ]
