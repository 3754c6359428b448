"""The pages that help: every message they explain exists, and every word of a verdict is explained once."""

import ast
import re
from pathlib import Path

import pytest

from helpers import ROOT
from rl_training.report.content import WORDS, words_section

QUOTED = re.compile(r"^\| `(.+?)` (?:is true in every answer )?\|", re.MULTILINE)


def texts(path: Path) -> list[str]:
    """All strings of a module as their reader sees them, with an ellipsis where something is filled in."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.JoinedStr):
            pieces = (part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
            found.append("".join(map(str, pieces)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
    return found


def test_every_message_that_is_explained_exists() -> None:
    told = "\n".join(text.replace("\n", " ") for path in (ROOT / "src").rglob("*.py") for text in texts(path))
    quoted = QUOTED.findall((ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8"))
    assert len(quoted) > 30
    assert [each for each in quoted if not pattern(each).search(told)] == []


def pattern(message: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(piece.strip()) for piece in message.split("…") if piece.strip()))


def test_a_message_that_nobody_gives_is_noticed() -> None:
    assert not pattern("row … is purple").search("row … is green")


def test_a_page_explains_the_words_it_names() -> None:
    (table,) = words_section("value", "dial").blocks
    assert table.rows == (("value", WORDS["value"]), ("dial", WORDS["dial"]))  # type: ignore[union-attr]
    with pytest.raises(KeyError):
        words_section("gain")


def test_every_question_has_an_answer() -> None:
    page = (ROOT / "docs" / "faq.md").read_text(encoding="utf-8")
    answers = re.findall(r"^### (.+)\n\n(?!#)(.+)$", page, re.MULTILINE)
    assert len(answers) == len(re.findall(r"^### ", page, re.MULTILINE)) >= 20
