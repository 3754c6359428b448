"""NPZ archives, streamed: an array goes to its place (memory or cache file) in pieces."""

from __future__ import annotations

import math
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from rl_training.config.data import DatasetSource
from rl_training.core.errors import DataError
from rl_training.core.types import Array, State
from rl_training.data.fields import resolve_names
from rl_training.data.formats import Format, has_ending
from rl_training.data.info import INFO_KEYS, DataInfo
from rl_training.data.log import EpisodeLog
from rl_training.data.reading import CHUNK_ROWS, Target, check_numeric, file_of, reading, refuse_false_size

ENDING = ".npy"

_PROBLEMS = (
    *(zipfile.BadZipFile, zlib.error, struct.error, tokenize.TokenError, SyntaxError),
    *(ValueError, EOFError, NotImplementedError, RuntimeError, LookupError, OverflowError, TypeError),
)
"""What the zip and numpy readers raise on damaged bytes."""


@dataclass(frozen=True)
class Archive:
    """An open archive, and where its arrays are put."""

    file: zipfile.ZipFile
    path: Path
    target: Target

    @property
    def names(self) -> list[str]:
        """Names of the arrays."""
        return [name.removesuffix(ENDING) for name in self.file.namelist() if name.endswith(ENDING)]

    def require(self, wanted: Iterable[str]) -> None:
        """Refuse an archive without one of the arrays that its layout has."""
        missing = [name for name in wanted if name not in self.names]
        if missing:
            has = ", ".join(sorted(self.names)) or "nothing"
            raise DataError(f"{self.path}: missing key {missing[0]!r}; it has {has}")

    def columns(self, names: Mapping[str, str]) -> dict[str, Array]:
        """The arrays of some fields: field -> name."""
        return {field: self.read(name, field) for field, name in names.items()}

    def read(self, name: str, field: str) -> Array:
        """One array, put where `target` wants it, in pieces."""
        path, size = self.path, self.file.getinfo(name + ENDING).file_size
        with self._open(name) as member:
            shape, in_columns, stored = self._header(member, name)
            if field != "episode_ids" or stored.kind == "O":
                check_numeric(name, stored, str(path))
            if not shape:
                raise DataError(f"{path}: {name} must have one entry per row, got a single number")
            if any(length < 0 for length in shape) or math.prod(shape) * stored.itemsize > size:
                raise DataError(f"{path}: {name} claims the shape {shape} but holds only {size} bytes")
            out = self.target.array(field, shape, stored)
            if in_columns:
                values = np.frombuffer(member.read(), dtype=stored)
                out[...] = values.reshape(shape[::-1]).T
                return out
            per_row = stored.itemsize * int(np.prod(shape[1:]))
            for start in range(0, shape[0], CHUNK_ROWS):
                rows = min(CHUNK_ROWS, shape[0] - start)
                piece = member.read(rows * per_row)
                if len(piece) != rows * per_row:
                    raise DataError(
                        f"{path}: {name} ends after row {start + len(piece) // max(1, per_row)} of {shape[0]}"
                    )
                out[start : start + rows] = np.frombuffer(piece, dtype=stored).reshape(rows, *shape[1:])
            return out

    def info(self) -> DataInfo:
        """What a file written here says about itself."""
        known: State = {}
        for key in [key for key in INFO_KEYS if key in self.names]:
            with self._open(key) as member:
                known[key] = np.lib.format.read_array(member).tolist()
        return DataInfo.from_dict(str(self.path), known)

    def _open(self, name: str) -> IO[bytes]:
        """An array's bytes, packed as numpy packs: other ways can stand for a million times their size."""
        found = self.file.getinfo(name + ENDING)
        if found.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise DataError(
                f"{self.path}: {name} is compressed in a way that numpy does not use, which is refused"
            )
        refuse_false_size(self.path, name, found.file_size, found.compress_size)
        return self.file.open(found)

    def _header(self, member: IO[bytes], name: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
        """Shape, whether stored column by column, and type, as the NPY format states them."""
        version = np.lib.format.read_magic(member)
        if version == (1, 0):
            return np.lib.format.read_array_header_1_0(member)
        if version == (2, 0):
            return np.lib.format.read_array_header_2_0(member)
        raise DataError(
            f"{self.path}: {name} is stored in NPY version {version}, only 1.0 and 2.0 hold plain numbers"
        )


@contextmanager
def open_npz(path: Path, target: Target | None = None) -> Iterator[Archive]:
    """The archive; whatever is wrong with its bytes becomes one line."""
    with reading(path, "NPZ", *_PROBLEMS), zipfile.ZipFile(path) as file:
        yield Archive(file, path, target or Target())


def write_arrays(path: Path, arrays: Mapping[str, Array], info: DataInfo) -> None:
    """An archive of named arrays, with what is known about them as further ones."""
    known = {key: np.asarray(value) for key, value in info.to_dict().items()}
    with path.open("wb") as file:
        np.savez(file, **arrays, **known)  # type: ignore[arg-type]  # names are no keywords of savez


def npz_names(path: Path) -> set[str]:
    """Names of the arrays of an archive, or nothing where the path is no readable archive."""
    if path.suffix.lower() != ".npz" or not path.is_file():
        return set()
    try:
        with open_npz(path) as archive:
            return set(archive.names)
    except DataError:
        return set()


def read_npz(source: DatasetSource, target: Target) -> EpisodeLog:
    """Read an archive of named arrays, one row per step."""
    path = file_of(source)
    with open_npz(path, target) as archive:
        columns = archive.columns(resolve_names(archive.names, str(path)))
        info = archive.info()
    return EpisodeLog.build(columns, info=info, lenient=target.lenient)


def npz_keys(path: Path) -> list[str]:
    """Names of the arrays of an archive."""
    with open_npz(path) as archive:
        return sorted(archive.names)


def write_npz(log: EpisodeLog, path: Path) -> None:
    """Write the columns of a log and what is known about them."""
    write_arrays(path, log.written_columns, log.info)


NPZ = Format(
    read=read_npz,
    suffixes=(".npz",),
    recognise=has_ending(".npz"),
    write=write_npz,
    keys=npz_keys,
    table_fields=(),
)
