"""Twenty questions of new users have their answers where the documentation says they stand.

The questions were written down before the pages were searched for them.
"""

import re

import pytest

from helpers import ROOT

# question, page, heading ("" is the whole page), words of the answer
QUESTIONS = (
    ("Does anything leave my machine?", "faq", "May we use it in a product?", "no telemetry"),
    ("May we use it in a product?", "faq", "May we use it in a product?", "MIT"),
    ("How many rows and episodes do I need?", "faq", "What do I need at the least?", "Forty episodes"),
    ("My data lies in Excel.", "from_a_csv", "How it is written", "--sheet"),
    ("Two tanks stand in one file.", "faq", "Several machines stand in one table", "tell them apart"),
    ("How do I say what I want?", "signals", "What you write", "-(next(T_tank) - T_set)**2"),
    ("Which discount do I take?", "faq", "Which discount?", "1 − 1/n"),
    ("In which unit is the value of a policy?", "faq", "In which unit is a value?", "that of the reward"),
    ("The temperature must rarely exceed 68 °C.", "judging", "Costs and limits", "--limit"),
    ("The valve must not jump.", "signals", "Rate limits", "at most 5 units"),
    ("What happens when a sensor fails?", "deploy", "Guard", "Sensors that say nothing"),
    ("Is it better than my PID controller?", "faq", "How does it compare with my PID", "--operator"),
    ("Can my C++ program use it?", "deploy", "", "C++"),
    ("How do I switch it off?", "faq", "How do I switch it off?", "no answer comes"),
    ("How do I notice that the plant has changed?", "serve", "Watch it", "population stability index"),
    ("How do I train again with new data?", "tutorials/closed_loop", "5. Train on the decisions", "sqlite:"),
    ("The power failed while it trained.", "checkpoints", "", "resume"),
    ("How do I find better settings?", "sweeps", "", "search"),
    ("Can it look at camera images?", "index", "What it can do, and what not", "refused"),
    ("How do I repeat a colleague's run?", "faq", "How do I repeat a colleague's run?", "config.yaml"),
)


def section(page: str, heading: str) -> str:
    """The text of a section, up to the next heading of its level or above; the whole page without one."""
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    if not heading:
        return text
    found = re.search(rf"^(#+) {re.escape(heading)}.*$", text, re.MULTILINE)
    assert found, f"{page} has no heading {heading!r}"
    rest = text[found.end() :]
    after = re.search(rf"^#{{1,{len(found[1])}}} ", rest, re.MULTILINE)
    return rest[: after.start()] if after else rest


@pytest.mark.parametrize(("page", "heading", "words"), [each[1:] for each in QUESTIONS])
def test_the_answer_stands_there(page: str, heading: str, words: str) -> None:
    assert words in section(page, heading)


def test_they_are_twenty() -> None:
    assert len(QUESTIONS) == len({question for question, *_ in QUESTIONS}) == 20
