"""NPZ archives, streamed: an array goes to its place (memory or cache file) in pieces."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.config.data_fields import DatasetSource
from rl_training.data.data_info import DataInfo
from rl_training.data.episode_log import EpisodeLog
from rl_training.data.field_names import INFO_KEYS, WRITTEN_NAMES, resolve_names
from rl_training.data.formats import Format, has_ending
from rl_training.data.npz_files import ENDING, member_names, open_npz, read_member
from rl_training.data.reading import Target, file_of
from rl_training.data.writing import log_columns


def read_npz(source: DatasetSource, target: Target) -> EpisodeLog:
    """Read an archive of named arrays, one row per step."""
    path = file_of(source)
    with open_npz(path) as archive:
        names = resolve_names(member_names(archive), str(path))
        columns = {field: read_member(archive, name, field, path, target) for field, name in names.items()}
        info = DataInfo.from_dict(str(path), _stored_info(archive))
    return EpisodeLog.build(columns, info=info, lenient=target.lenient)


def npz_keys(path: Path) -> list[str]:
    """Names of the arrays of an archive."""
    with open_npz(path) as archive:
        return sorted(member_names(archive))


def write_npz(log: EpisodeLog, path: Path) -> None:
    """Write the columns of a log and what is known about them."""
    arrays = {WRITTEN_NAMES[field]: values for field, values in log_columns(log).items()}
    arrays |= {key: np.asarray(value) for key, value in log.info.to_dict().items()}
    with path.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]  # names are no keywords of savez


def _stored_info(archive: zipfile.ZipFile) -> dict[str, Any]:
    members = set(member_names(archive))
    known: dict[str, Any] = {}
    for key in INFO_KEYS:
        if key in members:
            with archive.open(key + ENDING) as member:
                known[key] = np.lib.format.read_array(member).tolist()
    return known


NPZ = Format(read=read_npz, suffixes=(".npz",), recognise=has_ending(".npz"), write=write_npz, keys=npz_keys)
