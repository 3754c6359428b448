"""Rows out of databases: SQLite always, PostgreSQL where its programs are on the machine."""

from __future__ import annotations

import shlex
import sqlite3
import warnings
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from doc_blocks import blocks
from helpers import ROOT
from postgres import PASSWORD, PostgresServer, find_binaries
from rl_training.cli import app as cli
from rl_training.config.data import DatasetSource
from rl_training.core.errors import ConfigError, DataError
from rl_training.data import TransitionDataset, read_log
from rl_training.data.disk import cached_log
from rl_training.data.reading import DataWarning
from rl_training.data.tables.sql import open_query

pytest.importorskip("adbc_driver_sqlite")

COLUMNS: dict[str, Any] = {
    "observations": ["T", "level"],
    "actions": ["valve"],
    "reward": "score",
    "episode": "run",
    "time": "at",
    "terminated": "trip",
}
ROWS = [
    ("R0", 0, 1.5, 10, 0, -1.0, "no"),
    ("R0", 1, 2.5, 11, 50, -2.0, "no"),
    ("R0", 2, 3.5, 12, 100, -3.0, "yes"),
    ("R1", 0, 4.5, 13, 25, -4.0, "no"),
    ("R1", 1, 5.5, 14, 75, -5.0, "no"),
]
NAMES = "run, at, T, level, valve, score, trip"


def sqlite_log(path: Path, rows: list[Any] = ROWS, types: str = NAMES) -> str:
    with sqlite3.connect(path) as database:
        database.execute(f"create table log ({types})")
        marks = ", ".join("?" * len(rows[0]))
        database.executemany(f"insert into log values ({marks})", rows)
    database.close()
    return f"sqlite:{path}"


def load(address: str, columns: dict[str, Any] = COLUMNS, **fields: Any) -> TransitionDataset:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        return read_log(address, **columns, **fields)


def told(address: str, **fields: Any) -> str:
    with pytest.warns(DataWarning) as notes:
        read_log(address, **COLUMNS, **fields)
    return "\n".join(str(note.message) for note in notes)


def check_rows(data: TransitionDataset) -> None:
    assert data.obs.tolist() == [[1.5, 10], [2.5, 11], [3.5, 12], [4.5, 13]]
    assert data.actions.tolist() == [[0], [50], [100], [25]]
    assert data.dones.tolist() == [0, 0, 1, 0]
    assert data.episode_returns().tolist() == [-6, -9]
    assert data.info.observation_names == ("T", "level")


# ---- SQLite


def test_a_table_is_sorted_by_its_episodes_and_times(tmp_path: Path) -> None:
    address = sqlite_log(tmp_path / "plant.db", [ROWS[index] for index in (4, 2, 0, 3, 1)])
    check_rows(load(address, table="log"))
    assert "the rows are those of log, the only table" in told(address)


def test_a_query_says_its_own_order(tmp_path: Path) -> None:
    address = sqlite_log(tmp_path / "plant.db")
    check_rows(load(address, query="select *, 1 as other from log order by run, at;"))
    assert "the query has no 'order by'" in told(address, query="select * from log")


def test_the_order_of_a_query_survives(tmp_path: Path) -> None:
    """Rows are read through a query around it."""
    database = sqlite3.connect(tmp_path / "plant.db")
    numbers = np.random.default_rng(0).permutation(5000).tolist()
    database.execute("create table log (i, obs_0, action_0)")
    database.executemany("insert into log values (?, ?, ?)", [(n, n / 2, n % 7) for n in numbers])
    database.commit()
    for order, expected in (("i desc", range(4999, -1, -1)), ("i", range(5000))):
        query = f"select i as reward, obs_0, action_0 from log order by {order}"
        data = load(f"sqlite:{tmp_path / 'plant.db'}", {}, query=query)
        assert data.rewards.tolist() == list(expected)[:-1]


def test_cells_of_sqlite_have_types_of_their_own(tmp_path: Path) -> None:
    """Whole numbers first, nothing first, and numbers as text: each would mislead who looks at the first."""
    rows = [(i, i if i < 3000 else i + 0.5, None if i < 2000 else i * 0.5, str(i)) for i in range(4000)]
    address = sqlite_log(tmp_path / "plant.db", rows, "action_0, obs_0 numeric, obs_1 real, obs_2 text")
    data = load(address, {}, table="log", missing_values="drop", query_timeout=60.0)
    assert len(data) == 1999
    assert data.obs[-1].tolist() == [3998.5, 1999.0, 3998.0]
    with pytest.raises(DataError, match=r"row 2 has '1,5' in the number column 'obs_0'"):
        bad = sqlite_log(tmp_path / "bad.db", [(0, 1), (1, 2), (2, "1,5")], "action_0, obs_0")
        load(bad, {}, table="log")


