"""Files that are replaced in one step, and JSON that anybody may have written."""

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

from rl_training.core.errors import UserError

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
