"""Transitions: datasets, loaders, mixing, replay. Names are loaded on first use."""

from rl_training.core.registry import lazy_exports

SOURCES = {
    "DataInfo": "rl_training.data.info",
    "ObservationNormalizer": "rl_training.core.transforms",
    "ReplayBuffer": "rl_training.data.rows",
    "RewardTransform": "rl_training.core.transforms",
    "TransitionDataset": "rl_training.data.offline_dataset",
    "best_episodes": "rl_training.data.splits",
    "compute_discounted_returns_to_go": "rl_training.data.episodes",
    "load_transition_dataset": "rl_training.data.read",
    "mix_transition_datasets": "rl_training.data.offline_mixers",
    "read_log": "rl_training.data.read",
    "process_offline_dataset": "rl_training.data.prepare",
    "with_n_step": "rl_training.data.splits",
}

__all__ = sorted(SOURCES)

__getattr__, __dir__ = lazy_exports(__name__, SOURCES)