def test_a_database_is_never_written(tmp_path: Path) -> None:
    address = sqlite_log(tmp_path / "plant.db")
    before = (tmp_path / "plant.db").read_bytes()
    for query in ("delete from log", "attach database 'other.db' as other", "select 1; drop table log"):
        with pytest.raises(DataError, match="sqlite:"):
            load(address, query=query)
    assert (tmp_path / "plant.db").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["plant.db"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"table": "logs"}, r"no table 'logs' \(did you mean 'log'\?\); it has log, other"),
        ({}, r"say which rows: --table NAME \(it has log, other\) or --query"),
        ({"query": "select speed from log"}, "no such column: speed"),
        ({"query": "select from log"}, "syntax error"),
        ({"query": "select run from log order by run"}, r"no column 'T'"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, fields: dict[str, str], message: str) -> None:
    address = sqlite_log(tmp_path / "plant.db")
    with sqlite3.connect(tmp_path / "plant.db") as database:
        database.execute("create view other as select 1")
    database.close()
    with pytest.raises(DataError, match=message) as problem:
        load(address, **fields)
    assert "\n" not in str(problem.value)


def test_a_file_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"sqlite:.*nothing.db: no such file"):
        load(f"sqlite:{tmp_path / 'nothing.db'}", table="log")
    assert not list(tmp_path.iterdir())


