"""No link of a Markdown file leads to a file that is missing or to a heading that is not there.

The site's own build checks its pages; README, benchmarks and the rest are read here as well. Addresses on the
web are left alone.
"""

import re
from pathlib import Path

import pytest

from helpers import ROOT
from rl_training.report.content import WORDS

FOLDERS = ("docs", "benchmarks", "examples", "tests", ".github")
HISTORY = ROOT / "docs" / "plans"
TEXTS = [
    *sorted(ROOT.glob("*.md")),
    *(
        each
        for folder in FOLDERS
        for each in sorted((ROOT / folder).rglob("*.md"))
        if HISTORY not in each.parents
    ),
]
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)|(?:src|href)=\"([^\"]+)\"")


def headings(text: str) -> set[str]:
    """The anchors that GitHub and the site make of headings; the glossary's are made of its words."""
    plain = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    found = re.findall(r"^#+ (.+)$", plain, re.MULTILINE)
    found += WORDS if "<!-- words -->" in text else ()
    shown = (re.sub(r"\[([^\]]*)\]\([^)]*\)|[`*]", r"\1", each) for each in found)
    return {re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", each.lower()).strip()) for each in shown}


def broken(path: Path) -> list[str]:
    wrong = []
    for pair in LINK.findall(CODE.sub("", path.read_text(encoding="utf-8"))):
        link = pair[0] or pair[1]
        if re.match(r"\w+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = path.parent / name if name else path
        if not target.exists():
            wrong.append(f"{link}: no such file")
        elif anchor and target.suffix == ".md" and anchor not in headings(target.read_text(encoding="utf-8")):
            wrong.append(f"{link}: no such heading")
    return wrong


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    assert broken(path) == []


def test_a_broken_link_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A *first* heading\n[a](page.md#a-first-heading) [b](gone.md) [c](#second) `[d](code.md)`\n"
    )
    assert broken(page) == ["gone.md: no such file", "#second: no such heading"]
