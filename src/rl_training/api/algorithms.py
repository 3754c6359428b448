"""The managed classes, one per registered algorithm, made when they are first asked for."""

from functools import cache

from rl_training.algorithms.recipe import Recipe
from rl_training.algorithms.recipe import register_algorithm as register
from rl_training.api.managed import ManagedAlgorithm, managed_class
from rl_training.core.registry import algorithm_classes


@cache
def managed(algo: str) -> type[ManagedAlgorithm]:
    return managed_class(algo, __name__)


def __getattr__(name: str) -> type[ManagedAlgorithm]:
    algo = algorithm_classes().get(name)
    if algo is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return managed(algo)


def register_algorithm(recipe: Recipe) -> type[ManagedAlgorithm]:
    """Make an algorithm known under its recipe's name, for configs, the command line and files.

    Gives the class that trains it, which is also `rl_training.<class name>`.
    """
    register(recipe)
    return managed(recipe.name)


def __dir__() -> list[str]:
    return ["ManagedAlgorithm", *algorithm_classes()]
