"""Transitions: datasets, loaders, mixing, replay; names are imported on first use."""

from typing import TYPE_CHECKING

from rl_training.lazy import lazy_exports

if TYPE_CHECKING:
    from rl_training.data.episode_transforms import best_episodes as best_episodes
    from rl_training.data.episode_transforms import with_n_step as with_n_step
    from rl_training.data.offline_dataset import TransitionDataset as TransitionDataset
    from rl_training.data.replay_buffer import ReplayBuffer as ReplayBuffer
    from rl_training.data.returns import (
        compute_discounted_returns_to_go as compute_discounted_returns_to_go,
    )
    from rl_training.data.transforms import ObservationNormalizer as ObservationNormalizer

_SOURCES = {
    "ObservationNormalizer": "rl_training.data.transforms",
    "ReplayBuffer": "rl_training.data.replay_buffer",
    "TransitionDataset": "rl_training.data.offline_dataset",
    "best_episodes": "rl_training.data.episode_transforms",
    "compute_discounted_returns_to_go": "rl_training.data.returns",
    "with_n_step": "rl_training.data.episode_transforms",
}

__getattr__, __dir__ = lazy_exports(__name__, _SOURCES)
