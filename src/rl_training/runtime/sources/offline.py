"""Learning from transitions that were logged before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from rl_training.algorithms.learner import Learner
from rl_training.config.data_fields import OfflineDataFields
from rl_training.config.run_fields import ControlFields
from rl_training.core.train_config import TrainConfig
from rl_training.core.transforms import ObservationNormalizer
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.runtime.loop import Phase
from rl_training.runtime.offline_data import build_offline_dataset


class OfflineFields(ControlFields, OfflineDataFields):
    """How an offline run gets its data and trains on it."""


class offline:
    """Transitions come from a dataset; an environment is needed for evaluation alone."""

    def __init__(
        self,
        configs: Sequence[TrainConfig],
        settings: Any,
        learner: type[Learner],
        dataset: TransitionDataset | None,
    ) -> None:
        self.config = configs[0]
        prepared = build_offline_dataset(self.config, dataset=dataset, needs=learner.needs)
        self.dataset = prepared.dataset
        self.spaces = prepared.spaces
        self.normalizer: ObservationNormalizer | None = prepared.normalizer
        self.reference = prepared.reference
        self.summary: dict[str, Any] = prepared.summary
        self.rows: int | None = len(prepared.dataset)

    def phases(self, device: torch.device, state: dict[str, Any] | None) -> list[Phase]:
        return [Phase("offline", self.config.total_timesteps, self.dataset.to(device))]
