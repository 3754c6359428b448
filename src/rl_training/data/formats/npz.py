"""NPZ archives, streamed: an array goes to its place (memory or cache file) in pieces."""

from __future__ import annotations

from pathlib import Path

from rl_training.config.data_fields import DatasetSource
from rl_training.data.data_info import DataInfo
from rl_training.data.episode_log import EpisodeLog
from rl_training.data.field_names import WRITTEN_NAMES, resolve_names
from rl_training.data.formats import Format, has_ending
from rl_training.data.npz_files import member_names, open_npz, read_member, stored_info, write_arrays
from rl_training.data.reading import Target, file_of
from rl_training.data.writing import log_columns


def read_npz(source: DatasetSource, target: Target) -> EpisodeLog:
    """Read an archive of named arrays, one row per step."""
    path = file_of(source)
    with open_npz(path) as archive:
        names = resolve_names(member_names(archive), str(path))
        columns = {field: read_member(archive, name, field, path, target) for field, name in names.items()}
        info = DataInfo.from_dict(str(path), stored_info(archive, path))
    return EpisodeLog.build(columns, info=info, lenient=target.lenient)


def npz_keys(path: Path) -> list[str]:
    """Names of the arrays of an archive."""
    with open_npz(path) as archive:
        return sorted(member_names(archive))


def write_npz(log: EpisodeLog, path: Path) -> None:
    """Write the columns of a log and what is known about them."""
    write_arrays(path, {WRITTEN_NAMES[field]: values for field, values in log_columns(log).items()}, log.info)


NPZ = Format(read=read_npz, suffixes=(".npz",), recognise=has_ending(".npz"), write=write_npz, keys=npz_keys)
