"""Files: replaced in one step, JSON that anybody may have written, addresses of data that are no paths."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import parse_qsl

from rl_training.core.errors import DataError, UserError

CHECKPOINT_FOLDER = "checkpoints"


TEMPORARY_SUFFIX = ".tmp"


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """`<path>.tmp` to write, a file or a folder; it becomes `path` once its bytes are on the disk.

    It lies in the same directory because a rename is atomic only within one file system. If the block raises,
    it is removed and `path` stays as it was. One left behind by a kill gives way to the next write.
    """
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove(temporary)
    try:
        yield temporary
        for file in [temporary, *temporary.rglob("*")] if temporary.is_dir() else [temporary]:
            if file.is_file():
                with file.open("rb") as written:
                    os.fsync(written.fileno())
        temporary.replace(path)
    except BaseException:
        _remove(temporary)
        raise
    _sync_directory(path.parent)


@contextlib.contextmanager
def replace_file(path: Path) -> Iterator[BinaryIO]:
    """The same, opened for writing."""
    with replacing(path) as temporary, temporary.open("wb") as file:
        yield file


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _sync_directory(directory: Path) -> None:
    """Make a rename survive a power failure; not every file system offers this."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as problem:
        if problem.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def reason(problem: OSError) -> str:
    """The operating system's words for a failure, without the path that the caller's message names anyway."""
    return problem.strerror or str(problem)


def refuse_unwritable(path: str | Path, option: str) -> None:
    """Say before long work that its result could not be written; nothing is left behind."""
    target = Path(path)
    if target.is_dir():
        raise UserError(f"{option} must name a file, got the directory {path}")
    try:
        folder = next(each for each in target.absolute().parents if each.exists())
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as problem:
        raise UserError(
            f"{option} {path} cannot be written: {reason(problem)}; name a place you can write to"
        ) from problem


def write_text_atomic(path: str | Path, text: str) -> None:
    """Replace a text file in one step: a reader sees the old text or the new one, never half of it."""
    try:
        with replace_file(Path(path)) as file:
            file.write(text.encode())
    except OSError as problem:
        raise UserError(
            f"cannot write {path}: {reason(problem)}; free space or name another directory"
        ) from problem


def write_json_atomic(path: str | Path, value: object) -> None:
    """Replace a JSON file in one step; numbers that are not finite become null, which every parser reads."""
    write_text_atomic(path, json.dumps(plain_json(value), indent=2) + "\n")


def plain_json(value: object) -> Any:
    """The value with numpy and torch numbers as Python ones and NaN or infinity as `None`."""
    if isinstance(value, Mapping):
        return {str(key): plain_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_json(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


_ESCAPED_HALF = re.compile(r"\\ud[89a-f]", re.IGNORECASE)


def parse_json(text: str | bytes) -> Any:
    """Parse JSON; whatever is wrong with it is a `ValueError`, nesting without end included."""
    try:
        value = json.loads(text)
        if _ESCAPED_HALF.search(text if isinstance(text, str) else text.decode("utf-8", "replace")):
            json.dumps(
                value, ensure_ascii=False
            ).encode()  # half a character can be neither printed nor stored
        return value
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except UnicodeEncodeError:
        raise ValueError("holds half a character (a lone surrogate)") from None


CACHE_VARIABLE = "RL_TRAINING_CACHE"
"""Environment variable that names the directory of the cache."""


def cache_directory() -> Path:
    """Where flat copies of data are kept: $RL_TRAINING_CACHE, or the user's cache directory."""
    if os.environ.get(CACHE_VARIABLE):
        return Path(os.environ[CACHE_VARIABLE])
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "rl_training" / "datasets"


DATABASES = ("postgresql", "postgres", "sqlite")
"""Schemes of databases that are read."""

FILE_SYSTEMS = ("s3", "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs", "file")
"""Schemes of file systems that are read."""

_ADDRESS = re.compile(r"([a-z][a-z0-9+.-]+):(//)?", re.IGNORECASE)
_SECRETS = ("password", "sslpassword", "secret", "secret_key", "access_key", "session_token", "token")


def scheme_of(text: str) -> str | None:
    """`postgresql` of postgresql://host/db, `sqlite` of sqlite:plant.db; none of a path."""
    match = _ADDRESS.match(text)
    if match is None or not (match[2] or match[1].lower() == "sqlite") or os.path.exists(text):
        return None
    return match[1].lower()


def is_database(text: str) -> bool:
    """Whether a text is the address of a database that is read."""
    return scheme_of(text) in DATABASES


def database_file(address: str) -> str:
    """The path in sqlite:plant.db, also written sqlite:///plant.db."""
    rest = address.partition(":")[2]
    return rest[3:] if rest.startswith("///") else rest.removeprefix("//")


def absolute(text: str) -> str:
    """A path, or the path in an address of SQLite, from the root; other addresses as they are."""
    scheme = scheme_of(text)
    if scheme == "sqlite":
        return f"sqlite:{os.path.abspath(database_file(text))}"
    return os.path.abspath(text) if scheme is None else text


def password_problem(text: str, name: str = "dataset_path") -> str | None:
    """What is wrong with an address that holds a password: it would be stored with every run."""
    scheme = scheme_of(text)
    if scheme in (None, "sqlite"):
        return None
    rest, _, query = text.partition("://")[2].partition("?")
    user = rest.rpartition("@")[0]
    if ":" not in user and not any(key.lower() in _SECRETS for key, _ in parse_qsl(query)):
        return None
    return (
        f"{name} must not hold a password, which would be stored with the run: leave it out of {scheme}://… "
        "and put it into "
        + ("~/.pgpass or the environment (PGPASSWORD)" if is_database(text) else "the environment")
    )


def refuse_password(text: str, name: str) -> None:
    """Refuse an address that holds a password, without showing it."""
    if problem := password_problem(text, name):
        raise DataError(problem)
