"""What happens to an exception that nobody expected: one line for the user, a file for us."""

from __future__ import annotations

import os
import platform
import shlex
import tempfile
import traceback
from collections.abc import Sequence

import typer

from rl_training.config.wording import printable
from rl_training.core.version import library_versions

BUG = 70
"""The exit code of a bug of ours (`EX_SOFTWARE` of sysexits.h)."""


def report_bug(problem: Exception, arguments: Sequence[str], *, debug: bool) -> int:
    """Say what happened and where the whole story is, and return the exit code."""
    what = " ".join(f"{type(problem).__name__}: {problem}".split())[:500]
    if debug:
        traceback.print_exception(problem)
    place = _write_report(problem, arguments)
    where = "no report could be written" if place is None else f"full report: {place}"
    remedy = "" if debug else "; rl-training --debug COMMAND … shows the traceback"
    typer.echo(f"error: this is a bug of rl-training: {printable(what)}; {where}{remedy}", err=True)
    return BUG


def _write_report(problem: Exception, arguments: Sequence[str]) -> str | None:
    """A file of its own in the system's temporary directory, which only the user can read."""
    versions = [f"{name} {version}" for name, version in library_versions().items()]
    lines = [
        f"command: {shlex.join(['rl-training', *arguments])}",
        f"directory: {_working_directory()}",
        f"versions: {', '.join([*versions, platform.platform()])}",
        "",
        "".join(traceback.format_exception(problem)),
    ]
    try:
        descriptor, place = tempfile.mkstemp(prefix="rl-training-bug-", suffix=".txt")
        with open(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write("\n".join(lines))
    except OSError:
        return None
    return place


def _working_directory() -> str:
    try:
        return os.getcwd()
    except OSError:
        return "no longer there"
