"""Typed settings: fields, bounds, mistakes, YAML, tables that explain them.

Names are loaded on first use: opening an exported policy needs no pydantic.
"""

from typing import TYPE_CHECKING

from rl_training.core.registry import lazy_exports

if TYPE_CHECKING:
    from rl_training.config.model import ConfigModel, FieldRow, describe_fields, setting

__all__ = ["ConfigModel", "FieldRow", "describe_fields", "setting"]

__getattr__, __dir__ = lazy_exports(__name__, dict.fromkeys(__all__, "rl_training.config.model"))