def test_rows_of_databases_only(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="query needs a database as dataset_path"):
        load(str(tmp_path / "log.csv"), query="select 1")
    with pytest.raises(ConfigError, match="query and table must not be given together"):
        load("sqlite:plant.db", query="select 1", table="log")
    address = sqlite_log(tmp_path / "plant.db")
    with pytest.raises(DataError, match="dataset_in_memory: false needs files"):
        cached_log("table", DatasetSource(dataset_path=address, table="log"))


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://plant:secret@host/db",
        "postgresql://plant:se/cr@et@host:5432/db",
        "postgresql://host/db?user=plant&password=secret",
        "s3://key:secret@bucket/log.csv",
    ],
)
def test_a_password_in_an_address_is_refused_and_not_shown(
    tmp_path: Path, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in (
        ["data", "inspect", address],
        ["train", "--algo", "bc", "--data", address, "--output-dir", str(tmp_path)],
        ["train", "--config", "iql/own_data", "--set", f"algo_kwargs.dataset_path={address}"],
    ):
        assert cli.main(arguments) == 2
        said = "".join(capsys.readouterr())
        assert "must not hold a password" in said
        assert "PGPASSWORD" in said or address.startswith("s3:")
        assert "secret" not in said and "cr@et" not in said
    assert not list(tmp_path.iterdir())


def test_an_unknown_table_is_told_about_and_a_known_one_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    address = sqlite_log(tmp_path / "plant.db")
    assert cli.main(["data", "inspect", address, "--table", "log"]) == 0
    said = capsys.readouterr().out
    assert f"--data {address} --table log --obs" in said
    given = ["--obs", "T,level", "--action", "valve", "--reward", "score", "--episode", "run", "--time", "at"]
    assert cli.main(["data", "convert", address, str(tmp_path / "log.csv"), "--table", "log", *given]) == 0
    assert "5 rows, 2 episodes" in capsys.readouterr().out


# ---- PostgreSQL

ENOUGH = 2000
"""Rows to train on."""


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    binaries = find_binaries()
    if binaries is None:
        pytest.skip("PostgreSQL's programs are not on this machine (Debian: apt-get install postgresql)")
    with PostgresServer(binaries) as started:
        yield started


@pytest.fixture
def address(server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    return server.address


def execute(address: str, *statements: str) -> None:
    from adbc_driver_postgresql import dbapi

    with dbapi.connect(address, autocommit=True) as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def test_a_table_of_postgresql(address: str) -> None:
    """Numbers of any length, enumerations, time zones, flags and a schema of its own."""
    values = ", ".join(
        f"('{run}', '2026-03-01 06:00:00+01'::timestamptz + {at} * interval '30 s', {T}::numeric(8, 3), "
        f"{level}, {valve}, {score}, {trip == 'yes'})"
        for run, at, T, level, valve, score, trip in reversed(ROWS)
    )
    names = 'run, at, "T", level, valve, score, trip'
    execute(
        address,
        "create schema tank",
        f"create table tank.log as select * from (values {values}) as log ({names})",
    )
    data = load(address, table="tank.log")
    check_rows(data)
    check_rows(load(address, query="select * from tank.log order by run, at"))
    assert data.info.source == address and PASSWORD not in address


def test_postgresql_is_only_read(address: str) -> None:
    execute(address, "create table kept as select 1 as obs_0, 2 as action_0, 3 as reward")
    execute(address, "create sequence counter")
    with pytest.raises(DataError, match="in a read-only transaction"):
        load(address, query="select nextval('counter')")
    for query in ("delete from kept", "select 1; delete from kept", "copy kept to program 'touch /tmp/x'"):
        with pytest.raises(DataError, match=r"syntax error|cannot"):
            load(address, query=query)


def test_columns_of_one_name_are_refused(address: str) -> None:
    with pytest.raises(DataError, match="2 columns that are called 'a'; name each with 'as'"):
        load(address, query="select 1 as a, 2 as a")


def test_a_query_that_takes_too_long_is_ended(address: str) -> None:
    with pytest.raises(DataError, match=r"took longer than 0.2 seconds; set query_timeout"):
        load(address, query="select pg_sleep(30)", query_timeout=0.2)


def test_a_wrong_password_is_one_line_without_it(
    address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PGPASSWORD", "guessed")
    assert cli.main(["data", "inspect", address, "--table", "log"]) == 2
    said = "".join(capsys.readouterr())
    assert "password authentication failed" in said and "guessed" not in said
    assert len(said.strip().splitlines()) == 1


def test_a_password_file_is_enough(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    passwords = tmp_path / "pgpass"
    passwords.write_text(f"127.0.0.1:{server.port}:*:plant:{PASSWORD}\n")
    passwords.chmod(0o600)
    monkeypatch.setenv("PGPASSFILE", str(passwords))
    with pytest.raises(DataError, match="no table 'nothing'"):
        load(server.address, table="nothing")


def test_training_resumes_and_says_what_changed(
    address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A query that gives other columns than before ends the resumed run in one line; nothing is lost."""
    waves = "select i, i / 100 as run, sin(i)::float8 as x, cos(i)::float8 as u"
    execute(address, f"create table waves as {waves} from generate_series(1, {ENOUGH}) as i")
    command = [
        "train",
        "--algo",
        "bc",
        "--data",
        address,
        "--query",
        "select * from waves order by i",
        "--episode",
        "run",
    ]
    command += ["--obs", "x", "--action", "u", "--action-low", "-1", "--action-high", "1", "--steps", "2"]
    assert cli.main([*command, "--output-dir", str(tmp_path), "--quiet"]) == 0
    (run,) = tmp_path.iterdir()
    stored = "".join(path.read_text(errors="ignore") for path in run.rglob("*") if path.is_file())
    assert address in stored and PASSWORD not in stored
    resume = ["resume", "--checkpoint", str(run), "--total-timesteps", "4", "--quiet"]
    assert cli.main(resume) == 0
    execute(address, "alter table waves rename column x to speed")
    before = sorted(path.name for path in (run / "checkpoints").iterdir())
    capsys.readouterr()
    assert cli.main(["resume", "--checkpoint", str(run), "--total-timesteps", "6", "--quiet"]) == 2
    said = capsys.readouterr().err
    assert "no column 'x' (columns.observations)" in said and len(said.strip().splitlines()) == 1
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == before


def test_the_commands_of_the_page(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page about databases shows a server that only its reader has."""
    monkeypatch.chdir(tmp_path)
    page = ROOT / "docs" / "from_a_database.md"
    (shown,) = (block for block in blocks(page, "text") if "postgresql://" in block)
    (example,) = (block for block in blocks(page, "python") if "sqlite3.connect" in block)
    exec(example, {})
    with closing(sqlite3.connect("plant.db")) as database:
        rows = database.execute("select * from log").fetchall()
    execute(
        address,
        "create table log (run int, at int, temperature float, level real, valve real, score real, trip int)",
        f"insert into log values {', '.join(map(str, rows))}",
    )
    commands = shown.replace("\\\n", " ").replace("postgresql://plant@server/history", address).splitlines()
    for command in commands:
        short = ["--steps", "2", "--quiet"] if " train " in command else []
        assert cli.main([*shlex.split(command)[1:], *short]) == 0


def test_a_server_that_goes_away_in_the_middle(server: PostgresServer, address: str) -> None:
    """The last test of this server."""
    rows = "select i, repeat('x', 100) as words from generate_series(1, 3000000) as i"
    with (
        pytest.raises(DataError, match=r"postgresql://.*(server closed|terminating connection|connection)"),
        open_query(DatasetSource(dataset_path=address, query=rows)) as query,
    ):
        batches = iter(query.batches({"i": "number"}))
        next(batches)
        server.stop()
        list(batches)
    with pytest.raises(DataError, match="Connection refused"):
        load(address, table="log")
