"""HDF5: D4RL files of both styles, d3rlpy's version-1 files, and the ones written here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np

from rl_training.config.data_fields import DatasetSource
from rl_training.core.errors import DataError
from rl_training.data.data_info import DataInfo
from rl_training.data.episode_log import EpisodeLog
from rl_training.data.episodes import Array
from rl_training.data.field_names import INFO_KEYS, WRITTEN_NAMES, resolve_names
from rl_training.data.formats import Format, has_ending
from rl_training.data.hdf5_files import open_hdf5
from rl_training.data.reading import Target, file_of
from rl_training.data.validation import check_numeric
from rl_training.data.writing import log_columns


def read_hdf5(source: DatasetSource, target: Target) -> EpisodeLog:
    """Read a file whose arrays lie at the top level, one row per step."""
    path = file_of(source)
    with open_hdf5(path) as file:
        if "episode_0" in file:
            raise DataError(
                f"{path}: this is the data file of a Minari dataset; use dataset_kind minari with its id"
            )
        # an open array keeps its chunk cache, so each is opened only while it is read
        arrays = [name for name in file if isinstance(file[name], h5py.Dataset) and file[name].shape]
        names = resolve_names(arrays, str(path))
        columns = {field: _read(file[name], field, path, target) for field, name in names.items()}
        info = DataInfo.from_dict(str(path), _attributes(file))
    return EpisodeLog.build(columns, info=info, lenient=target.lenient)


def hdf5_keys(path: Path) -> list[str]:
    """Names of everything at the top level of a file."""
    with open_hdf5(path) as file:
        return sorted(file)


def write_hdf5(log: EpisodeLog, path: Path) -> None:
    """Write the columns of a log compressed, with what is known about them as attributes."""
    with h5py.File(path, "w") as file:
        for field, values in log_columns(log).items():
            file.create_dataset(
                WRITTEN_NAMES[field],
                data=values,
                chunks=True,
                compression="gzip",
                compression_opts=4,
                shuffle=True,
            )
        for key, value in log.info.to_dict().items():
            file.attrs[key] = value


def _read(stored: Any, field: str, path: Path, target: Target) -> Array:
    if field == "episode_ids":
        ids: Array = stored[()]  # whole numbers or text: only compared with each other
        return ids
    check_numeric(stored.name.lstrip("/"), stored.dtype, str(path))
    out = target.array(field, stored.shape, stored.dtype)
    if out.size:
        stored.read_direct(out)
    return out


def _attributes(file: Any) -> dict[str, Any]:
    known: dict[str, Any] = {}
    for key in INFO_KEYS:
        if key in file.attrs:
            value = file.attrs[key]
            known[key] = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
    return known


HDF5 = Format(
    read=read_hdf5,
    suffixes=(".hdf5", ".h5"),
    recognise=has_ending(".hdf5", ".h5"),
    write=write_hdf5,
    keys=hdf5_keys,
)
