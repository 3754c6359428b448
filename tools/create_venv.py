"""Create a virtual environment that has pip, on machines without `ensurepip` too.

Usage: python3 tools/create_venv.py .venv

Debian's `python3` comes without `ensurepip` (it is in `python3-venv`) and often without pip. Then the
environment is made without pip, and pip comes from the machine's own pip or, failing that, as a wheel
from the configured package index. Only the standard library is used. An environment whose pip already
works is left alone.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

MINIMUM = (3, 11)


def main(arguments: list[str]) -> int:
    """Create the environment named by the only argument; return the exit code."""
    if len(arguments) != 1:
        print(__doc__)
        return 2
    if sys.version_info < MINIMUM:
        wanted, found = (".".join(map(str, v[:2])) for v in (MINIMUM, sys.version_info))
        return fail(f"Python >= {wanted} is needed, this is {found}; remedy: make PYTHON=python{wanted}")
    environment = Path(arguments[0])
    python = environment / "bin" / "python"
    if has_pip(python) or succeeds(sys.executable, "-m", "venv", str(environment)):
        return 0
    if not succeeds(sys.executable, "-m", "venv", "--clear", "--without-pip", str(environment)):
        return fail(f"cannot create {environment}: not writable, or python3 lacks the venv module")
    if succeeds(sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "pip"):
        return 0
    return install_pip_from_index(python)


def install_pip_from_index(python: Path) -> int:
    """Download pip's wheel and let it install itself: a wheel is a zip file that Python can run."""
    import pip_wheel  # beside this file; not needed where venv brings pip

    with tempfile.TemporaryDirectory() as folder:
        try:
            wheel = pip_wheel.download(Path(folder))
        except pip_wheel.NoPip as problem:
            return fail(f"cannot get pip: {problem}; install python3-venv or set PIP_INDEX_URL")
        command = [str(python), f"{wheel}/pip", "install", "--quiet", "--no-index", str(wheel)]
        return subprocess.run(command, check=False).returncode


def has_pip(python: Path) -> bool:
    """Whether the environment exists and can install packages."""
    return python.exists() and succeeds(str(python), "-m", "pip", "--version")


def succeeds(*command: str) -> bool:
    """Run a command whose failure is expected on some machines, without showing its output."""
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def fail(message: str) -> int:
    """Print one line and return the exit code of a failure."""
    print(f"error: {message}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
