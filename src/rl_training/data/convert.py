"""From any readable format to any other, keeping every transition, its precision and what is known of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from rl_training.config.data import FORMATS, DatasetSource
from rl_training.core.errors import DataError
from rl_training.core.files import absolute, is_database, refuse_password
from rl_training.core.spaces import Spaces
from rl_training.data.formats import (
    format_of_ending,
    get_format,
    known_suffixes,
    read_source,
    recognised_format,
)
from rl_training.data.formats.minari import dataset_directory, id_folder, installed_ids, write_minari
from rl_training.data.info import INFO_KEYS
from rl_training.data.log import EpisodeLog, claim_space, replacing
from rl_training.data.reading import Target
from rl_training.data.tables.build import map_columns
from rl_training.data.tables.files import is_pattern, is_remote, local_path

MINARI_PREFIX = "minari:"
"""`minari:NAME-v0` names a Minari dataset where a file could stand as well."""

_MINARI_ID = re.compile(r"([\w-]+/)*[\w-]+-v\d+")


@dataclass(frozen=True)
class DatasetLocation:
    """Where data is read or written: a file, an id in a directory of Minari datasets, or a database."""

    kind: str
    path: Path | None = None
    dataset_id: str | None = None
    address: str | None = None
    """of a database, or of files that lie elsewhere"""

    def source(self, fields: Mapping[str, object]) -> DatasetSource:
        """The dataset fields of a config that name this place."""
        path = self.address if self.path is None else str(self.path)
        return DatasetSource.build({**fields, "dataset_path": path, "dataset_id": self.dataset_id})

    @property
    def spelling(self) -> str:
        """One text that `source_location` understands, wherever the datasets of Minari lie."""
        if self.dataset_id is not None and self.path is not None:
            return str(self.path / self.dataset_id)
        return str(self)

    def __str__(self) -> str:
        if self.address is not None:
            return self.address
        return str(self.path) if self.dataset_id is None else f"{MINARI_PREFIX}{self.dataset_id}"


def source_location(name: str, root: Path | None = None) -> DatasetLocation:
    """An existing dataset: a file, folder, pattern or database, or a Minari id in `root` (None: its own)."""
    if name.startswith(MINARI_PREFIX):
        return DatasetLocation("minari", root, name.removeprefix(MINARI_PREFIX))
    refuse_password(name, "--data")
    if is_database(name):
        return DatasetLocation("table", address=absolute(name))
    if is_remote(name):
        return DatasetLocation(recognised_format(local_path(name)), address=name)
    path = Path(name)
    if path.exists() or is_pattern(path):
        return DatasetLocation(recognised_format(path), path)
    if name in _ids(root):
        return DatasetLocation("minari", root, name)
    if _MINARI_ID.fullmatch(name):
        try:
            dataset_directory(name, root)
        except DataError as problem:
            raise DataError(
                f"{name}: no such file or folder; as the id of a Minari dataset: {problem}"
            ) from None
    return DatasetLocation(recognised_format(path), path)


def target_location(name: str, root: Path | None = None) -> DatasetLocation:
    """Where a dataset is to be written."""
    if name.startswith(MINARI_PREFIX):
        return DatasetLocation("minari", root, name.removeprefix(MINARI_PREFIX))
    prefix, sign, rest = name.partition(":")
    if sign and rest and prefix in FORMATS:
        return DatasetLocation(prefix, Path(rest))
    path = Path(name)
    kind = format_of_ending(path)
    if kind is None:
        writable = [suffix for suffix in known_suffixes() if format_of_ending(Path("x" + suffix)) is not None]
        raise DataError(
            f"the target must end in {', '.join(writable)}, or be {MINARI_PREFIX}NAME-v0 or KIND:FILE, such "
            f"as robomimic:{path.stem}.hdf5, got {name!r}"
        )
    return DatasetLocation(kind, path)


def read_location(
    place: DatasetLocation,
    *,
    exact: bool = False,
    lenient: bool = False,
    fields: Mapping[str, object] | None = None,
) -> EpisodeLog:
    """Read a whole dataset; `exact` keeps double precision, `lenient` lets NaN through.

    `fields` are further dataset fields, such as `columns`.
    """
    target = Target(exact=exact, lenient=lenient)
    return read_source(place.kind, place.source(fields or {}), target)


def write_location(log: EpisodeLog, place: DatasetLocation) -> None:
    """Write a whole dataset; what exists under that name is replaced (files) or refused (Minari)."""
    if place.kind != "minari":
        assert place.path is not None
        write = get_format(place.kind).write
        if write is None:
            raise DataError(f"{place.path}: dataset_kind '{place.kind}' can be read but not written")
        with replacing(place.path) as temporary:
            if place.kind in ("hdf5", "robomimic"):
                claim_space(temporary, log)
            write(log, temporary)
        return
    assert place.dataset_id is not None
    folder = id_folder(place.dataset_id, place.path) / "data"
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


def convert(source: DatasetLocation, target: DatasetLocation) -> EpisodeLog:
    """Read one dataset and write another."""
    log = read_location(source, exact=True)
    write_location(log, target)
    return log


def left_out(place: DatasetLocation, fields: Mapping[str, object] | None = None) -> list[str]:
    """Keys of a file that are no part of a transition and are not converted."""
    list_keys = get_format(place.kind).keys
    if list_keys is None or place.path is None:
        return []
    keys = list_keys(place.path)
    used = map_columns(keys, place.source(fields or {}), str(place))
    taken = {column for group in used.values() for column in group}
    return sorted(set(keys) - taken - set(INFO_KEYS))


def _ids(root: Path | None) -> list[str]:
    try:
        return installed_ids(root)
    except DataError:
        return []
