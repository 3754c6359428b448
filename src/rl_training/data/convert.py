"""From any readable format to any other, keeping every transition, its precision and what is known of it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from rl_training.config.data_fields import DatasetSource
from rl_training.config.data_kinds import format_names
from rl_training.core.errors import DataError
from rl_training.core.spaces import Spaces
from rl_training.data.dataset_loaders import read_log
from rl_training.data.episode_log import EpisodeLog
from rl_training.data.field_names import INFO_KEYS
from rl_training.data.formats import FORMATS, format_of_ending, known_suffixes, recognised_format
from rl_training.data.formats.minari import id_folder, installed_ids
from rl_training.data.reading import Target
from rl_training.data.tables.mapping import map_columns
from rl_training.data.writing import claim_space, replacing, write_log

MINARI_PREFIX = "minari:"
"""`minari:NAME-v0` names a Minari dataset where a file could stand as well."""


@dataclass(frozen=True)
class Place:
    """Where data is read or written: a file, or an id in a directory of Minari datasets."""

    kind: str
    path: Path | None = None
    dataset_id: str | None = None

    def source(self, fields: Mapping[str, object]) -> DatasetSource:
        """The dataset fields of a config that name this place."""
        path = None if self.path is None else str(self.path)
        return DatasetSource.build({**fields, "dataset_path": path, "dataset_id": self.dataset_id})

    def __str__(self) -> str:
        return str(self.path) if self.dataset_id is None else f"{MINARI_PREFIX}{self.dataset_id}"


def source_place(name: str, root: Path | None = None) -> Place:
    """An existing dataset: a file, folder or pattern, or a Minari id."""
    if name.startswith(MINARI_PREFIX):
        return Place("minari", root, name.removeprefix(MINARI_PREFIX))
    path = Path(name)
    is_place = path.exists() or any(sign in name for sign in "*?[")
    if not is_place and (path.suffix.lower() not in known_suffixes() or name in _ids(root)):
        return Place("minari", root, name)
    return Place(recognised_format(path), path)


def target_place(name: str, root: Path | None = None) -> Place:
    """Where a dataset is to be written."""
    if name.startswith(MINARI_PREFIX):
        return Place("minari", root, name.removeprefix(MINARI_PREFIX))
    prefix, sign, rest = name.partition(":")
    if sign and rest and prefix in format_names():
        return Place(prefix, Path(rest))
    path = Path(name)
    kind = format_of_ending(path)
    if kind is None:
        writable = [suffix for suffix in known_suffixes() if format_of_ending(Path("x" + suffix)) is not None]
        raise DataError(
            f"the target must end in {', '.join(writable)}, or be {MINARI_PREFIX}NAME-v0 or KIND:FILE, such "
            f"as robomimic:{path.stem}.hdf5, got {name!r}"
        )
    return Place(kind, path)


def read_place(
    place: Place, *, exact: bool = False, lenient: bool = False, fields: Mapping[str, object] | None = None
) -> EpisodeLog:
    """Read a whole dataset; `exact` keeps double precision, `lenient` lets NaN through.

    `fields` are further dataset fields, such as `columns`.
    """
    target = Target(exact=exact, lenient=lenient)
    return read_log(place.kind, place.source(fields or {}), target)


def write_place(log: EpisodeLog, place: Place) -> None:
    """Write a whole dataset; what exists under that name is replaced (files) or refused (Minari)."""
    if place.kind != "minari":
        assert place.path is not None
        write_log(log, place.path, place.kind)
        return
    from rl_training.data.formats.minari_writer import write_minari

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


def convert(source: Place, target: Place) -> EpisodeLog:
    """Read one dataset and write another."""
    log = read_place(source, exact=True)
    write_place(log, target)
    return log


def left_out(place: Place, fields: Mapping[str, object] | None = None) -> list[str]:
    """Keys of a file that are no part of a transition and are not converted."""
    list_keys = FORMATS.get(place.kind).keys
    if list_keys is None or place.path is None:
        return []
    keys = list_keys(place.path)
    used = map_columns(keys, place.source(fields or {}).columns, str(place))
    taken = {column for group in used.values() for column in group}
    return sorted(set(keys) - taken - set(INFO_KEYS))


def _ids(root: Path | None) -> list[str]:
    try:
        return installed_ids(root)
    except DataError:
        return []
