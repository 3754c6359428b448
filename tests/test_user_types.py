"""The types that users see: a sound script passes mypy, a script with five mistakes gets five complaints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from support import ROOT

SCRIPTS = Path(__file__).parent / "typing"


def run(*command: str) -> subprocess.CompletedProcess[str]:
    paths = {"PYTHONPATH": str(ROOT / "src"), "MYPYPATH": str(ROOT / "src")}
    return subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, **paths},
    )


def mypy(script: str) -> str:
    """Its output, with the project's settings and cache."""
    return run("-m", "mypy", str(SCRIPTS / script)).stdout


def test_a_sound_script_passes() -> None:
    output = mypy("good_user.py")
    assert output.startswith("Success"), output


def test_every_mistake_is_found() -> None:
    output = mypy("bad_user.py")
    assert {int(line) for line in re.findall(r"bad_user\.py:(\d+): error", output)} == {5, 6, 7, 8, 9}, output


def test_the_stubs_say_what_the_registry_says() -> None:
    done = run(str(ROOT / "tools" / "make_stubs.py"), "--check")
    assert done.returncode == 0, done.stderr
