"""The code blocks of the documentation."""

import re
from pathlib import Path

from helpers import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of one language, in order."""
    return [code for name, code in BLOCK.findall(page.read_text(encoding="utf-8")) if name == language]
