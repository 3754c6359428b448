"""What a page is made of and how it is written down: sections, tables, numbers, and words explained once."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass
from importlib.resources import files
from itertools import zip_longest
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

from rl_training.core.errors import UserError, cell_text, html_text, markdown_text
from rl_training.core.version import VERSION
from rl_training.report.charts import Figure
from rl_training.report.statistics import Estimate

MARK = "◇ estimated"
"""Beside every number that nobody has measured."""


LARGE = 1e9
"""Products of weights run away: how far is all that matters of such a number."""


@dataclass(frozen=True)
class Link:
    """Text that leads to a file beside the report."""

    text: str
    target: str


Cell = str | float | Link | Estimate | None
"""Numbers are worded where the page is written; None is a number that nobody has."""


@dataclass(frozen=True)
class Table:
    """Rows under a header; the note says how to read them."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""


@dataclass(frozen=True)
class Section:
    title: str
    blocks: tuple[Table | Figure, ...]


@dataclass(frozen=True)
class Page:
    """Title, verdict and facts, which stand above the first section, and the sections."""

    title: str
    verdict: tuple[str, ...]
    facts: tuple[str, ...]
    sections: tuple[Section, ...]
    tones: tuple[str, ...] = ()
    """for each sentence of the verdict the judge's word for it, which its box has the colour of"""


class Bounded(Protocol):
    """A number with an interval; None or NaN where it has none."""

    @property
    def value(self) -> float: ...
    @property
    def low(self) -> float | None: ...
    @property
    def high(self) -> float | None: ...


def plain_number(value: float) -> str:
    """Four digits or so, never an exponent for everyday sizes."""
    size = abs(value)
    if size >= LARGE:
        return f"{value:.1e}"
    if size >= 1000 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 100 else f"{value:.2f}" if size >= 1 else f"{value:.3g}"


def bounds(result: Estimate) -> str:
    """The interval in brackets, or why there is none."""
    if not result.has_interval:
        return "(no interval)"
    return f"[{plain_number(result.low)}, {plain_number(result.high)}]"


def with_interval(result: Bounded) -> str:
    """A number with its interval, where it has one."""
    low, high = result.low, result.high
    if low is None or high is None or math.isnan(low) or math.isnan(high):
        return plain_number(result.value)
    return f"{plain_number(result.value)} [{plain_number(low)}, {plain_number(high)}]"


def duration(seconds: float) -> str:
    """Seconds up to two minutes, then minutes, then hours."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def count(number: int, noun: str) -> str:
    """`1 run`, `2 runs`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


# ---- a page written down: HTML that needs nothing else, Markdown, or a table as CSV

SHORT = 24
"""Up to so many characters a cell stays on one line, and the table scrolls instead."""

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""No script, no font, no picture from anywhere else."""


def refuse_directory(out: Path, name: str) -> None:
    if out.is_dir():
        raise UserError(f"out must name a file, got the directory {out}: write {out / name}")


def render_html(page: Page) -> str:
    """The whole page in one file."""
    title = html_text(page.title)
    boxes = zip_longest(page.verdict, page.tones, fillvalue="")
    verdict = "".join(f'<p class="{html_text(tone)}">{html_text(sentence)}</p>' for sentence, tone in boxes)
    facts = "".join(f'<p class="note">{html_text(fact)}</p>' for fact in page.facts)
    contents = "".join(
        f'<li><a href="#part{index}">{html_text(part.title)}</a></li>'
        for index, part in enumerate(page.sections)
    )
    body = "".join(_html_section(f"part{index}", part) for index, part in enumerate(page.sections))
    style = (files("rl_training") / "assets" / "report.css").read_text(encoding="utf-8")
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{title}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        f'<header><h1>{title}</h1><div class="verdict">{verdict}</div>{facts}</header>\n'
        f"<nav><ul>{contents}</ul></nav>\n<main>\n{body}\n</main>\n"
        f'<footer class="note">Written by rl_training {VERSION}.</footer>\n</body>\n</html>\n'
    )


def _html_section(name: str, part: Section) -> str:
    blocks = "".join(
        _html_table(block, part.title) if isinstance(block, Table) else block.figure()
        for block in part.blocks
    )
    return f'<section id="{name}"><h2>{html_text(part.title)}</h2>{blocks}</section>\n'


def _html_table(table: Table, heading: str) -> str:
    head = "".join(f'<th scope="col">{html_text(name)}</th>' for name in table.header)
    rows = "".join(f"<tr>{''.join(map(_html_cell, row))}</tr>\n" for row in table.rows)
    note = f'<p class="note">{html_text(table.note)}</p>' if table.note else ""
    body = f"<thead><tr>{head}</tr></thead><tbody>\n{rows}</tbody>"
    title = f"<h3>{html_text(table.title)}</h3>" if table.title != heading else ""
    return f'{title}{note}<div class="scroll" tabindex="0"><table>{body}</table></div>\n'


def _html_cell(cell: Cell) -> str:
    if isinstance(cell, Link):
        return f'<td><a href="{html_text(quote(cell.target))}/">{html_text(cell.text)}</a></td>'
    if isinstance(cell, Estimate):
        return f'<td>{plain_number(cell.value)} <span class="bounds">{bounds(cell)}</span></td>'
    text = _worded(cell)
    return f"{'<td class=short>' if len(text) <= SHORT else '<td>'}{html_text(text)}</td>"


def _worded(cell: str | float | None) -> str:
    return "–" if cell is None else cell if isinstance(cell, str) else plain_number(cell)


def render_markdown(page: Page) -> str:
    """Title, verdict and tables; the figures are left to the HTML page."""
    lines = [f"# {markdown_text(page.title)}", ""]
    for sentence in (*page.verdict, *page.facts):
        lines += [markdown_text(sentence), ""]
    for part in page.sections:
        lines += [f"## {markdown_text(part.title)}", ""]
        for table in part.blocks:
            if isinstance(table, Table):
                lines += _markdown_table(table, with_title=table.title != part.title)
    return "\n".join(lines)


def _markdown_table(table: Table, *, with_title: bool) -> list[str]:
    title = [f"### {markdown_text(table.title)}", ""] if with_title else []
    note = [markdown_text(table.note), ""] if table.note else []
    header = [markdown_text(name) for name in table.header]
    rows = [header, ["---"] * len(header), *([_markdown_cell(cell) for cell in row] for row in table.rows)]
    return [*title, *note, *(f"| {' | '.join(row)} |" for row in rows), ""]


def _markdown_cell(cell: Cell) -> str:
    if isinstance(cell, Link):
        return f"[{markdown_text(cell.text)}]({quote(cell.target)})"
    if isinstance(cell, Estimate):
        return f"{plain_number(cell.value)} {markdown_text(bounds(cell))}"
    return markdown_text(_worded(cell))


def render_csv(table: Table) -> str:
    """The table's numbers in full."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(table.header)
    for row in table.rows:
        writer.writerow([cell_text(cell) if isinstance(cell, str) else cell for cell in row])
    return out.getvalue()


