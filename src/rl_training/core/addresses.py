"""Addresses where data lies that are no paths: `postgresql://host/db`, `sqlite:plant.db`, `s3://bucket/log.csv`."""

from __future__ import annotations

import os
import re
from urllib.parse import parse_qsl

from rl_training.core.errors import DataError

DATABASES = ("postgresql", "postgres", "sqlite")
"""Schemes of databases that are read."""

FILE_SYSTEMS = ("s3", "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs", "file")
"""Schemes of file systems that are read."""

_ADDRESS = re.compile(r"([a-z][a-z0-9+.-]+):(//)?", re.IGNORECASE)
_SECRETS = ("password", "sslpassword", "secret", "secret_key", "access_key", "session_token", "token")


def scheme_of(text: str) -> str | None:
    """`postgresql` of postgresql://host/db, `sqlite` of sqlite:plant.db; none of a path."""
    match = _ADDRESS.match(text)
    if match is None or not (match[2] or match[1].lower() == "sqlite") or os.path.exists(text):
        return None
    return match[1].lower()


def is_database(text: str) -> bool:
    """Whether a text is the address of a database that is read."""
    return scheme_of(text) in DATABASES


def database_file(address: str) -> str:
    """The path in sqlite:plant.db, also written sqlite:///plant.db."""
    rest = address.partition(":")[2]
    return rest[3:] if rest.startswith("///") else rest.removeprefix("//")


def absolute(text: str) -> str:
    """A path, or the path in an address of SQLite, from the root; other addresses as they are."""
    scheme = scheme_of(text)
    if scheme == "sqlite":
        return f"sqlite:{os.path.abspath(database_file(text))}"
    return os.path.abspath(text) if scheme is None else text


def password_problem(text: str, name: str = "dataset_path") -> str | None:
    """What is wrong with an address that holds a password: it would be stored with every run."""
    scheme = scheme_of(text)
    if scheme in (None, "sqlite"):
        return None
    rest, _, query = text.partition("://")[2].partition("?")
    user = rest.rpartition("@")[0]
    if ":" not in user and not any(key.lower() in _SECRETS for key, _ in parse_qsl(query)):
        return None
    return (
        f"{name} must not hold a password, which would be stored with the run: leave it out of {scheme}://… "
        "and put it into "
        + ("~/.pgpass or the environment (PGPASSWORD)" if is_database(text) else "the environment")
    )


def refuse_password(text: str, name: str) -> None:
    """Refuse an address that holds a password, without showing it."""
    if problem := password_problem(text, name):
        raise DataError(problem)
