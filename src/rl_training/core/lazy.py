"""Exports that are imported on first use (PEP 562)."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazy_exports(
    package: str, sources: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package whose names live in other modules.

    `sources` maps a public name to `module` or, where it is called otherwise there, to `module:name`.
    """

    def __getattr__(name: str) -> Any:
        if name not in sources:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, _, attribute = sources[name].partition(":")
        return getattr(importlib.import_module(module), attribute or name)

    def __dir__() -> list[str]:
        return sorted(sources)

    return __getattr__, __dir__
