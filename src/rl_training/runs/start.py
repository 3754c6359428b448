"""The config of a run that is started by options: a named one, or one for own data or an environment."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from rl_training.config.run import TrainConfig, list_packaged_configs, load_config
from rl_training.core.errors import ConfigError
from rl_training.core.files import absolute
from rl_training.core.registry import algorithm_facts, builtin_algorithms
from rl_training.core.types import Facts, State
from rl_training.data.convert import source_location

OWN_DATA = "iql/own_data"
"""Packaged config that runs on own data start from, where there is none of their algorithm; it sets nothing
that belongs to one algorithm."""

OWN_ENV = "sac/own_env"
"""Packaged config that runs in an environment alone start from, likewise."""


def config_from_options(
    config: str | None,
    options: Facts,
    *,
    data: str | None = None,
    minari_root: Path | None = None,
    fields: Facts | None = None,
    env_kwargs: Facts | None = None,
    changes: Sequence[str] = (),
) -> TrainConfig:
    """The config of that name, or the one for own data or an environment, with what the user says.

    `options` are settings of the run, `fields` of its data, `changes` are of the form `key=value`. Where
    `data` is given, the place of the config's own gives way; the path is made absolute.
    """
    start: State = {}
    given = dict(fields or {})
    if config is None:
        config = config_to_start_from(options.get("algo"), data, options.get("env_id"))
        if data is not None:  # the example values of the packaged config
            start |= {"columns": {}, "missing_values": "error", "action_low": None, "action_high": None}
    if data is not None:
        place = source_location(data, minari_root)
        start |= {"dataset_kind": "auto", "dataset_path": None, "dataset_id": None}
        if place.dataset_id is None:
            given["dataset_path"] = absolute(data)
        else:
            start["dataset_kind"], given["dataset_id"] = "minari", place.dataset_id
        if place.dataset_id is not None and minari_root is not None:
            given["dataset_path"] = os.path.abspath(minari_root)
    elif minari_root is not None:
        raise ConfigError("--minari-root must come with --data, the id of a dataset in it")
    first = {f"algo_kwargs.{name}": value for name, value in given.items()}
    if env_kwargs is not None:
        first["env_kwargs"] = env_kwargs
    return load_config(
        config,
        [*first.items(), *changes, *options.items()],
        start=[(f"algo_kwargs.{name}", value) for name, value in start.items()],
    )


def config_to_start_from(algo: str | None, data: str | None, env_id: str | None) -> str:
    """The packaged config for a log, or for an environment alone, where the user names none."""
    if algo is None or (data is None and env_id is None):
        raise ConfigError(
            "--config is required, or --algo and --data to train on a log of your own, or --algo and "
            "--env-id to train in an environment"
        )
    facts = algorithm_facts(algo)
    if data is None and facts is not None and not facts.online:
        online = ", ".join(name for name, each in builtin_algorithms().items() if each.online)
        raise ConfigError(
            f"--data is required: {algo} learns from logged data (in an environment alone learn {online}); "
            "`rl-training configs` lists configs that collect some"
        )
    if data is None:
        return OWN_ENV
    own = f"{algo}/own_data"
    return own if any(each.name == own for each in list_packaged_configs()) else OWN_DATA
