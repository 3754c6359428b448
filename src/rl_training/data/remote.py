"""Files that lie elsewhere (`s3://bucket/logs/*.csv`, `gs://…`): copied into the cache, then read as any; and
results that are copied there.

Arrow knows the file systems; keys are taken from where its drivers look for them (environment, profiles),
never from the address. A copy is used again as long as sizes and times of the files are what they were.
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
from pathlib import Path, PurePosixPath
from typing import Any

from rl_training.core.errors import DataError
from rl_training.core.files import FILE_SYSTEMS, cache_directory, refuse_password, scheme_of
from rl_training.data.tables.files import PATTERN_SIGNS, import_pyarrow


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
