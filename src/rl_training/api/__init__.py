"""Managed classes: one object that trains, evaluates, predicts, saves and loads."""

from rl_training.core.algorithms import builtin_algorithms
from rl_training.core.lazy import lazy_exports

SOURCES = {facts.class_name: "rl_training.api.algorithms" for facts in builtin_algorithms().values()}
SOURCES["TrainConfig"] = "rl_training.core.train_config"

__all__ = list(SOURCES)
__getattr__, __dir__ = lazy_exports(__name__, SOURCES)
