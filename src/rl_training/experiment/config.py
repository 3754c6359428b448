"""Door: configs and what reads, checks and explains them."""

from rl_training.config import ConfigModel, FieldRow, describe_fields, setting
from rl_training.config.run import (
    PackagedConfig,
    TrainConfig,
    config_to_yaml,
    list_packaged_configs,
    load_config,
    parse_config,
)

__all__ = [
    "ConfigModel",
    "FieldRow",
    "PackagedConfig",
    "TrainConfig",
    "config_to_yaml",
    "describe_fields",
    "list_packaged_configs",
    "load_config",
    "parse_config",
    "setting",
]
