"""Data formats, one file each: how a format is recognised, read and written. Others can be added."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rl_training.config.data_fields import DatasetSource
from rl_training.config.data_kinds import BUILTIN_FORMATS, FORMAT_GROUP, add_format_name, format_names
from rl_training.core.errors import DataError
from rl_training.core.registry import Registry

if TYPE_CHECKING:
    from rl_training.data.episode_log import EpisodeLog
    from rl_training.data.reading import Target


@dataclass(frozen=True)
class Format:
    """One way in which logs are stored.

    `read` gets the dataset fields of the config (`dataset_path`, `columns` …) and where to put what it reads;
    it returns `EpisodeLog.build(columns, info=DataInfo(source=…))` and raises `DataError` with one line that
    names file, row and column. The others are optional: `recognise` says, quickly and without raising,
    whether a path holds this format (`dataset_kind: auto`), `write` makes a file that `read` reads back
    without loss, `keys` lists what a file holds (a conversion names what it leaves out).
    """

    read: Callable[[DatasetSource, Target], EpisodeLog]
    suffixes: tuple[str, ...] = ()
    recognise: Callable[[Path], bool] | None = None
    write: Callable[[EpisodeLog, Path], None] | None = None
    keys: Callable[[Path], list[str]] | None = None


FORMATS: Registry[Format] = Registry("dataset_kind", FORMAT_GROUP, BUILTIN_FORMATS)

GENERAL = ("minari", "hdf5", "npz", "parquet", "feather", "jsonl", "csv", "table")
"""Formats that take whatever has their ending; every other one is asked first."""


def register_format(name: str, format: Format) -> None:
    """Make a format known under `name`, which then works as `dataset_kind` and is recognised by `auto`."""
    if not isinstance(format, Format):
        raise DataError(f"register_format needs a Format, got {type(format).__name__}")
    FORMATS.register(name, format)
    add_format_name(name)


def recognised_format(path: Path) -> str:
    """The name of the format of a file, folder or pattern."""
    names = format_names()
    for name in (*(name for name in names if name not in GENERAL), *GENERAL):
        recognise = FORMATS.get(name).recognise
        if recognise is not None and recognise(path):
            return name
    if not path.exists():
        pattern = any(sign in str(path) for sign in "*?[")
        what = (
            "no file matches this pattern, or none of a known format" if pattern else "no such file or folder"
        )
        raise DataError(f"{path}: {what}")
    raise DataError(
        f"{path}: no known format; its ending must be one of {', '.join(known_suffixes())}, or dataset_kind "
        f"must say which of {', '.join(names)} it is"
    )


def known_suffixes() -> list[str]:
    """Endings of all formats, in the order of the registry."""
    return list(dict.fromkeys(suffix for name in format_names() for suffix in FORMATS.get(name).suffixes))


def format_of_ending(path: Path) -> str | None:
    """The writable format that the ending of a file names."""
    for name in format_names():
        format = FORMATS.get(name)
        if format.write is not None and path.suffix.lower() in format.suffixes:
            return name
    return None


def has_ending(*suffixes: str) -> Callable[[Path], bool]:
    """A `recognise` for formats that are known by their ending alone."""

    def recognise(path: Path) -> bool:
        return path.suffix.lower() in suffixes and not path.is_dir()

    return recognise
