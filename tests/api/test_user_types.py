"""The types that users see: a sound script passes mypy, every mistake gets a complaint, no name is `Any`."""

from __future__ import annotations

import ast
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from doc_blocks import PAGES, blocks
from helpers import ROOT

SCRIPTS = Path(__file__).parents[1] / "typing"


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


def mypy(script: Path) -> str:
    """Its output, with the project's settings and cache."""
    return run("-m", "mypy", str(script)).stdout


@pytest.mark.slow
def test_a_sound_script_passes() -> None:
    output = mypy(SCRIPTS / "good_user.py")
    assert output.startswith("Success"), output


@pytest.mark.slow
def test_every_mistake_is_found() -> None:
    output = mypy(SCRIPTS / "bad_user.py")
    lines = (SCRIPTS / "bad_user.py").read_text().splitlines()
    mistakes = {number for number, line in enumerate(lines, start=1) if "  # " in line}
    found = {int(line) for line in re.findall(r"bad_user\.py:(\d+): error", output)}
    assert found == mistakes and len(mistakes) == 17, output


def names_in_the_docs() -> set[tuple[str, str]]:
    """(module, name) of everything of this package that a Python block of the documentation uses."""
    found = set()
    for page in PAGES:
        for block in blocks(page, "python"):
            for node in ast.walk(ast.parse(block)):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rl_training"):
                    found |= {(node.module or "", alias.name) for alias in node.names}
                elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "rl_training":
                    found.add(("rl_training", node.attr))
    return found


@pytest.mark.slow
def test_every_name_in_the_docs_has_a_real_type(tmp_path: Path) -> None:
    names = sorted(names_in_the_docs())
    assert len(names) > 40
    script = tmp_path / "docs_user.py"
    lines = [f"from {module} import {name} as name_{index}" for index, (module, name) in enumerate(names)]
    script.write_text("\n".join([*lines, *(f"reveal_type(name_{index})" for index in range(len(names)))]))
    output = mypy(script)
    assert [line for line in output.splitlines() if "error:" in line] == []
    revealed = re.findall(r'Revealed type is "(.*)"', output)
    vague = ("Any", "object", "builtins.object", "def (*Any, **Any) -> Any")
    assert [name for name, kind in zip(names, revealed, strict=True) if kind in vague] == []


def test_the_stubs_say_what_the_registry_says() -> None:
    stubs = runpy.run_path(str(ROOT / "tools" / "make_stubs.py"))["stubs"]()
    stale = [path.name for path, text in stubs.items() if path.read_text() != text]
    assert len(stubs) > 5 and stale == [], "run python tools/make_stubs.py"
