"""Typed settings: fields, bounds, mistakes, YAML, tables that explain them.

Names are loaded on first use: opening an exported policy needs no pydantic.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rl_training.config.describe import FieldRow, describe_fields
    from rl_training.config.fields import setting
    from rl_training.config.model import ConfigModel

__all__ = ["ConfigModel", "FieldRow", "describe_fields", "setting"]

_MODULES = {
    "ConfigModel": "model",
    "FieldRow": "describe",
    "describe_fields": "describe",
    "setting": "fields",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
