"""Where the rows of a table come from: files, or a database."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rl_training.config.data import DatasetSource
from rl_training.core.addresses import is_database
from rl_training.data.reading import file_of
from rl_training.data.tables.files import files_of, import_pyarrow
from rl_training.data.tables.read import TableFile, open_table
from rl_training.data.tables.sql import QueryRows, open_query

Source = TableFile | QueryRows


@contextmanager
def open_sources(source: DatasetSource, *, kind: str | None = None) -> Iterator[list[Source]]:
    """What a dataset's path stands for, opened as far as its column names.

    `kind` overrules the endings of files. A database stays connected until the end.
    """
    import_pyarrow()
    if is_database(str(source.dataset_path)):
        with open_query(source) as rows:
            yield [rows]
        return
    tables: list[TableFile] = []
    for file in files_of(file_of(source)):
        tables.append(open_table(file, source, kind=kind, like=tables[0] if tables else None))
    yield [*tables]
