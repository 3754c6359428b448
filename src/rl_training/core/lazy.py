"""Exports that are imported on first use (PEP 562)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module

from rl_training.core.registry import load_object


def lazy_exports(
    package: str, sources: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package whose names live in other modules.

    `sources` maps a public name to `module` or, where it is called otherwise there, to `module:name`.
    """

    def __getattr__(name: str) -> object:
        if name not in sources:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, _, attribute = sources[name].partition(":")
        return load_object(f"{module}:{attribute or name}")

    def __dir__() -> list[str]:
        return sorted(sources)

    return __getattr__, __dir__


def door(package: str, target: str) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a module whose work has moved to the module `target`."""
    return (
        lambda name: load_object(f"{target}:{name}"),
        lambda: [name for name in dir(import_module(target)) if not name.startswith("_")],
    )


def trainer_door(algo: str) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """A trainer module: `train_<algo>`, and the algorithm's `RECIPE`."""
    sources = {f"train_{algo}": "", "RECIPE": ""}

    def __getattr__(name: str) -> object:
        if name == "RECIPE":
            return load_object(f"rl_training.algorithms.{algo}:RECIPE")
        if name == f"train_{algo}":
            return import_module("rl_training.experiment.training").train_function(algo)
        raise AttributeError(f"the trainer of {algo} has no attribute {name!r}")

    return __getattr__, lambda: sorted(sources)
