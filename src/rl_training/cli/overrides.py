"""Command-line options as config overrides, so that they are checked with everything else."""

import json
import os
import re
from pathlib import Path

from rl_training.config.yaml_text import parse_yaml
from rl_training.core.errors import ConfigError
from rl_training.core.plain import State

OWN_DATA = "iql/own_data"
"""Packaged config that runs on own data start from; it sets nothing that belongs to one algorithm."""

MINARI_PREFIX = "minari:"


def parse_seeds(text: str | None) -> list[int] | None:
    """`0-7` or `0,3,5` (or both: `0-2,9`) as a list of seeds."""
    if text is None:
        return None
    seeds: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:\s*-\s*(\d+))?\s*", part)
        if match is None:
            raise ConfigError(f"seeds must be a list such as 0-7 or 0,3,5, got {text!r}")
        first, last = int(match[1]), int(match[2] or match[1])
        seeds.extend(range(first, last + 1))
    return seeds


def as_overrides(**options: str | int | list[int] | Path | None) -> list[str]:
    """`--set` strings for the options that were given. JSON quoting keeps a name such as `1e5` text."""
    return [
        f"{name}={json.dumps(str(value) if isinstance(value, Path) else value)}"
        for name, value in options.items()
        if value is not None
    ]


def parsed_settings(option: str, given: list[str]) -> State:
    """`name=value` pairs, the value as YAML."""
    found: State = {}
    for entry in given:
        name, sign, text = entry.partition("=")
        if not sign:
            raise ConfigError(f"{option} must be NAME=VALUE, got {entry!r}")
        found[name] = parse_yaml(text, name)
    return found


def data_overrides(
    config: str | None,
    algo: str | None,
    data: str | None,
    fields: dict[str, object],
    low: list[float] | None,
    high: list[float] | None,
) -> tuple[str, list[str]]:
    """The config to start from, and what the data options change in it; paths become absolute."""
    if config is None and (algo is None or data is None):
        raise ConfigError("--config is required, or --algo and --data to train on a log of your own")
    own = config is None
    recipe: dict[str, object] = dict(fields)
    if own:  # the example values of the packaged config give way
        recipe = {"columns": {}, "missing_values": "error", "action_low": low, "action_high": high, **fields}
    recipe |= {
        name: bound for name, bound in (("action_low", low), ("action_high", high)) if bound is not None
    }
    if data is not None and data.startswith(MINARI_PREFIX):
        recipe |= {
            "dataset_kind": "minari",
            "dataset_id": data.removeprefix(MINARI_PREFIX),
            "dataset_path": None,
        }
    elif data is not None:
        recipe |= {"dataset_kind": "auto", "dataset_path": os.path.abspath(data), "dataset_id": None}
    return config or OWN_DATA, [f"algo_kwargs.{name}={json.dumps(value)}" for name, value in recipe.items()]
