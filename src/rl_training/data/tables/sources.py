"""Where the rows of a table come from: files, or a database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rl_training.config.data import DatasetSource
from rl_training.core.errors import DataError
from rl_training.core.files import is_database
from rl_training.data.remote import local_path
from rl_training.data.tables.files import files_of, import_pyarrow
from rl_training.data.tables.frames import WORKBOOKS, FrameRows, made_wide, read_workbook
from rl_training.data.tables.read import TableFile, open_table
from rl_training.data.tables.sql import QueryRows, open_query

Source = TableFile | QueryRows | FrameRows


@contextmanager
def open_sources(source: DatasetSource, *, kind: str | None = None) -> Iterator[list[Source]]:
    """What a dataset's path stands for, opened as far as its column names.

    `kind` overrules the endings of files. A database stays connected until the end.
    """
    import_pyarrow()
    with _as_they_are(source, kind) as tables:
        yield tables if source.pivot is None else [made_wide(tables, source)]


@contextmanager
def _as_they_are(source: DatasetSource, kind: str | None) -> Iterator[list[Source]]:
    if is_database(str(source.dataset_path)):
        with open_query(source) as rows:
            yield [rows]
        return
    files = files_of(local_path(str(source.dataset_path)))
    if files[0].suffix.lower() in WORKBOOKS:
        yield [read_workbook(file, source) for file in files]
        return
    if source.sheet is not None:
        raise DataError(f"{source.dataset_path}: sheet is for Excel workbooks (.xlsx): leave it out")
    tables: list[TableFile] = []
    for file in files:
        tables.append(open_table(file, source, kind=kind, like=tables[0] if tables else None))
    yield [*tables]
