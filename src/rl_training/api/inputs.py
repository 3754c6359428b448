"""What the managed classes take: configs by name or as settings, data in many forms."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import numpy.typing as npt

from rl_training.core.config_files import load_config
from rl_training.core.errors import ConfigError
from rl_training.core.plain import Facts, State
from rl_training.core.train_config import TrainConfig, parse_config
from rl_training.data.offline_dataset import TransitionDataset


@runtime_checkable
class ArrowTable(Protocol):
    """What pandas, polars and Arrow tables have in common."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


GivenConfig = TrainConfig | str | os.PathLike[str]
GivenData = TransitionDataset | Mapping[str, npt.ArrayLike] | ArrowTable | str | os.PathLike[str]
"""A dataset, arrays by name, a data frame (pandas, polars, Arrow), or a path"""


def make_config(
    algo: str, class_name: str, config: GivenConfig | None, settings: Mapping[str, object]
) -> TrainConfig:
    """One config out of what the constructor was given; keywords find their own level."""
    given = by_level(settings)
    if config is None:
        base: State = {"algo": algo}
    elif isinstance(config, TrainConfig):
        base = config.to_dict()
    elif isinstance(config, str | os.PathLike):
        base = load_config(config).to_dict()
    else:
        raise ConfigError(
            "config must be a TrainConfig, the name or path of a config, or left out for settings, "
            f"got {config!r}"
        )
    if base["algo"] != algo:
        raise ConfigError(f"algo must be {algo!r} for {class_name}, got {base['algo']!r}")
    if isinstance(config, TrainConfig) and not settings:
        return config
    kwargs = {**base.get("algo_kwargs", {}), **given["algo_kwargs"]}
    return parse_config({**base, **given, "algo_kwargs": kwargs})


def by_level(settings: Mapping[str, object]) -> State:
    """Settings at their places in a config: those of the run, and `algo_kwargs`."""
    run_level = TrainConfig.model_fields
    given: State = {name: value for name, value in settings.items() if name in run_level}
    own = {name: value for name, value in settings.items() if name not in run_level}
    return {**given, "algo_kwargs": {**given.get("algo_kwargs", {}), **own}}


def with_data(
    config: TrainConfig, path: str | os.PathLike[str], columns: Mapping[str, object] | None
) -> TrainConfig:
    """The config with another source of its data."""
    data: dict[str, object] = {"dataset_kind": "auto", "dataset_path": os.fspath(path)}
    if columns is not None:
        data["columns"] = dict(columns)
    return config.replace(algo_kwargs={**config.algo_kwargs, **data})


def as_dataset(given: GivenData, columns: Facts | None = None) -> TransitionDataset:
    """Data in memory, whatever form it has."""
    if isinstance(given, TransitionDataset):
        return given
    if isinstance(given, Mapping):
        return TransitionDataset.from_dict(given)
    if isinstance(given, ArrowTable):
        for name in ("observations", "actions"):
            if name not in (columns or {}):
                raise ConfigError(
                    f"columns.{name} is required with a data frame: columns={{{name!r}: […], …}}"
                )
        return TransitionDataset.from_dataframe(given, **(columns or {}))
    raise ConfigError(
        "dataset must be a TransitionDataset, a mapping of arrays or a data frame (a path only in learn), "
        f"got {type(given).__name__}"
    )
