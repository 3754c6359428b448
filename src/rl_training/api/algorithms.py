"""The managed classes, one per registered algorithm, made when they are first asked for."""

from functools import cache

from rl_training.api.managed import ManagedAlgorithm, managed_class
from rl_training.core.algorithms import algorithm_classes

managed = cache(managed_class)


def __getattr__(name: str) -> type[ManagedAlgorithm]:
    algo = algorithm_classes().get(name)
    if algo is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return managed(algo)


def __dir__() -> list[str]:
    return ["ManagedAlgorithm", *algorithm_classes()]
