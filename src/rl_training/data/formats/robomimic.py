"""Logs as robomimic HDF5: a group per episode, `dones` where the task ended."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from rl_training.config.data import DatasetSource
from rl_training.core.errors import DataError
from rl_training.core.files import parse_json
from rl_training.core.types import Array
from rl_training.data.episodes import episode_lengths, episode_starts
from rl_training.data.fields import by_number
from rl_training.data.formats import Format
from rl_training.data.formats.hdf5 import HDF5_PROBLEMS, open_hdf5
from rl_training.data.info import DataInfo
from rl_training.data.log import EpisodeLog, refuse_loss
from rl_training.data.reading import Target, as_flags, check_numeric, file_of

OWN_KEY = "rl_training"
"""Attribute under which names and bounds are kept, and that `dones` are terminations."""

OBSERVATION = "state"


def write_robomimic(log: EpisodeLog, path: Path) -> None:
    """Every episode as a demonstration, with one observation vector."""
    refuse_loss(log, "robomimic")
    arrays: dict[str, Array] = {"actions": log.actions, "dones": log.terminated.astype("int64")}
    arrays[f"obs/{OBSERVATION}"] = log.obs
    if log.info.rewards_known:
        arrays["rewards"] = log.rewards
    if log.next_obs is not None:
        arrays[f"next_obs/{OBSERVATION}"] = log.next_obs
    with h5py.File(path, "w") as file:
        group = file.create_group("data")
        episodes = zip(episode_starts(log.ends), episode_lengths(log.ends), strict=True)
        for index, (start, length) in enumerate(episodes):
            demo = group.create_group(f"demo_{index}")
            for name, values in arrays.items():
                demo[name] = values[start : start + length]
            demo.attrs["num_samples"] = int(length)
        group.attrs["total"] = len(log)
        group.attrs["env_args"] = json.dumps({"env_name": log.info.env_id or "", "type": 2, "env_kwargs": {}})
        group.attrs[OWN_KEY] = json.dumps(log.info.to_dict())


_DEMO = re.compile(r".+_\d+")


def read_robomimic(source: DatasetSource, target: Target) -> EpisodeLog:
    """Read all demonstrations, in the order of their numbers."""
    path = file_of(source)
    with open_hdf5(path) as file:
        group = file.get("data")
        demos = _demos(group) if isinstance(group, h5py.Group) else []
        if not demos:
            raise DataError(f"{path}: has no demonstrations (data/demo_0, data/demo_1, …)")
        wanted = source.columns
        action_key, reward_key = (wanted.actions or ("actions",))[0], wanted.reward or "rewards"
        keys, notes = _observation_keys(group[demos[0]], wanted.observations, path)
        lengths = [len(_array(group, f"{demo}/{action_key}", path)) for demo in demos]
        with_next = all(f"{demo}/next_obs/{key}" in group for demo in demos for key in keys)
        has_reward = all(f"{demo}/{reward_key}" in group for demo in demos)
        if wanted.reward is not None and not has_reward:
            raise DataError(f"{path}: not every demonstration has {wanted.reward!r} (columns.reward)")
        places = {"obs": [f"obs/{key}" if key != "states" else key for key in keys], "actions": [action_key]}
        if with_next:
            places["next_obs"] = [f"next_obs/{key}" for key in keys]
        if has_reward:
            places["rewards"] = [reward_key]
        columns = {
            field: _read(group, demos, lengths, names, field, path, target) for field, names in places.items()
        }
        rows = sum(lengths)
        ends = np.zeros(rows, dtype=bool)
        ends[np.cumsum(lengths) - 1] = True
        terminated = np.zeros(rows, dtype=bool)
        own = _own_facts(group, path)
        flag = wanted.terminated or (None if own is None else "dones")
        if flag is not None:
            terminated = _flags(group, demos, lengths, flag, path)
        elif (
            all(f"{demo}/dones" in group for demo in demos)
            and _flags(group, demos, lengths, "dones", path).any()
        ):
            notes.append(
                "dones of demonstrations are taken as time-outs; set columns.terminated to dones if they "
                "mean that the task ended"
            )
        names = _names(group[demos[0]], keys)
    columns |= {"terminated": terminated, "episode_ends": ends}
    columns.setdefault("rewards", np.zeros(rows, dtype=np.float32))
    info = own or DataInfo(str(path), observation_names=names)
    info = replace(info, units={**info.units, **wanted.units}, rewards_known=has_reward)
    return EpisodeLog.build(columns, info=info, lenient=target.lenient, extra_notes=notes)


def is_robomimic(path: Path) -> bool:
    """An HDF5 file with demonstrations under `data`."""
    if path.suffix.lower() not in (".hdf5", ".h5") or not path.is_file():
        return False
    try:
        with h5py.File(path, "r") as file:
            link = file.get("data", getlink=True)
            return (
                isinstance(link, h5py.HardLink)
                and isinstance(file["data"], h5py.Group)
                and bool(_demos(file["data"]))
            )
    except (OSError, *HDF5_PROBLEMS):
        return False


def _demos(group: Any) -> list[str]:
    return by_number([name for name in group if _DEMO.fullmatch(name) and _is_group(group, name)])


def _is_group(group: Any, name: str) -> bool:
    """By the entry itself: a link is not followed to find out."""
    return isinstance(group.get(name, getlink=True), h5py.HardLink) and isinstance(group[name], h5py.Group)


def _observation_keys(demo: Any, chosen: tuple[str, ...], path: Path) -> tuple[list[str], list[str]]:
    """Keys of `obs` to put one after another, and a note about what is left out."""
    stored = demo.get("obs")
    known = sorted(stored) if isinstance(stored, h5py.Group) else []
    vectors = [key for key in known if isinstance(stored[key], h5py.Dataset) and stored[key].ndim <= 2]
    for key in chosen:
        if key not in vectors and not (key == "states" and "states" in demo):
            raise DataError(
                f"{path}: has no vector {key!r} in obs (columns.observations); it has "
                f"{', '.join(vectors) or 'none'}"
            )
    if chosen:
        return list(chosen), []
    if not vectors and "states" in demo:
        return ["states"], ["there are no observations (obs): the simulator's states stand in for them"]
    if not vectors:
        raise DataError(f"{path}: has no vectors in obs; images are not supported")
    left = [key for key in known if key not in vectors]
    notes = [f"left out of the observation, no vectors: {', '.join(left)}"] if left else []
    return vectors, notes


def _own_facts(group: Any, path: Path) -> DataInfo | None:
    """What a file written here says about itself; none for the files of others."""
    text = group.attrs.get(OWN_KEY)
    if not isinstance(text, str):
        return None
    try:
        stored = parse_json(text)
    except ValueError:
        return None
    return DataInfo.from_dict(str(path), stored) if isinstance(stored, dict) else None


def _array(group: Any, name: str, path: Path) -> Any:
    stored = group.get(name)
    if not isinstance(stored, h5py.Dataset) or not stored.shape:
        raise DataError(f"{path}: data/{name} is missing or not an array")
    check_numeric(f"data/{name}", stored.dtype, str(path))
    return stored


def _read(
    group: Any, demos: list[str], lengths: list[int], names: list[str], field: str, path: Path, target: Target
) -> Array:
    widths = [_width(_array(group, f"{demos[0]}/{name}", path)) for name in names]
    flat = field == "rewards"
    shape = (sum(lengths),) if flat else (sum(lengths), sum(widths))
    out = target.array(field, shape, _array(group, f"{demos[0]}/{names[0]}", path).dtype)
    matrix, row = out.reshape(len(out), -1), 0
    for demo, length in zip(demos, lengths, strict=True):
        column = 0
        for name, width in zip(names, widths, strict=True):
            stored = _array(group, f"{demo}/{name}", path)
            if len(stored) != length or _width(stored) != width:
                raise DataError(
                    f"{path}: data/{demo}/{name} has the shape {stored.shape}, but {length} rows of "
                    f"{width} numbers are wanted"
                )
            matrix[row : row + length, column : column + width] = stored[()].reshape(length, width)
            column += width
        row += length
    return out


def _flags(group: Any, demos: list[str], lengths: list[int], name: str, path: Path) -> Array:
    pieces = [np.asarray(_array(group, f"{demo}/{name}", path)[()]).reshape(-1) for demo in demos]
    wrong = next((i for i, piece in enumerate(pieces) if len(piece) != lengths[i]), None)
    if wrong is not None:
        raise DataError(
            f"{path}: data/{demos[wrong]}/{name} has {len(pieces[wrong])} rows, not {lengths[wrong]}"
        )
    return as_flags(name, np.concatenate(pieces), str(path))


def _width(stored: Any) -> int:
    return int(np.prod(stored.shape[1:]))


def _names(demo: Any, keys: list[str]) -> tuple[str, ...]:
    names: list[str] = []
    for key in keys:
        width = _width(demo["states"] if key == "states" else demo["obs"][key])
        names += [key] if width == 1 else [f"{key}_{index}" for index in range(width)]
    return tuple(names)


ROBOMIMIC = Format(
    read=read_robomimic, recognise=is_robomimic, write=write_robomimic, table_fields=("columns",)
)
