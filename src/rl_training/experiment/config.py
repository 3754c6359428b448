"""Configuration: one parser for YAML, the command line and Python; all mistakes are reported together."""

from rl_training.experiment.config_describe import FieldRow, describe_fields
from rl_training.experiment.config_fields import setting
from rl_training.experiment.config_files import (
    PackagedConfig,
    config_to_yaml,
    list_packaged_configs,
    load_config,
)
from rl_training.experiment.config_model import ConfigModel
from rl_training.experiment.train_config import TrainConfig, parse_config

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
