"""The report as one HTML page: no script, no font, no picture from anywhere else.

Text from run files is escaped where it is put into the page; a content security policy in the page forbids
whatever might get through.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from urllib.parse import quote

from rl_training.core.version import VERSION
from rl_training.report.marks import Intervals, Scatter
from rl_training.report.sections import Block, Section
from rl_training.report.statistics import Estimate
from rl_training.report.style import STYLE
from rl_training.report.summary import Head
from rl_training.report.svg import Chart, Series
from rl_training.report.tables import Cell, Link, Table, bounds, plain_number

SHORT = 24
"""Up to so many characters a cell stays on one line, and the table scrolls instead."""

POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def render_html(head: Head, parts: Sequence[Section]) -> str:
    """The whole page."""
    title = escape(head.title)
    verdict = "".join(f"<p>{escape(sentence)}</p>" for sentence in head.verdict)
    facts = "".join(f'<p class="note">{escape(fact)}</p>' for fact in head.facts)
    contents = "".join(
        f'<li><a href="#part{index}">{escape(part.title)}</a></li>' for index, part in enumerate(parts)
    )
    body = "".join(
        f'<section id="part{index}"><h2>{escape(part.title)}</h2>'
        f"{''.join(_block(block, part.title) for block in part.blocks)}</section>\n"
        for index, part in enumerate(parts)
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        f'<header><h1>{title}</h1><div class="verdict">{verdict}</div>{facts}</header>\n'
        f"<nav><ul>{contents}</ul></nav>\n<main>\n{body}\n</main>\n"
        f'<footer class="note">Written by rl_training {VERSION}.</footer>\n</body>\n</html>\n'
    )


def _block(block: Block, heading: str) -> str:
    if isinstance(block, Scatter | Intervals):
        return block.figure()
    return _table(block, heading) if isinstance(block, Table) else _chart(block)


def _chart(chart: Chart) -> str:
    legend = "".join(
        f'<li><svg class="key" viewBox="0 0 24 10" aria-hidden="true">'
        f"{_key(series)}</svg>{escape(series.label)}</li>"
        for series in chart.series
    )
    legend += "".join(
        f'<li><svg class="key" viewBox="0 0 24 10" aria-hidden="true"><path class="level" d="M1 5H23"/></svg>'
        f"{escape(level.label)}</li>"
        for level in chart.levels
    )
    note = f'<p class="note">{escape(chart.note)}</p>' if chart.note else ""
    caption = f"<figcaption>{escape(chart.title)}</figcaption>{note}"
    if chart.small:  # the caption says what the one line is
        return f'<figure class="small">{caption}{chart.svg()}</figure>\n'
    return f'<figure>{caption}{chart.svg()}<ul class="legend">{legend}</ul></figure>\n'


def _key(series: Series) -> str:
    """How a series looks, for the legend."""
    line = f'<path class="line {series.style}" d="M1 5H23"/>'
    diamond = f'<path class="diamond {series.style}" d="M12 1l4 4l-4 4l-4 -4Z"/>'
    return line + diamond if series.estimated else line


def _table(table: Table, heading: str) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in table.header)
    rows = "".join(f"<tr>{''.join(map(_cell, row))}</tr>\n" for row in table.rows)
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    body = f"<thead><tr>{head}</tr></thead><tbody>\n{rows}</tbody>"
    title = f"<h3>{escape(table.title)}</h3>" if table.title != heading else ""
    return f'{title}{note}<div class="scroll" tabindex="0"><table>{body}</table></div>\n'


def _cell(cell: Cell) -> str:
    short = isinstance(cell, str) and len(cell) <= SHORT
    return f"{'<td class=short>' if short else '<td>'}{_cell_text(cell)}</td>"


def _cell_text(cell: Cell) -> str:
    if isinstance(cell, Link):
        return f'<a href="{escape(quote(cell.target))}/">{escape(cell.text)}</a>'
    if isinstance(cell, Estimate):
        return f'{plain_number(cell.value)} <span class="bounds">{bounds(cell)}</span>'
    return escape(cell)
