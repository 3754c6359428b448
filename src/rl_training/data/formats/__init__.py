"""Data formats, one file each: how a format is recognised, read and written. Others can be added."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from rl_training.config.data import AUTO, FORMATS, TABLE_FIELDS, DatasetSource
from rl_training.core.errors import DataError
from rl_training.core.files import is_database
from rl_training.data.formulas import log_with_costs, with_history
from rl_training.data.log import EpisodeLog
from rl_training.data.reading import Target
from rl_training.data.tables.files import is_remote, local_path


@dataclass(frozen=True)
class Format:
    """One way in which logs are stored.

    `read` gets the dataset fields of the config (`dataset_path`, `columns` …) and where to put what it reads;
    it returns `EpisodeLog.build(columns, info=DataInfo(source=…))` and raises `DataError` with one line that
    names file, row and column. The others are optional: `recognise` says, quickly and without raising,
    whether a path holds this format (`dataset_kind: auto`), `write` makes a file that `read` reads back
    without loss, `keys` lists what a file holds (a conversion names what it leaves out). `table_fields` are
    those fields of tables (`columns`, `max_gap` …) that `read` heeds, by default all; others are refused.
    """

    read: Callable[[DatasetSource, Target], EpisodeLog]
    suffixes: tuple[str, ...] = ()
    recognise: Callable[[Path], bool] | None = None
    write: Callable[[EpisodeLog, Path], None] | None = None
    keys: Callable[[Path], list[str]] | None = None
    table_fields: tuple[str, ...] = TABLE_FIELDS


GENERAL = ("minari", "hdf5", "npz", "parquet", "feather", "jsonl", "csv", "table")
"""Formats that take whatever has their ending; every other one is asked first."""


def register_format(name: str, format: Format) -> None:
    """Make a format known under `name`, which then works as `dataset_kind` and is recognised by `auto`."""
    if not isinstance(format, Format):
        raise DataError(f"register_format needs a Format, got {type(format).__name__}")
    FORMATS.register(name, format)


def get_format(name: str) -> Format:
    """The format of that name, built in, registered, or offered by an installed package."""
    format = FORMATS.get(name)
    if not isinstance(format, Format):
        raise DataError(f"dataset_kind {name!r} must be a Format, got {type(format).__name__}")
    return format


def resolve_kind(kind: str, source: DatasetSource) -> str:
    """`kind`, or the format that is recognised at the place of `source`."""
    if kind != AUTO:
        return kind
    if source.dataset_id is not None:
        return "minari"
    if source.dataset_path is None:
        raise DataError("dataset_path (or dataset_id) is required by dataset_kind 'auto'")
    if is_database(source.dataset_path):
        return "table"
    return recognised_format(local_path(source.dataset_path))


def read_source(kind: str, source: DatasetSource, target: Target | None = None) -> EpisodeLog:
    """Read and check every row of a dataset, before any is dropped; what `read` would ignore is refused."""
    kind = resolve_kind(kind, source)
    format = get_format(kind)
    if kind != "minari" and source.dataset_path is None:
        raise DataError(f"dataset_path is required by dataset_kind '{kind}'")
    for name in TABLE_FIELDS:
        default = DatasetSource.model_fields[name].default
        if name not in format.table_fields and getattr(source, name) != default:
            raise DataError(f"{name} is not used by dataset_kind '{kind}': leave it out")
    log = log_with_costs(_read(format, source, target or Target()), source.costs)
    return with_history(log, source.history, source.rate)


def _read(format: Format, source: DatasetSource, target: Target) -> EpisodeLog:
    if source.dataset_path is None or not is_remote(source.dataset_path):
        return format.read(source, target)
    copy = source.model_copy(update={"dataset_path": str(local_path(source.dataset_path))})
    log = format.read(copy, target)
    return replace(log, info=replace(log.info, source=source.dataset_path))


def recognised_format(path: Path) -> str:
    """The name of the format of a file, folder or pattern."""
    _refuse_address(path)
    names = FORMATS.names()
    for name in (*(name for name in names if name not in GENERAL), *GENERAL):
        recognise = get_format(name).recognise
        if recognise is not None and recognise(path):
            return name
    what, remedy = _FOREIGN.get(path.suffix.lower(), ("", ""))
    if not path.exists():
        if any(sign in str(path) for sign in "*?["):
            raise DataError(f"{path}: no file matches this pattern, or none of a known format")
        hint = f"; it would be {what}: {remedy}" if what else ""
        hint = hint or "; give a file, a folder, a pattern in quotes, or the id of a Minari dataset (NAME-v0)"
        raise DataError(f"{path}: no such file or folder{hint}")
    if what:
        raise DataError(f"{path}: is {what}; {remedy}")
    raise DataError(
        f"{path}: no known format; its ending must be one of {', '.join(known_suffixes())}, or dataset_kind "
        f"must say which of {', '.join(names)} it is"
    )


_SHEET = "save the sheet with the log as CSV and give that file"
_QUERY = "export the rows of the log, in the order of time, to a CSV or Parquet file and give that file"
_SQLITE = "write sqlite: before its name, and --table NAME or --query 'select …'"
_FOREIGN = {
    ".xls": ("an old Excel workbook, which is not read", _SHEET),
    ".ods": ("a spreadsheet, which is not read", _SHEET),
    **dict.fromkeys((".db", ".sqlite", ".sqlite3"), ("a database of SQLite", _SQLITE)),
    **dict.fromkeys((".duckdb", ".mdb", ".accdb"), ("a database, which is not read", _QUERY)),
    **dict.fromkeys(
        (".mcap", ".bag", ".db3"),
        ("a ROS bag, which is not read", "convert it to a table with a row per step"),
    ),
    ".mat": (
        "a MATLAB file, which is not read",
        "write its arrays as CSV (writetable) or with numpy.savez and give that",
    ),
    **dict.fromkeys(
        (".zip", ".tar", ".tgz", ".7z"), ("an archive, which is not read", "unpack it and give the folder")
    ),
}
"""Endings of files that people have and that are not read: what they are, and what to do."""

_ADDRESS = re.compile(r"([a-z][a-z0-9+.-]+):/")
_DATABASES = (
    "mysql",
    "mariadb",
    "mssql",
    "oracle",
    "duckdb",
    "influx",
    "mongodb",
    "odbc",
)


def _refuse_address(path: Path) -> None:
    """Say of an address what it is, without the passwords that may stand in it."""
    match = _ADDRESS.match(str(path).lower())
    if match is None or path.exists():
        return
    if match[1].startswith(_DATABASES):
        raise DataError(f"{match[1]}://…: is the address of a database of a kind that is not read; {_QUERY}")
    raise DataError(f"{match[1]}://…: is an address; nothing is downloaded: fetch the file and give its path")


def known_suffixes() -> list[str]:
    """Endings of all formats, in the order of the registry."""
    return list(dict.fromkeys(suffix for name in FORMATS.names() for suffix in get_format(name).suffixes))


def format_of_ending(path: Path) -> str | None:
    """The writable format that the ending of a file names."""
    for name in FORMATS.names():
        format = get_format(name)
        if format.write is not None and path.suffix.lower() in format.suffixes:
            return name
    return None


def has_ending(*suffixes: str) -> Callable[[Path], bool]:
    """A `recognise` for formats that are known by their ending alone."""

    def recognise(path: Path) -> bool:
        return path.suffix.lower() in suffixes and not path.is_dir()

    return recognise
