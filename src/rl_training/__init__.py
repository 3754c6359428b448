"""Continuous control from logged data and from interaction: train, evaluate, resume, predict.

The names below are imported when they are first used, so that `import rl_training` stays light (no torch).
"""

import os

from rl_training.core.algorithms import algorithm_classes, builtin_algorithms
from rl_training.core.lazy import lazy_exports
from rl_training.core.version import VERSION as __version__

if os.environ.get("RL_TRAINING_AMD_MKL") == "1":  # must happen before torch is imported
    from rl_training.core.amd_mkl import enable

    enable()

SOURCES = {facts.class_name: "rl_training.api.algorithms" for facts in builtin_algorithms().values()}
SOURCES |= {
    "Callback": "rl_training.runtime.callbacks.base",
    "TrainConfig": "rl_training.core.train_config",
    "TransitionDataset": "rl_training.data.offline_dataset",
    "judge": "rl_training.judging",
    "load_policy": "rl_training.policies.loading",
    "register_algorithm": "rl_training.algorithms.recipe",
    "register_format": "rl_training.data.formats",
    "register_network": "rl_training.models.networks",
}

__all__ = ["__version__", *SOURCES]
_getattr, __dir__ = lazy_exports(__name__, SOURCES)


def __getattr__(name: str) -> object:
    if name not in SOURCES and not name.startswith("_") and name in algorithm_classes():
        return lazy_exports(__name__, {name: "rl_training.api.algorithms"})[0](name)  # of a plug-in
    return _getattr(name)
