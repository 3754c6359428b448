"""Fills tables and formulas into the pages at build time.

Tables are filled in so that no default, bound or meaning is written twice:

`<!-- words -->` becomes the words that pages and verdicts explain;
`<!-- settings: run -->` becomes the fields of `TrainConfig`, `<!-- settings: sac -->` what `algo_kwargs` of
SAC may hold, in groups; both come from the same fields that check a config and answer `rl-training
describe`.

Formulas between dollar signs, `$\\alpha \\log \\pi$`, become MathML, which browsers draw by
themselves: the site needs no script and no other host. GitHub draws the same notation in the sources.
"""

import re
from itertools import groupby
from typing import Any

from latex2mathml.converter import convert

from rl_training.core.registry import ALGORITHMS
from rl_training.experiment.config import ConfigModel, FieldRow, TrainConfig, describe_fields
from rl_training.report.content import WORDS

MARKER = re.compile(r"<!-- settings: (\w+) -->")
WORDS_MARKER = "<!-- words -->"
COLUMNS = ("setting", "type", "bound", "default", "meaning")


# A dollar sign inside code is what the shell makes of it.
CODE = re.compile(r"(^```.*?^```$|`[^`\n]*`)", re.MULTILINE | re.DOTALL)
FORMULA = re.compile(r"(?<![\\\w$])\$([^\s$](?:[^$\n]*[^\s$])?)\$(?![\w$])")
PRIME = re.compile(r"<msup><mi>([^<]*)</mi><mi>&#x02032;</mi></msup>")
# Markdown would read underscores and stars in a formula; in this form it reads nothing.
TOKEN = re.compile(r"formula([0-9a-f]+)end")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs for every page."""
    filled = MARKER.sub(lambda marker: settings_tables(marker[1]), markdown).replace(WORDS_MARKER, words())
    pieces = CODE.split(filled)  # code and text in turn, beginning with text
    pieces[::2] = [
        FORMULA.sub(lambda found: f"formula{found[1].encode().hex()}end", text) for text in pieces[::2]
    ]
    return "".join(pieces)


def on_page_content(html: str, **_: Any) -> str:
    """Called by mkdocs when a page has become HTML."""
    return TOKEN.sub(lambda token: mathml(bytes.fromhex(token[1]).decode()), html)


def mathml(latex: str) -> str:
    """The formula; a prime stands beside its letter, because plain fonts would raise it twice."""
    return PRIME.sub(r'<mrow><mi>\1</mi><mo lspace="0" rspace="0">&#x02032;</mo></mrow>', convert(latex))


def settings_tables(name: str) -> str:
    """The tables of one config class, one per group of settings, as Markdown."""
    config_class: type[ConfigModel] = TrainConfig if name == "run" else ALGORITHMS.get(name).settings
    rows = sorted(describe_fields(config_class), key=lambda row: row.group)
    groups = groupby(rows, key=lambda row: row.group)
    return "\n\n".join(f"**{group.capitalize()}**\n\n{table(list(members))}" for group, members in groups)


def words() -> str:
    """A heading for every word, so that pages can point at it."""
    return "\n\n".join(f"### {word.capitalize()}\n\n{meaning}." for word, meaning in WORDS.items())


def table(rows: list[FieldRow]) -> str:
    """Rows of settings as a Markdown table."""
    lines = [" | ".join(COLUMNS), " | ".join("---" for _ in COLUMNS)]
    for row in rows:
        cells = (f"`{row.name}`", row.type, row.bound, f"`{row.default}`", row.meaning)
        lines.append(" | ".join(cell.replace("|", "\\|") for cell in cells))
    return "\n".join(f"| {line} |" for line in lines)
