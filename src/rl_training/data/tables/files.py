"""Which files a path, a folder or a pattern stands for, and what kind of table each is.

Files that lie elsewhere (`s3://bucket/logs/*.csv`, `gs://…`) are copied into the cache, then read as any, and
results are copied there. Arrow knows the file systems; keys are taken from where its drivers look for them
(environment, profiles), never from the address. A copy is used again as long as sizes and times of the files
are what they were.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import cache
from glob import glob
from itertools import takewhile
from pathlib import Path, PurePosixPath
from typing import Any

from rl_training.core.errors import DataError, install_hint
from rl_training.core.files import FILE_SYSTEMS, cache_directory, refuse_password, scheme_of
from rl_training.data.reading import files_below, refuse_outside

KIND_OF_ENDING = {
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".feather": "feather",
    ".arrow": "feather",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".xlsx": "excel",
    ".xlsm": "excel",
}
_COMPRESSED = ".gz"

PATTERN_SIGNS = "*?["
"""Characters that make a path a pattern."""


def is_pattern(path: Path) -> bool:
    """Whether a path stands for several files: `logs/*.csv`. A file of that very name goes first."""
    return any(sign in str(path) for sign in PATTERN_SIGNS) and not path.exists()


def _matching(pattern: Path) -> list[Path]:
    """The files that a pattern stands for; the folder before its first sign is given, no link leads out."""
    parts = pattern.parts
    given = list(takewhile(lambda part: not any(sign in part for sign in PATTERN_SIGNS), parts))
    root = Path(*given)
    if "**" in parts:
        files_below(root)
    for depth in range(len(given) + 1, len(parts) + 1):  # a folder is looked into once it is known to stay
        wanted = Path.is_file if depth == len(parts) else Path.is_dir
        names = glob(str(Path(*parts[:depth])), recursive=True)
        found = sorted(path for name in names if wanted(path := Path(name)))
        for path in found:
            refuse_outside(root, path)
    return found


def kind_of_file(path: Path) -> str | None:
    """csv, parquet, feather or jsonl by the ending; compressed text (`.csv.gz`) is text."""
    name = path.name.lower().removesuffix(_COMPRESSED)
    return KIND_OF_ENDING.get(Path(name).suffix)


def files_of(path: Path) -> list[Path]:
    """The files of a table in the order of their names; a folder must hold one kind of table."""
    if is_pattern(path):
        found = _matching(path)
        if not found:
            raise DataError(f"{path}: no file matches this pattern")
        return found
    if not path.is_dir():
        if not path.exists():
            raise DataError(
                f"{path}: no such file; dataset_path must name an existing file, folder or pattern"
            )
        return [path]
    tables: dict[str, list[Path]] = {}
    for file in files_below(path):
        kind = kind_of_file(file)
        if kind is not None and not file.name.startswith((".", "_")):
            tables.setdefault(kind, []).append(file)
    if not tables:
        raise DataError(f"{path}: holds no table ({', '.join(KIND_OF_ENDING)}), at any depth")
    if len(tables) > 1:
        examples = " and ".join(files[0].name for files in tables.values())
        raise DataError(
            f"{path}: holds tables of several kinds ({examples}); give a pattern such as {path}/*.csv"
        )
    (files,) = tables.values()
    return files


def holds_tables(path: Path) -> bool:
    """Whether a path, folder or pattern is a table, by names alone."""
    if is_pattern(path):
        return any(kind_of_file(file) is not None for file in _matching(path))
    if path.is_dir():
        return any(kind_of_file(file) is not None for file in path.rglob("*"))
    return kind_of_file(path) is not None


@cache
def import_pyarrow() -> Any:
    """pyarrow, or how to install it."""
    try:
        import pyarrow
        import pyarrow.compute
    except ImportError:
        raise DataError(
            f"tables (CSV, Parquet, Feather, JSON lines, data frames) need pyarrow; {install_hint('parquet')}"
        ) from None
    return pyarrow


def is_remote(text: str) -> bool:
    """Whether a text is the address of files that are read."""
    return scheme_of(text) in FILE_SYSTEMS


def local_path(text: str) -> Path:
    """A path as it is; of files that lie elsewhere, that of their copy."""
    return _fetched(text) if is_remote(text) else Path(text)


def check_target(address: str) -> None:
    """Refuse what is no place to copy a folder to, before anything is made for it."""
    if not is_remote(address):
        raise DataError(
            f"copy_to must be an address such as s3://bucket/found, of {', '.join(FILE_SYSTEMS)}; "
            f"got {address!r}"
        )
    refuse_password(address, "copy_to")
    import_pyarrow()
    from pyarrow import fs

    with _problems(address, "cannot be written"):
        fs.FileSystem.from_uri(address)


def copy_folder(folder: Path, address: str) -> None:
    """Copy all files of a folder to where an address points to; files of these names are replaced."""
    import_pyarrow()
    from pyarrow import fs

    with _problems(address, "cannot be written"):
        system, root = fs.FileSystem.from_uri(address)
        for file in sorted(each for each in folder.rglob("*") if each.is_file() and not each.is_symlink()):
            target = PurePosixPath(root, *file.relative_to(folder).parts)
            system.create_dir(str(target.parent), recursive=True)
            with file.open("rb") as source, system.open_output_stream(str(target)) as copy:
                shutil.copyfileobj(source, copy, 1 << 22)


@cache
def _fetched(address: str) -> Path:
    """The copy of what an address stands for: a file, a folder or a pattern; asked once in a process."""
    import_pyarrow()
    from pyarrow import fs

    given = PurePosixPath(address.partition("://")[2])
    parts = [index for index, part in enumerate(given.parts) if any(sign in part for sign in PATTERN_SIGNS)]
    stem = given if not parts else PurePosixPath(*given.parts[: parts[0]])
    with _problems(address):
        system, root = fs.FileSystem.from_uri(f"{address.partition('://')[0]}://{stem}")
        files = _listed(fs, system, root)
    if parts:
        pattern = str(PurePosixPath(*given.parts[parts[0] :]))
        files = [file for file in files if fnmatchcase(_below(root, file.path), pattern)]
    if not files:
        raise DataError(f"{address}: no file there")
    listed = "\n".join(f"{file.path} {file.size} {file.mtime_ns}" for file in files)
    folder = (
        cache_directory().parent / "fetched" / hashlib.blake2b(listed.encode(), digest_size=16).hexdigest()
    )
    if not folder.is_dir():
        with _problems(address):
            _copy(system, root, files, folder)
    if parts:
        return folder / pattern
    return folder / given.name if len(files) == 1 and files[0].path == root else folder


def _listed(fs: Any, system: Any, root: str) -> list[Any]:
    info = system.get_file_info(root)
    if info.type == fs.FileType.File:
        return [info]
    if info.type == fs.FileType.NotFound:
        raise FileNotFoundError("no such file or folder")
    found = system.get_file_info(fs.FileSelector(root, recursive=True))
    return sorted((file for file in found if file.type == fs.FileType.File), key=lambda file: str(file.path))


def _below(root: str, path: str) -> str:
    """A path as seen from the folder that was asked for; of a file that was asked for itself, its name."""
    return PurePosixPath(path).name if path == root else str(PurePosixPath(path).relative_to(root))


def _copy(system: Any, root: str, files: list[Any], folder: Path) -> None:
    """All files into a new folder, which appears whole or not at all."""
    temporary = folder.with_name(f"{folder.name}.{uuid.uuid4().hex}.tmp")
    try:
        for file in files:
            target = temporary / _below(root, file.path)
            if not target.resolve().is_relative_to(temporary.resolve()):
                raise DataError(f"{file.path}: leads out of its folder")
            target.parent.mkdir(parents=True, exist_ok=True)
            with system.open_input_stream(file.path) as stream, target.open("wb") as copy:
                shutil.copyfileobj(stream, copy, 1 << 22)
        if not folder.exists():
            os.rename(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def _problems(address: str, told: str = "cannot be read") -> Iterator[None]:
    try:
        yield
    except DataError:
        raise
    except (OSError, import_pyarrow().ArrowException, ValueError, TypeError) as problem:
        text = " ".join(str(problem).split())[:300] or type(problem).__name__
        raise DataError(f"{address}: {told} ({text})") from None
