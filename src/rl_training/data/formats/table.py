"""Tables with one row per step: CSV, TSV, Parquet, Feather and JSON lines; a file, a folder or a pattern."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from rl_training.config.data import DatasetSource
from rl_training.core.spaces import in_words
from rl_training.core.types import Array
from rl_training.data.fields import FIELDS
from rl_training.data.formats import Format
from rl_training.data.log import EpisodeLog
from rl_training.data.reading import Target, row_chunks
from rl_training.data.tables.build import read_rows, stored_info
from rl_training.data.tables.files import (
    KIND_OF_ENDING,
    files_of,
    holds_tables,
    import_pyarrow,
    is_pattern,
    kind_of_file,
)
from rl_training.data.tables.read import joined, open_table
from rl_training.data.tables.sources import open_sources

_INFO = b"rl_training"


def read_table(source: DatasetSource, target: Target, *, kind: str | None = None) -> EpisodeLog:
    """Read every file of a table, or the rows of a database, into one log; `kind` overrules endings."""
    name = str(source.dataset_path)
    with open_sources(source, kind=kind) as tables:
        return read_rows(
            [(table.label, table) for table in joined(tables)],
            source,
            target,
            source=name,
            capacity=sum(table.rows for table in tables),
            info=stored_info(name, tables[0].info),
        )


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
    columns = log.written_columns
    with path.open("w", encoding="utf-8") as file:
        for rows in row_chunks(len(log)):
            parts = [values[rows].tolist() for values in columns.values()]
            lines = (json.dumps(dict(zip(columns, row, strict=True))) for row in zip(*parts, strict=True))
            file.writelines(f"{line}\n" for line in lines)


def _list_table(log: EpisodeLog) -> Any:
    pa = import_pyarrow()
    arrays = {name: _arrow_column(pa, values) for name, values in log.written_columns.items()}
    return pa.table(arrays).replace_schema_metadata({_INFO: json.dumps(log.info.to_dict()).encode()})


def _named_columns(log: EpisodeLog) -> dict[str, Array]:
    """Numbered columns by their usual names, which reading recognises without a mapping."""
    columns: dict[str, Array] = {}
    for name, values in log.columns.items():
        field = FIELDS.get(name)
        if field.kind != "vector":
            columns[field.written_name] = values.astype("int8") if values.dtype == bool else values
            continue
        matrix = values if values.ndim > 1 else values[:, None]
        if name == "actions":
            matrix = in_words(log.info.choices, matrix)
        columns |= {f"{field.written_name}_{index}": matrix[:, index] for index in range(matrix.shape[1])}
    return columns


def _arrow_column(pa: Any, values: Array) -> Any:
    if values.ndim == 1:
        return pa.array(values)
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])


def _of_kind(kind: str, write: Callable[[EpisodeLog, Path], None], *suffixes: str) -> Format:
    """Tables of one kind of file."""
    return Format(
        read=partial(read_table, kind=kind),
        suffixes=suffixes,
        recognise=lambda path: not (path.is_dir() or is_pattern(path)) and kind_of_file(path) == kind,
        write=write,
        keys=table_keys,
    )


TABLE = Format(read=read_table, suffixes=tuple(KIND_OF_ENDING), recognise=holds_tables, keys=table_keys)
CSV = _of_kind("csv", write_csv, ".csv")
PARQUET = _of_kind("parquet", write_parquet, ".parquet")
JSONL = _of_kind("jsonl", write_jsonl, ".jsonl", ".ndjson")
FEATHER = _of_kind("feather", write_feather, ".feather", ".arrow")
