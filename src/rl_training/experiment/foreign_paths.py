"""A checkpoint outside a run directory may come from anywhere: the paths it names are not followed."""

from __future__ import annotations

from pathlib import Path

from rl_training.core.errors import ConfigError
from rl_training.core.places import CHECKPOINT_FOLDER
from rl_training.core.plain import Facts
from rl_training.core.train_config import TrainConfig, parse_config

PATHS = ("dataset_path", "dataset_checkpoint")


def in_a_run(file: Path) -> bool:
    """Whether a checkpoint lies where a run saves it."""
    return file.parent.name == CHECKPOINT_FOLDER


def with_data(config: TrainConfig, data: str | Path | None) -> TrainConfig:
    """The config with its data where the user says it lies."""
    if data is None:
        return config
    return parse_config(
        {**config.to_dict(), "algo_kwargs": {**config.algo_kwargs, "dataset_path": str(data)}}
    )


def refuse_foreign_paths(file: Path, settings: Facts, given: Facts) -> None:
    """Every path among a file's settings (`algo_kwargs`) must be among those that the user gives."""
    if in_a_run(file):
        return
    parts = settings.get("dataset_parts") or ()
    named = {key: settings[key] for key in PATHS if settings.get(key) is not None and key not in given}
    if "dataset_parts" not in given:
        for index, part in enumerate(parts):
            named |= {f"dataset_parts[{index}].{key}": part[key] for key in PATHS if part.get(key)}
    for key, path in named.items():
        remedy = f"--data {path}" if key == "dataset_path" else "dataset= in Python"
        raise ConfigError(
            f"algo_kwargs.{key} {path!r} comes from a checkpoint outside a run directory and is not "
            f"followed; if you trust it, give it yourself: {remedy}"
        )
