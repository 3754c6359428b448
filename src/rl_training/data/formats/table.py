"""Tables with one row per step: CSV, TSV, Parquet, Feather and JSON lines; a file, a folder or a pattern."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from rl_training.config.data_fields import DatasetSource
from rl_training.data.episode_log import EpisodeLog
from rl_training.data.episodes import Array
from rl_training.data.field_names import VECTOR_FIELDS, WRITTEN_NAMES
from rl_training.data.formats import Format
from rl_training.data.reading import Target, file_of
from rl_training.data.tables.assembling import read_rows, stored_info
from rl_training.data.tables.files import (
    KIND_OF_ENDING,
    files_of,
    holds_tables,
    import_pyarrow,
    is_pattern,
    kind_of_file,
)
from rl_training.data.tables.joining import JoinedFiles, joined
from rl_training.data.tables.opening import TableFile, open_table
from rl_training.data.validation import row_chunks
from rl_training.data.writing import log_columns

_INFO = b"rl_training"


def read_table(source: DatasetSource, target: Target, *, kind: str | None = None) -> EpisodeLog:
    """Read every file of a table into one log; `kind` overrules the endings of the files."""
    path = file_of(source)
    import_pyarrow()
    files = files_of(path)
    tables: list[TableFile] = []
    for file in files:
        tables.append(open_table(file, source, kind=kind, like=tables[0] if tables else None))
    info = stored_info(str(path), tables[0].info)
    return read_rows(
        [(_label(table), table) for table in joined(tables)],
        source,
        target,
        source=str(path),
        capacity=sum(table.rows for table in tables),
        info=info,
    )


def _label(table: TableFile | JoinedFiles) -> str:
    return str(table.files[0].path if isinstance(table, JoinedFiles) else table.path)


def table_keys(path: Path) -> list[str]:
    """Names of the columns of (the first file of) a table."""
    return list(open_table(files_of(path)[0], DatasetSource()).names)


def write_parquet(log: EpisodeLog, path: Path) -> None:
    """One row per step; observations and actions are lists of fixed size."""
    import_pyarrow()
    import pyarrow.parquet as parquet

    parquet.write_table(_list_table(log), path)


def write_feather(log: EpisodeLog, path: Path) -> None:
    """As Parquet, uncompressed: a file that can be mapped."""
    pa = import_pyarrow()
    table = _list_table(log)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


def write_csv(log: EpisodeLog, path: Path) -> None:
    """One column per number, under its own name where it has one; numbers are written to the last digit."""
    pa = import_pyarrow()
    import pyarrow.csv as arrow_csv

    arrow_csv.write_csv(pa.table(_named_columns(log)), path)


def write_jsonl(log: EpisodeLog, path: Path) -> None:
    """One mapping per step, vectors as lists; like CSV it cannot hold bounds."""
    columns = {WRITTEN_NAMES[field]: values for field, values in log_columns(log).items()}
    with path.open("w", encoding="utf-8") as file:
        for rows in row_chunks(len(log)):
            parts = [values[rows].tolist() for values in columns.values()]
            lines = (json.dumps(dict(zip(columns, row, strict=True))) for row in zip(*parts, strict=True))
            file.writelines(f"{line}\n" for line in lines)


def _list_table(log: EpisodeLog) -> Any:
    pa = import_pyarrow()
    arrays = {WRITTEN_NAMES[field]: _arrow_column(pa, values) for field, values in log_columns(log).items()}
    return pa.table(arrays).replace_schema_metadata({_INFO: json.dumps(log.info.to_dict()).encode()})


def _named_columns(log: EpisodeLog) -> dict[str, Array]:
    """Numbered columns by their usual names, which reading recognises without a mapping."""
    columns: dict[str, Array] = {}
    for field, values in log_columns(log).items():
        if field not in VECTOR_FIELDS:
            columns[WRITTEN_NAMES[field]] = values.astype("int8") if values.dtype == bool else values
            continue
        matrix = values if values.ndim > 1 else values[:, None]
        columns |= {f"{WRITTEN_NAMES[field]}_{index}": matrix[:, index] for index in range(matrix.shape[1])}
    return columns


def _arrow_column(pa: Any, values: Array) -> Any:
    if values.ndim == 1:
        return pa.array(values)
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])


def _recognises(kind: str) -> Callable[[Path], bool]:
    return lambda path: not path.is_dir() and not is_pattern(path) and kind_of_file(path) == kind


TABLE = Format(read=read_table, suffixes=tuple(KIND_OF_ENDING), recognise=holds_tables, keys=table_keys)
CSV = Format(
    read=partial(read_table, kind="csv"),
    suffixes=(".csv",),
    recognise=_recognises("csv"),
    write=write_csv,
    keys=table_keys,
)
PARQUET = Format(
    read=partial(read_table, kind="parquet"),
    suffixes=(".parquet",),
    recognise=_recognises("parquet"),
    write=write_parquet,
    keys=table_keys,
)
JSONL = Format(
    read=partial(read_table, kind="jsonl"),
    suffixes=(".jsonl", ".ndjson"),
    recognise=_recognises("jsonl"),
    write=write_jsonl,
    keys=table_keys,
)
FEATHER = Format(
    read=partial(read_table, kind="feather"),
    suffixes=(".feather", ".arrow"),
    recognise=_recognises("feather"),
    write=write_feather,
    keys=table_keys,
)
