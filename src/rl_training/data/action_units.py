"""Do the data's vectors fit the spaces, and how do its actions become actions in [-1, 1]?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rl_training.config.data_fields import OfflineDataFields
from rl_training.core.errors import DataError
from rl_training.core.spaces import Spaces
from rl_training.core.transforms import ActionScaling
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.stored_rows import as_array
from rl_training.data.validation import action_range, check_width, first_outside


def check_dimensions(dataset: TransitionDataset, spaces: Spaces) -> TransitionDataset:
    """The dataset, with an axis for single actions and observations, if its vectors have the right sizes."""
    if not len(dataset):
        raise DataError(f"{dataset.info.source}: the dataset is empty (no complete transition)")
    wanted = {"obs": spaces.obs_dim, "actions": spaces.action_dim}
    for name, width in wanted.items():
        columns, source = as_array(dataset.store.columns[name]), dataset.info.source
        check_width(name, columns, width, source, "the environment", "; give the env_id that fits the data")
    thin = [
        name
        for name in ("obs", "next_obs", "actions", "next_actions")
        if name in dataset.fields and dataset.store.columns[name].ndim == 1
    ]
    return dataset.with_columns({name: dataset.store.whole(name).unsqueeze(-1) for name in thin})


def action_scaling(
    parts: Sequence[TransitionDataset], settings: OfflineDataFields, spaces: Spaces
) -> ActionScaling | None:
    """How recorded actions become actions in [-1, 1]; None where they already are and nothing is clipped."""
    low, high = np.array(spaces.action_low), np.array(spaces.action_high)
    if settings.out_of_bounds == "rescale":
        ranges = [action_range(as_array(part.store.columns["actions"])) for part in parts]
        data_low, data_high = np.min([r[0] for r in ranges], axis=0), np.max([r[1] for r in ranges], axis=0)
        varies = data_high > data_low
        low, high = np.where(varies, data_low, low), np.where(varies, data_high, high)
        return ActionScaling.between(low.tolist(), high.tolist(), settings.action_clip)
    within = True
    for part in parts:
        for name in ("actions", "next_actions"):
            if name in part.fields:
                smallest, largest = action_range(as_array(part.store.columns[name]))
                if not ((smallest >= low).all() and (largest <= high).all()):
                    within = False
                    if settings.out_of_bounds == "error":
                        _check_bounds(part, name, spaces)
    unit = bool((low == -1.0).all() and (high == 1.0).all())
    if unit and within and settings.action_clip in (None, 1.0):
        return None
    return ActionScaling.between(low.tolist(), high.tolist(), settings.action_clip)


def _check_bounds(part: TransitionDataset, name: str, spaces: Spaces) -> None:
    actions = as_array(part.store.columns[name])
    low, high = np.array(spaces.action_low), np.array(spaces.action_high)
    outside = first_outside(actions, low, high)
    if outside is None:
        return
    row, column = outside
    smallest, largest = action_range(actions)
    raise DataError(
        f"{part.info.source}: {name} row {row} has {actions[row, column]:g} for "
        f"{part.info.name_of('action', column)}, outside its "
        f"bounds [{low[column]:g}, {high[column]:g}] (the data spans [{smallest[column]:g}, "
        f"{largest[column]:g}]); set out_of_bounds: clip, or out_of_bounds: rescale to map the data's range "
        "to the bounds"
    )
