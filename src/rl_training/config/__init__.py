"""Typed settings: fields, bounds, mistakes, YAML, tables that explain them."""

from rl_training.config.describe import FieldRow, describe_fields
from rl_training.config.fields import setting
from rl_training.config.model import ConfigModel

__all__ = ["ConfigModel", "FieldRow", "describe_fields", "setting"]
