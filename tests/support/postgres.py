"""A PostgreSQL server of its own for a test: started in a new directory, reached by a socket and a port.

.venv/bin/python tests/support/postgres.py     installs Debian's package where none is found (root)
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from glob import glob
from pathlib import Path
from typing import Self

from debian import NotInstalled, install

USER, PASSWORD = "plant", "quite secret"


def find_binaries() -> Path | None:
    """The directory of initdb and pg_ctl: on the path, or where Debian puts them."""
    on_path = shutil.which("pg_ctl")
    folders = [Path(on_path).resolve().parent] if on_path else []
    folders += [Path(name) for name in sorted(glob("/usr/lib/postgresql/*/bin"), reverse=True)]
    return next((folder for folder in folders if (folder / "initdb").is_file()), None)


class PostgresServer:
    """A server with a superuser whose password is asked for; the socket and the port are its own."""

    def __init__(self, binaries: Path) -> None:
        self.binaries = binaries
        self.folder = Path(tempfile.mkdtemp(prefix="rl-pg-", dir="/tmp"))  # a socket's path must be short
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self.owner = "nobody" if os.geteuid() == 0 else None  # it refuses to be run by root
        if self.owner is not None:
            shutil.chown(self.folder, self.owner)

    @property
    def address(self) -> str:
        return f"postgresql://{USER}@127.0.0.1:{self.port}/postgres"

    def __enter__(self) -> Self:
        secret = self.folder / "password"
        secret.write_text(PASSWORD)
        if self.owner is not None:
            shutil.chown(secret, self.owner)
        self._run("initdb", "-U", USER, "--auth=scram-sha-256", f"--pwfile={secret}", "-N")
        options = f"-F -p {self.port} -k {self.folder} -c listen_addresses=127.0.0.1"
        self._run("pg_ctl", "-o", options, "-w", "-l", str(self.folder / "log"), "start")
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def stop(self) -> None:
        """End it at once, as a crash would."""
        self._run("pg_ctl", "-m", "immediate", "stop", check=False)

    def _run(self, program: str, *arguments: str, check: bool = True) -> None:
        subprocess.run(
            [str(self.binaries / program), "-D", str(self.folder / "data"), *arguments],
            user=self.owner,
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=check,
        )


if __name__ == "__main__":
    try:
        if find_binaries() is None:
            install("postgresql", why="PostgreSQL is missing")
    except NotInstalled as problem:
        sys.exit(str(problem))
