"""Transitions: datasets, loaders, mixing, replay. Names are loaded on first use."""

from rl_training.core.lazy import lazy_exports

SOURCES = {
    "DataInfo": "rl_training.data.data_info",
    "ObservationNormalizer": "rl_training.core.transforms",
    "ReplayBuffer": "rl_training.data.replay_buffer",
    "RewardTransform": "rl_training.core.transforms",
    "TransitionDataset": "rl_training.data.offline_dataset",
    "best_episodes": "rl_training.data.episode_transforms",
    "compute_discounted_returns_to_go": "rl_training.data.returns",
    "load_transition_dataset": "rl_training.data.dataset_loaders",
    "mix_transition_datasets": "rl_training.data.offline_mixers",
    "process_offline_dataset": "rl_training.data.processing",
    "with_n_step": "rl_training.data.episode_transforms",
}

__all__ = sorted(SOURCES)

__getattr__, __dir__ = lazy_exports(__name__, SOURCES)
