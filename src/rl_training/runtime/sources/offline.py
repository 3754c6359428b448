"""Learning from transitions that were logged before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from rl_training.core.train_config import TrainConfig
from rl_training.core.transforms import Transform
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.runtime.environments import EnvLike
from rl_training.runtime.loop import Phase
from rl_training.runtime.offline_data import build_offline_dataset


class OfflineSource:
    """Transitions come from a dataset; an environment is needed for evaluation alone."""

    def __init__(
        self,
        config: TrainConfig,
        needs: frozenset[str],
        *,
        env: EnvLike | None = None,
        dataset: TransitionDataset | None = None,
    ) -> None:
        self.config = config
        prepared = build_offline_dataset(config, dataset=dataset, needs=needs, env=env)
        self.dataset = prepared.dataset
        self.spaces = prepared.spaces
        normalizer = prepared.normalizer
        self.observation_steps: Sequence[Transform] = () if normalizer is None else (normalizer,)
        self.reference = prepared.reference
        self.summary: Mapping[str, Any] = prepared.summary
        self.rows: int | None = len(prepared.dataset)

    def phases(self, device: torch.device, state: dict[str, Any] | None) -> list[Phase]:
        return [Phase("offline", self.config.total_timesteps, self.dataset.to(device))]
