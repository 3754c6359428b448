"""The decision log: every call a row, in SQLite or PostgreSQL, written in batches beside the answers.

A row is acknowledged before it is on the disk; within `WINDOW` of its answer it is there. Committed rows
survive a killed process (SQLite's write-ahead log, synchronous=NORMAL; PostgreSQL's own).
"""

from __future__ import annotations

import queue
import sqlite3
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rl_training.core.drift import OWN_COLUMNS, RECOMMENDED
from rl_training.core.errors import UserError, install_hint
from rl_training.core.types import State

WINDOW = 1.0
"""Seconds; what was acknowledged in the last of them can be lost when the process is killed."""
GATHERED = 0.1
"""Seconds that a row waits for others; the rest of the window is for writing, on a busy machine too."""
BATCH = 2_000
MOST_WAITING = 200_000
"""Rows that wait for a database that does not answer, before calls are told so."""
TABLE = "decisions"
TEXTS = ("decision", "session", "episode", "policy", "inputs", "served_as")


class Database(Protocol):
    """What a decision log needs of a connection."""

    placeholder: str

    def run(self, statement: str, rows: Sequence[Sequence[object]] = ()) -> None: ...

    def rows(self, query: str) -> list[tuple[Any, ...]]: ...

    def columns(self) -> list[str]: ...

    def commit(self) -> None: ...

    def close(self) -> None: ...


class SQLite:
    """A file beside the policy, with a write-ahead log."""

    placeholder = "?"

    def __init__(self, path: Path) -> None:
        try:
            self.connection = sqlite3.connect(path, timeout=10.0, check_same_thread=False)
            self.connection.execute("pragma journal_mode = wal")
            self.connection.execute("pragma synchronous = normal")
        except sqlite3.Error as problem:
            raise UserError(f"--decisions {path} cannot be opened: {problem}; name another file") from problem

    def run(self, statement: str, rows: Sequence[Sequence[object]] = ()) -> None:
        if rows:
            self.connection.executemany(statement, rows)
        else:
            self.connection.execute(statement)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        return self.connection.execute(query).fetchall()

    def columns(self) -> list[str]:
        return [row[1] for row in self.rows(f"pragma table_info({TABLE})")]

    def commit(self) -> None:
        self.connection.commit()

    def close(self) -> None:
        self.connection.close()


class PostgreSQL:
    """A table of a server, through ADBC; the password comes from PGPASSWORD or ~/.pgpass."""

    placeholder = "$"

    def __init__(self, url: str) -> None:
        try:
            from adbc_driver_postgresql import dbapi
        except ImportError as problem:
            raise UserError(f"--decisions postgresql:// needs ADBC; {install_hint('sql')}") from problem
        try:
            self.connection: Any = dbapi.connect(url)
        except dbapi.Error as problem:
            first = str(problem).splitlines()[0]
            raise UserError(f"--decisions: the database cannot be reached: {first}") from problem

    def run(self, statement: str, rows: Sequence[Sequence[object]] = ()) -> None:
        with self.connection.cursor() as cursor:
            if rows:
                cursor.executemany(statement, [tuple(row) for row in rows])
            else:
                cursor.execute(statement)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with self.connection.cursor() as cursor:
            cursor.execute(query)
            found: list[tuple[Any, ...]] = cursor.fetchall()
            return found

    def columns(self) -> list[str]:
        found = self.rows(
            "select column_name from information_schema.columns "
            f"where table_name = '{TABLE}' and table_schema = any(current_schemas(false)) "
            "order by ordinal_position"
        )
        return [row[0] for row in found]

    def commit(self) -> None:
        self.connection.commit()

    def close(self) -> None:
        self.connection.close()


def open_database(place: str) -> Database:
    """A database by its address, or a file."""
    if place.startswith(("postgresql://", "postgres://")):
        if "@" in place and ":" in place.split("://", 1)[1].split("@", 1)[0]:
            raise UserError("--decisions must not hold a password: set PGPASSWORD or write it to ~/.pgpass")
        return PostgreSQL(place)
    return SQLite(Path(place.removeprefix("sqlite:")))


