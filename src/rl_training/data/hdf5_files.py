"""Opening HDF5 files from strangers: nothing in them may lead out of them, or claim more than it holds."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from rl_training.core.errors import DataError
from rl_training.data.reading import reading, refuse_false_size

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
