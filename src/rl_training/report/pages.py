"""A page written as HTML that needs nothing else or as Markdown; a table as CSV; and the report on runs."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from datetime import date
from importlib.resources import files
from itertools import zip_longest
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from rl_training.core.errors import UserError, cell_text, html_text, markdown_text
from rl_training.core.files import write_text_atomic
from rl_training.core.version import VERSION
from rl_training.report.content import Cell, Link, Page, Section, Table, bounds, plain_number
from rl_training.report.sections import sections, statistics_table
from rl_training.report.statistics import Estimate
from rl_training.report.study import Study, arrange, find_runs
from rl_training.report.summary import facts, verdict

Format = Literal["html", "md", "csv"]

SHORT = 24
"""Up to so many characters a cell stays on one line, and the table scrolls instead."""

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""No script, no font, no picture from anywhere else."""


def write_report(
    paths: Sequence[str | Path],
    out: str | Path,
    *,
    format: Format = "html",
    metric: str | None = None,
    title: str | None = None,
    seed: int = 0,
    written: date | None = None,
) -> Path:
    """Read the runs, compute their statistics (`seed` fixes the bootstrap) and write the report to `out`.

    `written` is the date it carries, by default today's.

    Links to the runs are relative to `out`, so that a folder with both can be moved or sent as a whole.
    """
    path = Path(out)
    refuse_directory(path, f"report.{format}")
    if title is not None and format == "csv":
        raise UserError(f"title has no place in a CSV file, got {title!r}: leave it out")
    study, heading = arrange(find_runs(paths), metric), title or "Training report"
    write_text_atomic(path, render(study, path.parent, format, heading, written or date.today(), seed))
    return path


def render(study: Study, folder: Path, format: Format, title: str, written: date, seed: int) -> str:
    """The report's text; links in it are relative to `folder`."""
    if format == "csv":
        return render_csv(statistics_table(study, seed))
    content = tuple(sections(study, folder, seed))
    page = Page(title, verdict(study, seed), facts(study, written), content)
    return render_html(page) if format == "html" else render_markdown(page)


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
