"""Continuous control from logged data and from interaction: train, evaluate, resume, predict.

The names below are imported when they are first used, so that `import rl_training` stays light (no torch).
"""

import os

from rl_training.core.lazy import lazy_exports
from rl_training.core.registry import ALGORITHMS
from rl_training.core.version import VERSION as __version__

if os.environ.get("RL_TRAINING_AMD_MKL") == "1":  # must happen before torch is imported
    from rl_training.core.amd_mkl import enable

    enable()

_SOURCES = {entry.class_name: "rl_training.api.algorithms" for entry in ALGORITHMS.values()}
_SOURCES["TrainConfig"] = "rl_training.core.train_config"
_SOURCES["load_policy"] = "rl_training.policies.loading"

__all__ = ["__version__", *_SOURCES]
__getattr__, __dir__ = lazy_exports(__name__, _SOURCES)
