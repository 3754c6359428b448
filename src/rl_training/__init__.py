"""Continuous control from logged data and from interaction: train, evaluate, resume, predict.

The names below are imported when they are first used, so that `import rl_training` stays light (no torch).
"""

from rl_training.experiment.registry import ALGORITHMS
from rl_training.lazy import lazy_exports
from rl_training.version import VERSION as __version__

_SOURCES = {entry.class_name: "rl_training.api.algorithms" for entry in ALGORITHMS.values()}
_SOURCES["TrainConfig"] = "rl_training.experiment.config"
_SOURCES["load_policy"] = "rl_training.export.loading"

__all__ = ["__version__", *_SOURCES]
__getattr__, __dir__ = lazy_exports(__name__, _SOURCES)
