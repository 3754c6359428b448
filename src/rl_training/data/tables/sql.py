"""Rows of a database through ADBC: one read-only transaction, streamed, with a time limit.

How many rows there are is counted first, in the same transaction, so that they go straight to their place.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rl_training.config.data import DatasetSource
from rl_training.core.errors import DataError, did_you_mean, install_hint
from rl_training.core.files import database_file, scheme_of
from rl_training.data.tables.files import import_pyarrow

_CONNECTION = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "tcp_user_timeout": 60_000,
    "application_name": "rl-training",
}
"""Seconds until a server that is not there is given up, and milliseconds until one that fell silent is."""

_MANY_TABLES = 20
_NOISE = re.compile(
    r"^[A-Z_]+: |\[(?:libpq|SQLite)\] |Failed to (?:prepare|execute|step|connect)(?: query)?(?: '.*?')?: "
    r"|could not begin COPY: |Execution error \[PGRES_\w+\]: |(?:ERROR|FATAL): +",
    re.DOTALL,
)
"""What drivers put before the words of a server."""


@dataclass(frozen=True)
class _Dialect:
    """What differs from one kind of database to the next."""

    connect: Callable[[str], Any]
    settings: Callable[[float], list[str]]
    """statements at the beginning of the transaction, given the time limit in seconds"""
    tables: str
    """the query that lists tables"""


def _connect_postgresql(address: str) -> Any:
    from adbc_driver_postgresql import dbapi

    missing = [f"{name}={value}" for name, value in _CONNECTION.items() if f"{name}=" not in address]
    return dbapi.connect(address + ("&" if "?" in address else "?") + "&".join(missing))


def _connect_sqlite(address: str) -> Any:
    from adbc_driver_sqlite import dbapi

    path = Path(database_file(address))
    if not path.is_file():
        raise DataError(f"{address}: no such file")
    return dbapi.connect(f"file:{quote(str(path.absolute()))}?mode=ro")


_POSTGRESQL = _Dialect(
    _connect_postgresql,
    lambda seconds: [
        "set transaction isolation level repeatable read, read only",
        f"set local statement_timeout = {round(1000 * seconds)}",
    ],
    "select case table_schema when 'public' then '' else table_schema || '.' end || table_name "
    "from information_schema.tables "
    "where table_schema not in ('pg_catalog', 'information_schema') order by 1",
)
_SQLITE = _Dialect(
    _connect_sqlite,
    lambda seconds: ["pragma query_only = on"],
    "select name from sqlite_master where type in ('table', 'view') and name not like 'sqlite_%' order by 1",
)


@dataclass
class QueryRows:
    """The result of a query, or a table, as a source of rows. Use it inside `open_query`."""

    address: str
    query: str | None
    """none: a whole table"""
    table: str
    limit: float
    cursor: Any
    notes: list[str] = field(default_factory=list)
    info: bytes = b"{}"

    @property
    def label(self) -> str:
        return self.address

    @property
    def source(self) -> str:
        """What stands behind `from`."""
        return _quoted(self.table) if self.query is None else f"({self.query}\n) as wanted_rows"

    @cached_property
    def names(self) -> tuple[str, ...]:
        names = tuple(self._read(f"select * from {self.source} limit 0").schema.names)
        for name in names:
            if names.count(name) > 1:
                raise DataError(
                    f"{self.address}: the query gives {names.count(name)} columns that are called {name!r}; "
                    "name each with 'as'"
                )
        return names

    @property
    def rows(self) -> int:
        return self._counted[0]

    @cached_property
    def _counted(self) -> tuple[int, set[str]]:
        return self._count(self.source)

    def _count(self, source: str) -> tuple[int, set[str]]:
        """How many rows there are, and, of SQLite, which columns have text in any cell."""
        typed = self.names if self._is_sqlite else ()
        asked = ["count(*)", *(f"max(typeof({_quoted_name(name)}) = 'text')" for name in typed)]
        names = ", ".join(f"{wanted} as c{index}" for index, wanted in enumerate(asked))
        counted = self._read(f"select {names} from {source}").read_all()
        rows, *texts = (column[0].as_py() for column in counted.columns)
        return int(rows), {name for name, found in zip(typed, texts, strict=True) if found}

    @property
    def _is_sqlite(self) -> bool:
        return scheme_of(self.address) == "sqlite"

    def first_rows(self, most: int) -> Any:
        """The first rows with all columns."""
        pa = import_pyarrow()
        source = f"(select * from {self.source} limit {most}) as first_rows"
        if self._is_sqlite:
            batches = self._sqlite_batches(list(self.names), source, self._count(source)[1])
        else:
            batches = self._plain_batches(list(self.names), f"select * from {source}")
        return pa.Table.from_batches(list(batches))

    def batches(self, kinds: Mapping[str, str]) -> Iterator[Any]:
        """Record batches of the columns in `kinds`; a table is sorted by its episodes and times."""
        sorted_by = [name for wanted in ("id", "time") for name, kind in kinds.items() if kind == wanted]
        self._note_the_order(sorted_by)
        statement = self.query
        if statement is None:
            wanted = ", ".join(map(_quoted_name, kinds))
            order = f" order by {', '.join(map(_quoted_name, sorted_by))}" if sorted_by else ""
            statement = f"select {wanted} from {self.source}{order}"
        if self._is_sqlite:
            return self._sqlite_batches(list(kinds), f"({statement}\n)", self._counted[1])
        return self._plain_batches(list(kinds), statement)

    def _note_the_order(self, sorted_by: list[str]) -> None:
        if self.query is not None and not re.search(r"\border\s+by\b", self.query, re.IGNORECASE):
            self.notes.append(
                "the query has no 'order by': a database may give rows in any order, so sort them by episode "
                "and time"
            )
        elif self.query is None and not sorted_by:
            self.notes.append(
                f"the rows of table {self.table} come in no certain order: map the time of a step (--time), "
                "or give a --query with 'order by'"
            )

    def _plain_batches(self, names: list[str], statement: str) -> Iterator[Any]:
        for batch in self._read(statement):
            yield _plain_batch(batch, names)

    def _sqlite_batches(self, names: list[str], source: str, texts: set[str]) -> Iterator[Any]:
        """SQLite types cells, not columns, and the driver believes the first ones it sees.

        So a row that settles the types goes before the others, and whole numbers are given as doubles.
        """
        settled = ", ".join(
            f"{'cast(0 as text)' if n in texts else '0.5'} as {_quoted_name(n)}" for n in names
        )
        cells = ", ".join(
            f"cast({quoted} as text)"
            if name in texts
            else f"case typeof({quoted}) when 'integer' then cast({quoted} as real) else {quoted} end"
            for name in names
            for quoted in [_quoted_name(name)]
        )
        first = 1
        for batch in self._read(f"select {settled} union all select {cells} from {source}"):
            yield batch.slice(first)
            first = 0

    def _read(self, statement: str) -> _Stream:
        deadline = time.monotonic() + self.limit
        with self.problems():
            self.cursor.execute(statement)
            return _Stream(self.cursor.fetch_record_batch(), self, deadline)

    @contextmanager
    def problems(self) -> Iterator[None]:
        """Failures of the driver and the server, as one line about the database."""
        with database_problems(self.address, self.limit):
            yield


@dataclass(frozen=True)
class _Stream:
    """Record batches as they come in, with failures told in one line."""

    reader: Any
    rows: QueryRows
    deadline: float

    @property
    def schema(self) -> Any:
        return self.reader.schema

    def __iter__(self) -> Iterator[Any]:
        while True:
            with self.rows.problems():
                try:
                    batch = self.reader.read_next_batch()
                except StopIteration:
                    return
            if time.monotonic() > self.deadline:
                raise _too_slow(self.rows.address, self.rows.limit)
            yield batch

    def read_all(self) -> Any:
        return import_pyarrow().Table.from_batches(list(self), self.schema)


@contextmanager
def open_query(source: DatasetSource) -> Iterator[QueryRows]:
    """Connect, begin a read-only transaction, and give the rows that are asked for."""
    address, limit = str(source.dataset_path), source.query_timeout
    dialect = _SQLITE if scheme_of(address) == "sqlite" else _POSTGRESQL
    _import_drivers()
    with database_problems(address, limit):
        connection = dialect.connect(address)
    try:
        with database_problems(address, limit), connection.cursor() as cursor:
            for statement in dialect.settings(limit):
                cursor.execute(statement)
        with connection.cursor() as cursor:
            query = None if source.query is None else source.query.strip().rstrip(";").rstrip()
            rows = QueryRows(address, query, source.table or "", limit, cursor)
            if query is None:
                rows.table = _existing_table(rows, dialect)
            yield rows
    finally:
        _close(connection)


def _close(connection: Any) -> None:
    """A connection that is lost cannot be closed in order; nothing was written that it could lose."""
    from adbc_driver_manager import Error

    try:
        connection.close()
    except (Error, OSError):
        return


def _import_drivers() -> None:
    import_pyarrow()
    try:
        import adbc_driver_manager
    except ImportError:
        raise DataError(f"reading a database needs ADBC; {install_hint('sql')}") from None
    assert adbc_driver_manager


def _existing_table(rows: QueryRows, dialect: _Dialect) -> str:
    """The table that is named, or the only one that there is."""
    listed = rows._read(dialect.tables).read_all().column(0).to_pylist()
    known = ", ".join(listed[:_MANY_TABLES]) + (" …" if len(listed) > _MANY_TABLES else "")
    has = f"it has {known}" if listed else "it has no table"
    if rows.table in listed or (rows.table.startswith("public.") and rows.table[7:] in listed):
        return rows.table
    if rows.table:
        hint = did_you_mean(rows.table, listed)
        raise DataError(f"{rows.address}: no table {rows.table!r}{hint}; {has}")
    if len(listed) != 1:
        raise DataError(
            f"{rows.address}: say which rows: --table NAME ({has}) or --query 'select … order by …'"
        )
    rows.notes.append(f"the rows are those of {listed[0]}, the only table")
    return str(listed[0])


@contextmanager
def database_problems(address: str, limit: float) -> Iterator[None]:
    """Failures of the driver and the server, as one line that names the database and holds no password."""
    import adbc_driver_manager

    try:
        yield
    except DataError:
        raise
    except ImportError:
        raise DataError(f"{address}: reading it needs its ADBC driver; {install_hint('sql')}") from None
    except (adbc_driver_manager.Error, OSError, import_pyarrow().ArrowException) as problem:
        text = _plain_words(str(problem))
        if "statement timeout" in text:
            raise _too_slow(address, limit) from None
        raise DataError(f"{address}: {text or 'the connection was lost'}") from None


def _too_slow(address: str, limit: float) -> DataError:
    return DataError(
        f"{address}: took longer than {limit:g} seconds; set query_timeout (--query-timeout) or ask for less"
    )


def _plain_words(text: str) -> str:
    """The one line that a server means, out of what a driver makes of it."""
    text = re.split(r"\n+Query was:|\nquery:|\nLINE \d+:|\. SQLSTATE:", text)[0]
    return " ".join(_NOISE.sub("", text).split())[:300]


def _plain_batch(batch: Any, names: Iterable[str]) -> Any:
    """The wanted columns; numbers of any length, which come as text, as doubles."""
    pa = import_pyarrow()
    arrays = []
    for name in names:
        column = batch.column(batch.schema.get_field_index(name))
        if isinstance(column.type, pa.BaseExtensionType):
            numeric = getattr(column.type, "type_name", "") == "numeric"
            column = column.storage.cast(pa.float64()) if numeric else column.storage
        arrays.append(column)
    return pa.RecordBatch.from_arrays(arrays, names=list(names))


def _quoted_name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _quoted(table: str) -> str:
    """`plant.log` as "plant"."log"."""
    return ".".join(map(_quoted_name, table.split(".")))
