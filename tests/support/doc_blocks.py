"""The code blocks of the documentation."""

import re
from pathlib import Path

from helpers import ROOT

TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
"""Run from top to bottom, Python and commands in turn."""
PAGES = [
    ROOT / "README.md",
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page not in TUTORIALS),
]

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def all_blocks(page: Path) -> list[tuple[str, str]]:
    """Language and content of every fenced block, in order."""
    return BLOCK.findall(page.read_text(encoding="utf-8"))


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of one language, in order."""
    return [code for name, code in all_blocks(page) if name == language]
