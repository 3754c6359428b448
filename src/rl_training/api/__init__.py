"""Managed classes: one object that trains, evaluates, predicts, saves and loads."""

from rl_training.experiment.registry import ALGORITHMS
from rl_training.lazy import lazy_exports

_SOURCES = {entry.class_name: "rl_training.api.algorithms" for entry in ALGORITHMS.values()}
_SOURCES["TrainConfig"] = "rl_training.experiment.config"

__all__ = list(_SOURCES)
__getattr__, __dir__ = lazy_exports(__name__, _SOURCES)
