"""Parquet and CSV tables, one row per step: vectors as list columns or as numbered columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.core.errors import DataError
from rl_training.core.extras import install_hint
from rl_training.data.data_info import DataInfo
from rl_training.data.episode_log import EpisodeLog
from rl_training.data.episodes import Array
from rl_training.data.field_names import resolve_names
from rl_training.data.formats.hdf5 import WRITTEN_NAMES
from rl_training.data.reading import Target, reading, vector_columns
from rl_training.data.validation import CHUNK_ROWS

_INFO = b"rl_training"


def read_parquet(path: Path, target: Target) -> EpisodeLog:
    """Read a table in batches of rows."""
    pa, parquet = _pyarrow()
    with reading(path, "Parquet", pa.ArrowException), parquet.ParquetFile(path) as table:
        schema = table.schema_arrow
        vectors = vector_columns(schema.names)
        names = resolve_names([*schema.names, *vectors], str(path))
        parts = {field: vectors.get(name, [name]) for field, name in names.items()}
        columns = _read(table, parts, path, target)
        stored = (schema.metadata or {}).get(_INFO, b"{}")
        info = DataInfo.from_dict(str(path), json.loads(stored))
    return EpisodeLog.build(columns, info=info, lenient=target.lenient)


def parquet_keys(path: Path) -> list[str]:
    """Names of the columns of a table."""
    pa, parquet = _pyarrow()
    with reading(path, "Parquet", pa.ArrowException):
        return sorted(parquet.read_schema(path).names)


def write_parquet(columns: dict[str, Array], info: DataInfo, path: Path) -> None:
    """Write one row per step; observations and actions are lists of fixed size."""
    pa, parquet = _pyarrow()
    arrays = {WRITTEN_NAMES[field]: _arrow_column(pa, values) for field, values in columns.items()}
    table = pa.table(arrays).replace_schema_metadata({_INFO: json.dumps(info.to_dict()).encode()})
    parquet.write_table(table, path)


def read_csv(path: Path, target: Target) -> EpisodeLog:
    """Read a text table with a header line; numbers only."""
    with reading(path, "CSV", ValueError, UnicodeDecodeError):
        with path.open(encoding="utf-8-sig") as file:
            header = [name.strip() for name in file.readline().split(",")]
            values = np.loadtxt(file, delimiter=",", ndmin=2, dtype=np.float64)
        if values.size and values.shape[1] != len(header):
            raise DataError(
                f"{path}: the header names {len(header)} columns, the rows have {values.shape[1]}"
            )
    values = values.reshape(-1, len(header))
    positions = {name: index for index, name in enumerate(header)}
    vectors = vector_columns(header)
    names = resolve_names([*header, *vectors], str(path))
    columns = {}
    for field, name in names.items():
        chosen = values[:, [positions[part] for part in vectors.get(name, [name])]]
        single = name not in vectors
        out = target.array(field, chosen.shape[:1] if single else chosen.shape, chosen.dtype)
        out[...] = chosen[:, 0] if single else chosen
        columns[field] = out
    return EpisodeLog.build(columns, info=DataInfo(source=str(path)), lenient=target.lenient)


def csv_keys(path: Path) -> list[str]:
    """Names in the header line of a text table."""
    with reading(path, "CSV", UnicodeDecodeError), path.open(encoding="utf-8-sig") as file:
        return [name.strip() for name in file.readline().split(",")]


def _read(table: Any, parts: dict[str, list[str]], path: Path, target: Target) -> dict[str, Array]:
    columns: dict[str, Array] = {}
    wanted = [name for group in parts.values() for name in group]
    start = 0
    for batch in table.iter_batches(batch_size=CHUNK_ROWS, columns=wanted):
        stop = start + batch.num_rows
        for field, group in parts.items():
            values = [_numbers(batch.column(name), name, start, path) for name in group]
            piece = values[0] if len(values) == 1 else np.stack(values, axis=1)
            if field not in columns:
                shape = (table.metadata.num_rows, *piece.shape[1:])
                columns[field] = target.array(field, shape, piece.dtype)
            if piece.shape[1:] != columns[field].shape[1:]:
                raise DataError(f"{path}: {group[0]} changes its width at row {start}")
            columns[field][start:stop] = piece
        start = stop
    if not columns:
        raise DataError(f"{path}: the dataset is empty (0 rows)")
    return columns


def _numbers(column: Any, name: str, start: int, path: Path) -> Array:
    """One batch of a column as an array; a list column must have lists of one length."""
    import pyarrow as pa

    if column.null_count:
        row = start + column.is_null().to_pylist().index(True)
        raise DataError(f"{path}: {name} has no value at row {row}; remove or repair such rows")
    if not (pa.types.is_list(column.type) or pa.types.is_large_list(column.type) or _is_fixed(column.type)):
        if not (pa.types.is_floating(column.type) or _is_discrete(column.type)):
            raise DataError(f"{path}: {name} must hold numbers, but holds values of type {column.type}")
        numbers: Array = column.to_numpy(zero_copy_only=False)
        return numbers
    if _is_fixed(column.type):
        lengths = np.full(len(column), column.type.list_size)
    else:
        lengths = column.value_lengths().to_numpy(zero_copy_only=False)
    other = np.flatnonzero(lengths != lengths[0])
    if len(other):
        row = start + int(other[0])
        raise DataError(
            f"{path}: {name} has {lengths[other[0]]} numbers at row {row}, but {lengths[0]} before"
        )
    flat = _numbers(column.flatten(), name, start, path)
    return flat.reshape(len(column), int(lengths[0]))


def _is_fixed(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_fixed_size_list(kind))


def _is_discrete(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_string(kind))


def _arrow_column(pa: Any, values: Array) -> Any:
    if values.ndim == 1:
        return pa.array(values)
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as parquet
    except ImportError:
        raise DataError(f"Parquet files need pyarrow; {install_hint('parquet')}") from None
    return pa, parquet
