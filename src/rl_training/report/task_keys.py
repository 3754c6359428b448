"""What makes runs repetitions or rivals of each other: the same environment and the same data."""

from __future__ import annotations

import json

from rl_training.report.run_reader import RunRecord

# What says which data was learned from: part of the task, not of the method.
DATA_SETTINGS = (
    *("dataset_id", "dataset_path", "dataset_kind", "dataset_checkpoint", "dataset_noise"),
    *("dataset_random_share", "dataset_size", "dataset_seed", "dataset_parts"),
)


def environment_key(run: RunRecord) -> str:
    """Equal for runs whose returns mean the same."""
    return canonical([run.env_id, run.config.get("env_kwargs") or {}])


def task_key(run: RunRecord) -> str:
    """Equal for runs that are repetitions or rivals: the same environment and the same data."""
    return canonical([environment_key(run), data_settings(run)])


def data_settings(run: RunRecord) -> dict[str, object]:
    """Data settings that say something: an older release may not have written those that are 0 or empty."""
    return {name: value for name in DATA_SETTINGS if (value := run.settings.get(name))}


def canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, default=str)
