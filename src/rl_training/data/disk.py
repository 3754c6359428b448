"""Data larger than memory: one conversion to flat files, which every process then maps and shares."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import uuid
import warnings
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from rl_training.config.data import DatasetSource, TableFields
from rl_training.core.errors import DataError
from rl_training.core.files import CACHE_VARIABLE, cache_directory, is_database, reason
from rl_training.core.types import Array, State
from rl_training.data.fields import FIELDS, further_fields
from rl_training.data.formats import read_source, resolve_kind
from rl_training.data.formats.minari import dataset_directory, name_and_root
from rl_training.data.formulas import info_with_signals, log_with_signals, mean_action
from rl_training.data.info import DataInfo
from rl_training.data.log import EpisodeLog
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.offline_mixers import Concatenate
from rl_training.data.reading import CHUNK_ROWS, Allocate, DataWarning, Target, files_below
from rl_training.data.rows import ColumnStore, as_tensor
from rl_training.data.tables.files import files_of, is_pattern, local_path

_FORMAT = "flat-2"
_FACTS = "facts.json"

BLOCK_BYTES = 1 << 22
"""Bytes that share a checksum, and that are in memory at once while it is taken."""

Filled = tuple[Mapping[str, Array], State]


def cached_log(kind: str, source: DatasetSource) -> EpisodeLog:
    """The log of a source with its wide columns memory-mapped; its notes are told on every use."""
    told = False
    kind = resolve_kind(kind, source)
    table = json.dumps(TableFields.build(source.model_dump(include=set(TableFields.model_fields))).to_dict())
    # a field that was declared since may be in the files too
    others = [f"{field.name} {field.kind} {field.file_names}" for field in further_fields()]
    key = fingerprint(kind, table, *others, *(_content_key(path) for path in _source_files(kind, source)))

    def fill(allocate: Allocate) -> Filled:
        def place(name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
            wide = FIELDS.get(name).kind == "vector" and name != "costs"
            return allocate(name, shape, dtype) if wide else np.empty(shape, dtype)

        nonlocal told
        log, told = read_source(kind, source, Target(place)), True
        columns = {**log.columns, "truncated": log.truncated}
        facts = {"info": log.info.to_dict(), "notes": log.notes, "timeouts_known": log.timeouts_known}
        return columns, facts

    columns, facts = cached_columns(key, fill)
    name = source.dataset_path if source.dataset_id is None else source.dataset_id
    info = replace(DataInfo.from_dict(str(name), facts["info"]), content_key=key)
    for note in () if told else facts["notes"]:
        warnings.warn(f"{info.source}: {note}", DataWarning, stacklevel=2)
    return EpisodeLog.from_columns(columns, info, facts["timeouts_known"], facts["notes"])


def cached_signals(log: EpisodeLog, first_action: Sequence[float] = ()) -> EpisodeLog:
    """The same log with its signals as observations, mapped from an entry of their own."""
    if log.info.signals is None or log.info.signals.first_action or log.info.content_key is None:
        return log  # what was collected is in memory
    signals = replace(log.info.signals, first_action=tuple(first_action) or mean_action([log]))
    key = fingerprint("signals", str(log.info.content_key), json.dumps(signals.to_dict()))

    def fill(allocate: Allocate) -> Filled:
        taken = log_with_signals(log, signals.first_action, allocate)
        columns = {"obs": taken.obs} | ({} if taken.next_obs is None else {"next_obs": taken.next_obs})
        return columns, {}

    columns, _ = cached_columns(key, fill)
    info = replace(info_with_signals(log.info, signals), content_key=key)
    return replace(log, obs=columns["obs"], next_obs=columns.get("next_obs"), info=info)


def cached_columns(key: str, fill: Callable[[Allocate], Filled]) -> tuple[dict[str, Array], State]:
    """The mapped columns and the facts of an entry; `fill` makes them if the entry is absent or damaged."""
    folder = cache_directory() / key
    if not folder.exists():
        _build(folder, fill)
    elif damage := _damage(folder):
        warnings.warn(f"{folder}: {damage}; the data cache is built anew", DataWarning, stacklevel=2)
        _discard(folder)
        _build(folder, fill)
    facts = _facts(folder)
    # read-only: private writable pages would be counted as memory, of which there may not be enough
    return {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in facts["columns"]}, facts


def _facts(folder: Path) -> State:
    """What is written beside the columns; the last line vouches for the first."""
    text, _, check = (folder / _FACTS).read_text().rpartition("\n")
    if check != fingerprint(text):
        raise ValueError(f"{_FACTS} was changed")
    facts: State = json.loads(text)
    return facts


def _damage(folder: Path) -> str | None:
    """What is wrong with an entry, if anything."""
    try:
        columns = _facts(folder)["columns"]
    except (OSError, ValueError):
        return f"{_FACTS} is damaged"
    for name, (size, checksums) in columns.items():
        file = folder / f"{name}.npy"
        if not file.is_file() or file.stat().st_size != size:
            return f"{file.name} does not have its {size} bytes"
        found = _checked(file, size, file.stat().st_mtime_ns)
        if found != tuple(checksums):
            block = [old == new for old, new in zip(checksums, found, strict=True)].index(False)
            return f"{file.name} is damaged after byte {block * BLOCK_BYTES}"
    return None


def _checksums(file: Path) -> tuple[int, ...]:
    """CRC-32 of every block: about 0.3 seconds per GB, beside the time of reading it."""
    with file.open("rb") as stream:
        return tuple(zlib.crc32(block) for block in iter(lambda: stream.read(BLOCK_BYTES), b""))


@cache
def _checked(file: Path, size: int, modified: int) -> tuple[int, ...]:
    """The checksums of a file, taken once in a process unless it was written since."""
    return _checksums(file)


def _discard(folder: Path) -> None:
    """Take an entry away; who has it mapped keeps it."""
    aside = folder.with_name(f"{folder.name}.{uuid.uuid4().hex}.tmp")
    try:
        os.rename(folder, aside)
    except FileNotFoundError:  # another process saw the damage too
        return
    except OSError as problem:
        raise _unwritable(folder.parent, problem) from None
    shutil.rmtree(aside, ignore_errors=True)


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
            if name in placed and not np.may_share_memory(values, placed[name]):
                del placed[name]  # another array has taken its place
                (temporary / f"{name}.npy").unlink()
            if name not in placed:
                np.save(temporary / f"{name}.npy", values)
        _finish(temporary, placed, columns)
        files = {name: temporary / f"{name}.npy" for name in columns}
        vouched = {name: (file.stat().st_size, _checksums(file)) for name, file in files.items()}
        text = json.dumps({**facts, "columns": vouched})
        (temporary / _FACTS).write_text(f"{text}\n{fingerprint(text)}")
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
        if name not in columns:  # what others were computed from
            (folder / f"{name}.npy").unlink(missing_ok=True)
        elif isinstance(values, np.memmap):
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
    path = None if source.dataset_path is None else local_path(source.dataset_path)
    if kind == "minari":
        path = dataset_directory(*name_and_root(source))
    if path is None:
        return []
    if is_database(str(source.dataset_path)):
        raise DataError(
            f"{source.dataset_path}: dataset_in_memory: false needs files, whose contents are known not to "
            "change; write the rows to one first: rl-training data convert … log.parquet"
        )
    if path.is_dir():
        return files_below(path)
    return files_of(path) if path.is_file() or is_pattern(path) else []


def _content_key(path: Path) -> str:
    """Fingerprint of a file's bytes, remembered beside its size and time so that it is read only once."""
    status = path.stat()
    stamp = {"size": status.st_size, "modified": status.st_mtime_ns}
    note = cache_directory() / "stamps" / f"{fingerprint(str(path.resolve()))}.json"
    try:
        known = json.loads(note.read_text())
        if {name: known[name] for name in stamp} == stamp:
            return str(known["key"])
    except (OSError, ValueError, LookupError, TypeError):
        pass  # not written yet, or damaged
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


def disk_concatenation(parts: Sequence[TransitionDataset]) -> Concatenate:
    """How the wide columns of these parts are put one after another without holding them in memory."""
    keys = [
        part.info.content_key or fingerprint(*map(bytes_of, part.store.columns.values())) for part in parts
    ]

    def concatenate(stores: list[ColumnStore], names: list[str]) -> dict[str, Tensor]:
        chosen = (fingerprint(*(bytes_of(store.row_maps[name]) for name in names)) for store in stores)
        key = fingerprint("mix", *names, *keys, *chosen)

        def fill(allocate: Allocate) -> Filled:
            columns = {}
            for name in names:
                rows = sum(store.length(name) for store in stores)
                shape = (rows, *stores[0].columns[name].shape[1:])
                columns[name] = allocate(name, shape, np.dtype(np.float32))
                start = 0
                for store in stores:
                    for chunk in store.chunks(name, CHUNK_ROWS):
                        columns[name][start : start + len(chunk)] = chunk.numpy()
                        start += len(chunk)
            return columns, {}

        columns, _ = cached_columns(key, fill)
        return {name: as_tensor(columns[name]) for name in names}

    return concatenate


def bytes_of(values: Tensor) -> bytes:
    return values.contiguous().numpy().tobytes()
