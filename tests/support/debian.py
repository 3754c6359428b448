"""Programs that tests need, installed on Debian where they are missing and the user may."""

from __future__ import annotations

import os
import shutil
import subprocess
import time

BUSY_SECONDS = 600.0
WAIT_SECONDS = 5.0


class NotInstalled(RuntimeError):
    """A program is missing, and there is no way to get it."""


def install(*packages: str, why: str) -> None:
    """Install packages of Debian."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise NotInstalled(f"{why} and cannot be installed by this user: apt-get install {packages[0]}")
    print(f"Installing {packages[0]} (once)", flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update"], ["install", "-y", "--no-install-recommends", *packages]):
        _apt(command, environment)


def _apt(command: list[str], environment: dict[str, str]) -> None:
    """Run apt-get; where another program holds one of its locks, wait for that to end."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        done = subprocess.run(
            # apt's own wait covers the lock for installing, not those of `update` and of downloads
            ["apt-get", "-qq", "-o", "Acquire::Retries=3", "-o", "DPkg::Lock::Timeout=600", *command],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if not done.returncode:
            return
        if "Could not get lock" not in done.stdout or time.monotonic() > deadline:
            raise NotInstalled(f"apt-get {command[0]} failed: {' '.join(done.stdout.split())[-400:]}")
        print("The package manager is busy, waiting", flush=True)
        time.sleep(WAIT_SECONDS)