@dataclass(frozen=True)
class Columns:
    """The columns of the table: what is observed, recommended and applied, and our own."""

    observations: tuple[str, ...]
    actions: tuple[str, ...]

    def __post_init__(self) -> None:
        taken = [*OWN_COLUMNS, *(f"{RECOMMENDED}{name}" for name in self.actions)]
        names = [*self.observations, *self.actions]
        for name in names:
            if name in taken or names.count(name) > 1:
                raise UserError(
                    f"the policy's column {name!r} has the name of another column of the decision log; "
                    "rename it in the log that the policy is trained on"
                )

    @property
    def names(self) -> tuple[str, ...]:
        recommended = (f"{RECOMMENDED}{name}" for name in self.actions)
        return (*OWN_COLUMNS, *self.observations, *recommended, *self.actions)

    def definition(self, words: Sequence[str]) -> str:
        """The statement that makes the table; `words` are actions that are given by name."""
        texts = {*TEXTS, *words, *(f"{RECOMMENDED}{name}" for name in words)}
        kinds = [f"{quoted(name)} {'text' if name in texts else 'double precision'}" for name in self.names]
        kinds[0] += " primary key"
        return f"create table if not exists {TABLE} ({', '.join(kinds)})"


def quoted(name: str) -> str:
    """A name inside a statement; nothing else of a policy or a call ever becomes part of one."""
    return '"' + name.replace('"', '""') + '"'


Item = tuple[State, tuple[str, State] | None]


class DecisionLog:
    """Takes rows from the answering thread and writes them in one of its own."""

    def __init__(self, place: str, columns: Columns, words: Sequence[str] = ()) -> None:
        self.place, self.columns = place, columns
        self.waiting: queue.Queue[Item | None] = queue.Queue()
        self.written = 0
        self.problem: str | None = None
        """Why rows cannot be written, while they cannot"""
        self.database = open_database(place)
        self.database.run(columns.definition(words))
        self.database.commit()
        missing = {*columns.names} - {*self.database.columns()}
        if missing:
            raise UserError(
                f"--decisions {place} has decisions of a policy with other columns "
                f"(no {', '.join(sorted(missing))}); name another place"
            )
        self.thread = threading.Thread(target=self._write, name="decision log", daemon=True)
        self.thread.start()

    def add(self, row: State, applied_before: tuple[str, State] | None) -> None:
        """Take a row, and what was done in the step before it; refused when the database is far behind."""
        if self.waiting.qsize() > MOST_WAITING:
            raise UserError(f"the decision log cannot be written: {self.problem or 'it is too slow'}")
        self.waiting.put((row, applied_before))

    def close(self) -> None:
        """Write what waits and close."""
        self.waiting.put(None)
        self.thread.join(timeout=30.0)

    def _write(self) -> None:
        running = True
        while running:
            items, running = self._batch()
            while items and not self._store(items):
                time.sleep(1.0)  # a database that is away comes back; the rows wait
                if not running:
                    return

    def _batch(self) -> tuple[list[Item], bool]:
        """What has come within the window, and whether more can."""
        items: list[Item] = []
        until = None
        while len(items) < BATCH:
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0.0:
                break
            try:
                item = self.waiting.get(timeout=left)
            except queue.Empty:
                break
            if item is None:
                return items, False
            items.append(item)
            until = until or time.monotonic() + GATHERED
        return items, True

    def _store(self, items: Sequence[Item]) -> bool:
        names, actions = self.columns.names, self.columns.actions
        try:
            rows = [[row.get(name) for name in names] for row, _ in items]
            places = ", ".join(self._place(index) for index in range(len(names)))
            listed = ", ".join(map(quoted, names))
            self.database.run(
                f"insert into {TABLE} ({listed}) values ({places}) on conflict do nothing", rows
            )
            done = [
                [*(applied[a] for a in actions), key] for _, told in items if told for key, applied in [told]
            ]
            if done:
                sets = ", ".join(f"{quoted(name)} = {self._place(i)}" for i, name in enumerate(actions))
                self.database.run(
                    f"update {TABLE} set {sets} where decision = {self._place(len(actions))}", done
                )
            self.database.commit()
        except Exception as problem:  # whatever the driver raises: the rows are kept and tried again
            self.problem = " ".join(str(problem).split())[:200]
            return False
        self.written += len(items)
        self.problem = None
        return True

    def _place(self, index: int) -> str:
        sign = self.database.placeholder
        return sign if sign == "?" else f"{sign}{index + 1}"
