"""Door: configs and what reads, checks and explains them."""

from rl_training.config import ConfigModel, FieldRow, describe_fields, setting
from rl_training.core.config_files import PackagedConfig, config_to_yaml, list_packaged_configs, load_config
from rl_training.core.train_config import TrainConfig, parse_config

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
