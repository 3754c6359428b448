"""NPZ archives, streamed: an array goes to its place (memory or cache file) in pieces."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np

from rl_training.core.errors import DataError
from rl_training.data.data_info import DataInfo
from rl_training.data.episode_log import EpisodeLog
from rl_training.data.episodes import Array
from rl_training.data.field_names import INFO_KEYS, resolve_names
from rl_training.data.formats.hdf5 import WRITTEN_NAMES
from rl_training.data.reading import Target, reading
from rl_training.data.validation import CHUNK_ROWS, check_numeric

_ENDING = ".npy"


def read_npz(path: Path, target: Target) -> EpisodeLog:
    """Read an archive of named arrays, one row per step."""
    with (
        reading(path, "NPZ", zipfile.BadZipFile, zlib.error, ValueError, EOFError),
        zipfile.ZipFile(path) as archive,
    ):
        names = resolve_names(_members(archive), str(path))
        columns = {}
        for field, name in names.items():
            with archive.open(name + _ENDING) as member:
                columns[field] = _read(member, field, name, path, target)
        info = DataInfo.from_dict(str(path), _stored_info(archive))
    return EpisodeLog.build(columns, info=info, lenient=target.lenient)


def npz_keys(path: Path) -> list[str]:
    """Names of the arrays of an archive."""
    with reading(path, "NPZ", zipfile.BadZipFile), zipfile.ZipFile(path) as archive:
        return sorted(_members(archive))


def write_npz(columns: dict[str, Array], info: DataInfo, path: Path) -> None:
    """Write columns (named as in `EpisodeLog`) and what is known about them."""
    arrays = {WRITTEN_NAMES[field]: values for field, values in columns.items()}
    arrays |= {key: np.asarray(value) for key, value in info.to_dict().items()}
    with path.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]  # names are no keywords of savez


def _members(archive: zipfile.ZipFile) -> list[str]:
    return [name.removesuffix(_ENDING) for name in archive.namelist() if name.endswith(_ENDING)]


def _read(member: IO[bytes], field: str, name: str, path: Path, target: Target) -> Array:
    shape, in_columns, stored = _header(member, name, path)
    if field != "episode_ids" or stored.kind == "O":
        check_numeric(name, stored, str(path))
    if not shape:
        raise DataError(f"{path}: {name} must have one entry per row, got a single number")
    out = target.array(field, shape, stored)
    if in_columns:
        values = np.frombuffer(member.read(), dtype=stored)
        out[...] = values.reshape(shape[::-1]).T
        return out
    per_row = stored.itemsize * int(np.prod(shape[1:]))
    for start in range(0, shape[0], CHUNK_ROWS):
        rows = min(CHUNK_ROWS, shape[0] - start)
        piece = member.read(rows * per_row)
        if len(piece) != rows * per_row:
            raise DataError(
                f"{path}: {name} ends after row {start + len(piece) // max(1, per_row)} of {shape[0]}"
            )
        out[start : start + rows] = np.frombuffer(piece, dtype=stored).reshape(rows, *shape[1:])
    return out


def _header(member: IO[bytes], name: str, path: Path) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether stored column by column, and type, as the NPY format states them."""
    version = np.lib.format.read_magic(member)
    if version == (1, 0):
        shape, in_columns, stored = np.lib.format.read_array_header_1_0(member)
    elif version == (2, 0):
        shape, in_columns, stored = np.lib.format.read_array_header_2_0(member)
    else:
        raise DataError(
            f"{path}: {name} is stored in NPY version {version}, only 1.0 and 2.0 hold plain numbers"
        )
    return shape, in_columns, stored


def _stored_info(archive: zipfile.ZipFile) -> dict[str, Any]:
    members = set(_members(archive))
    known: dict[str, Any] = {}
    for key in INFO_KEYS:
        if key in members:
            with archive.open(key + _ENDING) as member:
                known[key] = np.lib.format.read_array(member).tolist()
    return known
