"""Data larger than memory: one conversion to flat files, which every process then maps and shares.

A cache entry is a directory named after the content of the source. It is written under a temporary name and
renamed, so an entry is complete or absent; two processes that build the same one do not disturb each other.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.config.data_fields import DatasetSource, TableFields
from rl_training.core.atomic import reason
from rl_training.core.errors import DataError
from rl_training.core.plain import State
from rl_training.data.data_info import DataInfo
from rl_training.data.dataset_loaders import read_log, resolve_kind
from rl_training.data.episode_log import EpisodeLog
from rl_training.data.episodes import Array
from rl_training.data.field_names import VECTOR_FIELDS
from rl_training.data.reading import Allocate, Target
from rl_training.data.tables.files import files_of
from rl_training.data.writing import log_columns

CACHE_VARIABLE = "RL_TRAINING_CACHE"
"""Environment variable that names the directory of the cache."""

_FORMAT = "flat-1"
_FACTS = "facts.json"

Filled = tuple[Mapping[str, Array], State]


def cache_directory() -> Path:
    """Where flat copies are kept: $RL_TRAINING_CACHE, or the user's cache directory."""
    if os.environ.get(CACHE_VARIABLE):
        return Path(os.environ[CACHE_VARIABLE])
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "rl_training" / "datasets"


def cached_log(kind: str, source: DatasetSource) -> EpisodeLog:
    """The log of a source with its wide columns memory-mapped."""
    kind = resolve_kind(kind, source)
    table = json.dumps(TableFields.build(source.model_dump(include=set(TableFields.model_fields))).to_dict())
    key = fingerprint(kind, table, *(_content_key(path) for path in _source_files(kind, source)))

    def fill(allocate: Allocate) -> Filled:
        def place(name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
            return allocate(name, shape, dtype) if name in VECTOR_FIELDS else np.empty(shape, dtype)

        log = read_log(kind, source, Target(place))
        columns = {**log_columns(log), "truncated": log.truncated}
        facts = {"info": log.info.to_dict(), "notes": log.notes, "timeouts_known": log.timeouts_known}
        return columns, facts

    columns, facts = cached_columns(key, fill)
    name = source.dataset_path if source.dataset_id is None else source.dataset_id
    info = replace(DataInfo.from_dict(str(name), facts["info"]), content_key=key)
    return EpisodeLog(
        **columns, info=info, notes=tuple(facts["notes"]), timeouts_known=facts["timeouts_known"]
    )


def cached_columns(key: str, fill: Callable[[Allocate], Filled]) -> tuple[dict[str, Array], State]:
    """The mapped columns and the facts of an entry; `fill` makes them if the entry does not exist yet."""
    folder = cache_directory() / key
    if not (folder / _FACTS).exists():
        _build(folder, fill)
    facts = json.loads((folder / _FACTS).read_text())
    # read-only: private writable pages would be counted as memory, of which there may not be enough
    return {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in facts["columns"]}, facts


def fingerprint(*parts: str | bytes | memoryview) -> str:
    """A short name for a combination of texts and bytes."""
    digest = hashlib.blake2b(_FORMAT.encode(), digest_size=20)
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def _build(folder: Path, fill: Callable[[Allocate], Filled]) -> None:
    temporary = folder.with_name(f"{folder.name}.{uuid.uuid4().hex}.tmp")
    placed: dict[str, Array] = {}

    def allocate(name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        try:
            placed[name] = new_flat_file(temporary / f"{name}.npy", shape, dtype)
        except OSError as problem:
            raise _unwritable(folder.parent, problem) from None
        return placed[name]

    try:
        temporary.mkdir(parents=True)
        columns, facts = fill(allocate)
        for name, values in columns.items():
            if name not in placed:
                np.save(temporary / f"{name}.npy", values)
        _finish(temporary, placed, columns)
        (temporary / _FACTS).write_text(json.dumps({**facts, "columns": list(columns)}))
        if not folder.exists():  # another process may have been faster
            os.rename(temporary, folder)
    except OSError as problem:
        if not (folder / _FACTS).exists():
            raise _unwritable(folder.parent, problem) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _finish(folder: Path, placed: Mapping[str, Array], columns: Mapping[str, Array]) -> None:
    """Put what was mapped on the disk, as long as it turned out to be."""
    for name, values in placed.items():
        if isinstance(values, np.memmap):
            values.flush()
            if len(columns[name]) < len(values):
                shorten(folder / f"{name}.npy", len(columns[name]))


def _unwritable(directory: Path, problem: OSError) -> DataError:
    return DataError(
        f"cannot write the data cache in {directory}: {reason(problem)}; free space there or set "
        f"{CACHE_VARIABLE} to another directory"
    )


def new_flat_file(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """An NPY file whose space is reserved: writing to a mapped file on a full disk would kill the process."""
    if 0 in shape:
        return np.empty(shape, dtype)
    values = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
    if hasattr(os, "posix_fallocate"):
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return values


def shorten(path: Path, rows: int) -> None:
    """Keep the first rows of an NPY file: how many a table has is known only once it is read."""
    values = np.load(path, mmap_mode="r")
    header: State = {"descr": np.lib.format.dtype_to_descr(values.dtype), "fortran_order": False}
    header["shape"] = (rows, *values.shape[1:])
    with path.open("r+b") as file:
        np.lib.format.write_array_header_1_0(file, header)
        if file.tell() != values.offset:
            raise DataError(f"{path}: its header cannot be rewritten")
        file.truncate(values.offset + rows * math.prod(values.shape[1:]) * values.dtype.itemsize)


def _source_files(kind: str, source: DatasetSource) -> list[Path]:
    """The files that make up a dataset; empty where the reader has to complain."""
    path = None if source.dataset_path is None else Path(source.dataset_path)
    if kind == "minari":
        from rl_training.data.formats.minari import dataset_directory

        if source.dataset_id is None:
            return []
        path = dataset_directory(source.dataset_id, path)
    if path is None:
        return []
    if path.is_dir():
        return sorted(file for file in path.rglob("*") if file.is_file())
    return files_of(path) if any(sign in str(path) for sign in "*?[") else [path][: path.is_file()]


def _content_key(path: Path) -> str:
    """Fingerprint of a file's bytes, remembered beside its size and time so that it is read only once."""
    status = path.stat()
    stamp = {"size": status.st_size, "modified": status.st_mtime_ns}
    note = cache_directory() / "stamps" / f"{fingerprint(str(path.resolve()))}.json"
    if note.exists():
        known = json.loads(note.read_text())
        if {name: known.get(name) for name in stamp} == stamp:
            return str(known["key"])
    with path.open("rb") as file:
        key = hashlib.file_digest(file, "blake2b").hexdigest()
    try:
        note.parent.mkdir(parents=True, exist_ok=True)
        temporary = note.with_name(f"{note.name}.{uuid.uuid4().hex}.tmp")
        temporary.write_text(json.dumps({**stamp, "key": key}))
        os.replace(temporary, note)
    except OSError as problem:
        raise _unwritable(note.parent, problem) from None
    return key
