"""From any readable format to any other, keeping every transition, its precision and what is known of it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from rl_training.core.errors import DataError
from rl_training.core.spaces import Spaces
from rl_training.data.dataset_loaders import read_log
from rl_training.data.episode_log import EpisodeLog
from rl_training.data.field_names import resolve_names, unused_names
from rl_training.data.formats.minari import installed_ids
from rl_training.data.reading import Target, vector_columns
from rl_training.data.writing import FORMAT_OF_ENDING, claim_space, replacing, write_log

MINARI_PREFIX = "minari:"
"""`minari:NAME-v0` names a Minari dataset where a file could stand as well."""


@dataclass(frozen=True)
class Place:
    """Where data is read or written: a file, or an id in a directory of Minari datasets."""

    kind: str
    path: Path | None = None
    dataset_id: str | None = None

    def __str__(self) -> str:
        return str(self.path) if self.dataset_id is None else f"{MINARI_PREFIX}{self.dataset_id}"


def source_place(name: str, root: Path | None = None) -> Place:
    """An existing dataset by file name or Minari id."""
    if name.startswith(MINARI_PREFIX):
        return Place("minari", root, name.removeprefix(MINARI_PREFIX))
    path = Path(name)
    kind = FORMAT_OF_ENDING.get(path.suffix.lower())
    if kind is not None and (path.exists() or name not in _ids(root)):
        return Place(kind, path)
    if path.is_file():
        raise DataError(f"{path}: the ending of a data file must be one of {', '.join(FORMAT_OF_ENDING)}")
    return Place("minari", root, name)


def target_place(name: str, root: Path | None = None) -> Place:
    """Where a dataset is to be written."""
    if name.startswith(MINARI_PREFIX):
        return Place("minari", root, name.removeprefix(MINARI_PREFIX))
    path = Path(name)
    kind = FORMAT_OF_ENDING.get(path.suffix.lower())
    if kind is None or kind == "csv":
        raise DataError(
            f"the target must end in .hdf5, .h5, .npz or .parquet, or be {MINARI_PREFIX}NAME-v0, got {name!r}"
        )
    return Place(kind, path)


def read_place(place: Place, *, exact: bool = False, lenient: bool = False) -> EpisodeLog:
    """Read a whole dataset; `exact` keeps double precision, `lenient` lets NaN through."""
    target = Target(exact=exact, lenient=lenient)
    return read_log(place.kind, dataset_path=place.path, dataset_id=place.dataset_id, target=target)


def write_place(log: EpisodeLog, place: Place) -> None:
    """Write a whole dataset; what exists under that name is replaced (files) or refused (Minari)."""
    if place.kind != "minari":
        assert place.path is not None
        write_log(log, place.path)
        return
    from rl_training.data.formats.minari import datasets_root
    from rl_training.data.formats.minari_writer import write_minari

    assert place.dataset_id is not None
    folder = datasets_root(place.path) / place.dataset_id / "data"
    if folder.exists():
        raise DataError(f"{place}: this Minari dataset exists already in {folder.parent}; choose another id")
    try:
        with replacing(folder) as temporary:
            temporary.mkdir(parents=True)
            claim_space(temporary, log)
            write_minari(log, place.dataset_id, temporary)
    except BaseException:
        with suppress(OSError):
            folder.parent.rmdir()
        raise


def with_facts(log: EpisodeLog, *, spaces: Spaces | None, env_id: str | None) -> EpisodeLog:
    """The log with bounds and environment stated, where the source does not state them itself."""
    info = replace(log.info, spaces=spaces or log.info.spaces, env_id=env_id or log.info.env_id)
    return replace(log, info=info)


def convert(source: Place, target: Place) -> EpisodeLog:
    """Read one dataset and write another."""
    log = read_place(source, exact=True)
    write_place(log, target)
    return log


def left_out(place: Place) -> list[str]:
    """Keys of a file that are no part of a transition and are not converted."""
    keys = _keys(place)
    vectors = vector_columns(keys)
    used = resolve_names([*keys, *vectors], str(place))
    numbered = {column for name in used.values() for column in vectors.get(name, [])}
    return [name for name in unused_names(keys, used) if name not in numbered]


def _keys(place: Place) -> list[str]:
    assert place.path is not None
    if place.kind == "hdf5":
        from rl_training.data.formats.hdf5 import hdf5_keys

        return hdf5_keys(place.path)
    if place.kind == "npz":
        from rl_training.data.formats.npz import npz_keys

        return npz_keys(place.path)
    from rl_training.data.formats.parquet import csv_keys, parquet_keys

    return csv_keys(place.path) if place.kind == "csv" else parquet_keys(place.path)


def _ids(root: Path | None) -> list[str]:
    try:
        return installed_ids(root)
    except DataError:
        return []
