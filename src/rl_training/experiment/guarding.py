"""A guard for a policy, from the data that it learned from or from any other log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rl_training.config.data_fields import OfflineDataFields
from rl_training.config.data_kinds import NO_DATA
from rl_training.core.errors import ConfigError, DataError
from rl_training.core.spaces import Spaces
from rl_training.core.streams import torch_generator
from rl_training.core.train_config import TrainConfig
from rl_training.data.action_units import check_dimensions
from rl_training.data.convert import read_place, source_place
from rl_training.data.episode_transforms import split_episodes
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.experiment.workflows import environment_of_state, saved_config
from rl_training.policies.guard import Guard
from rl_training.policies.guard_fitting import fit_guard
from rl_training.policies.guard_settings import GuardConfig
from rl_training.runtime.offline_data import load_parts

OWN_DATA = "run"
"""Stands for the data that a run was trained on, where a path could stand as well."""

GuardData = str | Sequence[str] | TransitionDataset
"""`"run"`, paths, or rows in memory."""


def make_guard(
    data: GuardData, state: Mapping[str, Any], spaces: Spaces, settings: Mapping[str, Any] | None = None
) -> Guard:
    """A guard for the policy of a checkpoint's state."""
    config = GuardConfig.build(settings or {}, where="guard")
    config.chosen_fallback.check(spaces)
    if isinstance(data, TransitionDataset):
        return guard_of_rows([data], spaces, config)
    names = [data] if isinstance(data, str) else list(data)
    return guard_of_rows([part for name in names for part in _read(name, state)], spaces, config)


def guard_of_rows(parts: Sequence[TransitionDataset], spaces: Spaces, config: GuardConfig) -> Guard:
    """The limit comes from episodes (rows, where these are unknown) that the centres are not fitted to."""
    pairs = [_split(check_dimensions(part, spaces), config) for part in parts]
    training, held_out = (torch.cat(side) for side in zip(*pairs, strict=True))
    source = " + ".join(dict.fromkeys(part.info.source for part in parts))
    return fit_guard(training, held_out, config, spaces, source)


def _split(part: TransitionDataset, config: GuardConfig) -> tuple[Tensor, Tensor]:
    if part.ordered and int(part.episode_ends().sum()) > 1:
        first, second = split_episodes(part, config.held_out_share, config.seed)
        return _points(first, config.actions), _points(second, config.actions)
    points = _points(part, config.actions)
    order = torch.randperm(len(points), generator=torch_generator(config.seed, "guard", "held-out rows"))
    held = max(1, round(config.held_out_share * len(points)))
    return points[order[held:]], points[order[:held]]


def _points(part: TransitionDataset, with_actions: bool) -> Tensor:
    """Rows in the user's units, as a policy sees and acts."""
    columns = [part.obs, part.actions] if with_actions else [part.obs]
    points = torch.cat([each.reshape(len(part), -1).float().cpu() for each in columns], dim=-1)
    if not points.isfinite().all():
        raise DataError(f"{part.info.source}: a guard needs finite numbers, some are NaN or infinite")
    return points


def _read(name: str, state: Mapping[str, Any]) -> list[TransitionDataset]:
    config = saved_config(state)
    if name == OWN_DATA:
        return _own_rows(config, state)
    return [read_place(source_place(name), fields=_table_fields(config)).to_dataset()]


def _own_rows(config: TrainConfig, state: Mapping[str, Any]) -> list[TransitionDataset]:
    settings = config.run_config()
    known = isinstance(settings, OfflineDataFields) and settings.dataset_kind != NO_DATA
    if not known or "dataset" in state["in_python"]:
        raise ConfigError(
            "guard must name its data (a file, a folder, or a dataset in Python): this run has none of "
            "its own to go back to"
        )
    return load_parts(config, environment_of_state(state, config, None, None))


def _table_fields(config: TrainConfig) -> dict[str, Any]:
    """Columns mean what they mean in the run's own data."""
    given = config.to_dict()["algo_kwargs"]
    names = ("columns", "missing_values", "max_gap", "files_end_episodes", "csv_separator", "csv_decimal")
    return {name: given[name] for name in (*names, "csv_encoding") if name in given}
