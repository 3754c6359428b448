"""Continuous control from logged data and from interaction: train, evaluate, resume, predict.

The names below are imported when they are first used, so that `import rl_training` stays light (no torch).
"""

import os

from rl_training.builtin import ALGORITHMS
from rl_training.core.registry import algorithm_classes, lazy_exports
from rl_training.core.version import VERSION as __version__

if os.environ.get("RL_TRAINING_AMD_MKL") == "1":  # must happen before torch is imported
    from rl_training.core.machine import enable

    enable()

SOURCES = {facts.class_name: "rl_training.api.algorithms" for facts in ALGORITHMS}
SOURCES |= {
    "Callback": "rl_training.runtime.callbacks",
    "TrainConfig": "rl_training.config.run",
    "TransitionDataset": "rl_training.data.offline_dataset",
    "auto": "rl_training.recommend.auto",
    "judge": "rl_training.runs.judge",
    "load_policy": "rl_training.policies.files",
    "open_run": "rl_training.runs.saved",
    "read_log": "rl_training.data.read",
    "register_algorithm": "rl_training.api.algorithms",
    "Field": "rl_training.data.fields",
    "register_field": "rl_training.data.fields",
    "register_format": "rl_training.data.formats",
    "register_network": "rl_training.models.networks",
}

__all__ = ["__version__", *SOURCES]
_getattr, __dir__ = lazy_exports(__name__, SOURCES)


def __getattr__(name: str) -> object:
    if name not in SOURCES and not name.startswith("_") and name in algorithm_classes():
        return lazy_exports(__name__, {name: "rl_training.api.algorithms"})[0](name)  # of a plug-in
    return _getattr(name)
