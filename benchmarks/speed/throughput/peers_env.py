"""The environment of the peers: made once, apart from ours, from pinned versions."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from checkouts import CHECKOUTS
from peers import PACKAGES

HERE = Path(__file__).resolve().parent
REQUIREMENTS = HERE / "requirements.txt"
CREATE_VENV = HERE.parents[2] / "tools" / "create_venv.py"

ASK_VERSIONS = """
import importlib.metadata as m, json, sys
found = {}
for name in json.loads(sys.argv[1]):
    try:
        found[name] = m.version(name)
    except m.PackageNotFoundError:
        pass
print(json.dumps(found))
"""


def install(folder: Path) -> None:
    """Install all peers together or, where that fails, as many of them as go in one by one.

    Where packages come from is pip's own configuration (PIP_INDEX_URL and so on). On a machine without a GPU
    a CPU build of torch saves gigabytes.
    """
    python = folder / "bin" / "python"
    if is_complete(python):
        return
    if not python.exists():
        print(f"creating {folder}", flush=True)
        subprocess.run([sys.executable, str(CREATE_VENV), str(folder)], check=True)
    if pip(python, "-r", str(REQUIREMENTS)):
        return
    print("the peers do not install together; trying them one by one", flush=True)
    for line in pinned():
        if not pip(python, line):
            print(f"  {line}: not installed", flush=True)


def pinned() -> list[str]:
    """`name==version` of every requirement."""
    lines = REQUIREMENTS.read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def is_complete(python: Path) -> bool:
    """Whether everything is there already, in the pinned versions; builds (`+cpu`) do not matter."""
    wanted = dict(line.split("==") for line in pinned())
    found = versions(python, list(wanted))
    return all(found.get(name, "").partition("+")[0] == version for name, version in wanted.items())


def pip(python: Path, *arguments: str) -> bool:
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments]
    return subprocess.run(command, check=False).returncode == 0


def versions(python: Path, names: list[str]) -> dict[str, str]:
    """Installed versions of packages as an interpreter sees them."""
    if not python.exists():
        return {}
    command = [str(python), "-c", ASK_VERSIONS, json.dumps(names)]
    answer = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, str] = json.loads(answer.stdout)
    return found


def interpreters(folder: Path, checkouts: dict[str, str]) -> tuple[dict[str, Path], dict[str, str]]:
    """Which Python runs each candidate, and why some have none."""
    peers_python = folder / "bin" / "python"
    found = versions(peers_python, list(PACKAGES.values()))
    pythons = {name: Path(sys.executable) for name in ("compiled", "eager", "floor")}
    pythons |= {name: peers_python for name, package in PACKAGES.items() if package in found}
    pythons |= {name: peers_python for name in checkouts}
    missing = {name: "not installed" for name in PACKAGES if name not in pythons}
    missing |= {name: f"no checkout given ({option} PATH)" for name, option in CHECKOUTS.items()}
    missing = {name: reason for name, reason in missing.items() if name not in pythons}
    return pythons, missing
