"""Managed classes: one object that trains, evaluates, predicts, saves and loads."""

from rl_training.core.registry import builtin_algorithms, lazy_exports

SOURCES = {facts.class_name: "rl_training.api.algorithms" for facts in builtin_algorithms().values()}
SOURCES["TrainConfig"] = "rl_training.config.run"

__all__ = list(SOURCES)
__getattr__, __dir__ = lazy_exports(__name__, SOURCES)
