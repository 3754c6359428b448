"""Opening HDF5 files from strangers: nothing in them may lead out of them, or claim more than it holds."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from rl_training.config.data import DatasetSource
from rl_training.core.errors import DataError
from rl_training.core.types import Array
from rl_training.data.fields import resolve_names
from rl_training.data.formats import Format, has_ending
from rl_training.data.info import INFO_KEYS, DataInfo
from rl_training.data.log import EpisodeLog
from rl_training.data.reading import Target, check_numeric, file_of, reading, refuse_false_size

HDF5_PROBLEMS = (RuntimeError, KeyError, ValueError, TypeError, SystemError, OverflowError)
"""What h5py raises, beside OSError, on damaged bytes."""

MANY_PIECES = 10_000
"""Pieces of an array that may be missing from a file; beyond that each must hold a byte at least."""


@contextmanager
def open_hdf5(path: Path) -> Iterator[Any]:
    """The file, once every link in it is known to stay inside and every array to lie there."""
    with reading(path, "HDF5", *HDF5_PROBLEMS), h5py.File(path, "r") as file:
        check_inside(file, path)
        yield file


def check_inside(file: Any, path: Path) -> None:
    """Refuse links to other files, links to nothing, and arrays whose numbers lie elsewhere."""
    links: list[tuple[str, Any]] = []
    file.visititems_links(lambda name, link: links.append((name, link)))  # an error inside would be lost
    for name, link in links:
        if isinstance(link, h5py.ExternalLink):
            raise DataError(f"{path}: {name} is a link into another file ({link.filename}), which is refused")
        if isinstance(link, h5py.SoftLink):
            _check_soft(file, path, name, link.path)
        elif isinstance(stored := file[name], h5py.Dataset):
            _check_array(stored, path, name)


def _check_soft(file: Any, path: Path, name: str, target: str) -> None:
    """A link inside the file must arrive, by hard links alone."""
    start = "/" if target.startswith("/") else name.rpartition("/")[0]
    place = file[start] if start not in ("", "/") else file
    for step in filter(None, target.split("/")):
        link = place.get(step, getlink=True) if isinstance(place, h5py.Group) else None
        if not isinstance(link, h5py.HardLink):
            raise DataError(f"{path}: {name} is a link to {target}, which leads nowhere inside the file")
        place = place[step]


def _check_array(stored: Any, path: Path, name: str) -> None:
    if stored.external or stored.is_virtual:
        raise DataError(f"{path}: {name} keeps its numbers in another file, which is refused")
    if stored.shape:
        held = stored.id.get_storage_size()
        refuse_false_size(path, name, stored.nbytes, held)
        pieces = math.prod(map(math.ceil, np.divide(stored.shape, stored.chunks))) if stored.chunks else 0
        if pieces > MANY_PIECES + held:  # each would be looked for in vain
            raise DataError(
                f"{path}: {name} claims to lie in {pieces} pieces but stores {held} bytes; the file is "
                "damaged or not meant well"
            )


def read_hdf5(source: DatasetSource, target: Target) -> EpisodeLog:
    """Read a file whose arrays lie at the top level, one row per step."""
    path = file_of(source)
    with open_hdf5(path) as file:
        if "episode_0" in file:
            raise DataError(
                f"{path}: this is the data file of a Minari dataset; use dataset_kind minari with its id, or "
                "give its folder"
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
        for name, values in log.written_columns.items():
            file.create_dataset(
                name,
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
    table_fields=(),
)