# ---- the words of pages and verdicts, each explained once

WORDS = {
    "action": "what a policy sets in each step: the position of a valve, a pump that is on or off, a torque",
    "behaviour": "whoever acted while the log was written, all operators and controllers together",
    "cost": (
        "a number per step that must not become too large on average, such as 1 where the tank is too hot; "
        "it is counted apart from the reward"
    ),
    "coverage": (
        "how much of what a policy does, and of the states it leads to, resembles rows of the log; where "
        "there are none, a value is a guess"
    ),
    "dial": (
        "a number from 0 (act as the log does) to 1 (do what the learned model of the plant believes to be "
        "best) that is chosen while the policy runs"
    ),
    "discount": (
        "how much a reward of the next step counts beside one of now; at 0.99 a reward counts half after 69 "
        "steps"
    ),
    "episode": (
        "one run from a start to an end: a batch, a shift, a drive; ends that the log does not mark must be "
        "stated"
    ),
    "guard": (
        "the part of an exported policy that notices when a row is unlike the training data, and then plays "
        "a fallback"
    ),
    "held out": "episodes that no training has seen, kept for judging",
    "interval": (
        "the range in which the true number lies nine times in ten, as far as the log can tell; 'cannot be "
        "told apart' means that intervals overlap"
    ),
    "limit": "how large the average of a cost may be; a policy keeps it, breaks it, or the log cannot tell",
    "novelty": "how far a row is from the training data; above 1 it lies further out than nearly all of them",
    "observation": "what a policy sees in each step, one number per column or formula",
    "offline, online": "learning from a log alone, and learning while acting in a plant or a simulator",
    "policy": "a function from an observation to an action, learned or not; the thing that is shipped",
    "resample": (
        "the log drawn anew from its own episodes, some twice and some not at all; how answers differ "
        "between resamples is what an interval is made of"
    ),
    "reward": "the number per step that says how good it was, in your units; the more the better",
    "seed": "the number that all random draws of a run start from; another seed shows how much was luck",
    "terminated, truncated": (
        "an episode that the task itself ended (a trip, a fall: nothing follows), and one that only the "
        "recording ended (a shift was over: what would have followed still counts)"
    ),
    "value": (
        "the expected sum of discounted rewards from the first state of an episode; per step it is divided "
        "by the sum of the discounts, which gives a number in the units of the reward"
    ),
    "verdict": (
        "the judge's answer about a policy: better than the log, worse, not distinguishable from it, or "
        "cannot be judged; each with the reasons"
    ),
}


def words_section(*names: str) -> Section:
    """The words that a page uses, for whoever reads it alone."""
    return Section("Words", (Table("", ("word", "meaning"), tuple((name, WORDS[name]) for name in names)),))
