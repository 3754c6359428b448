"""The report as Markdown, and its statistics as CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from urllib.parse import quote

from rl_training.report.sections import Section
from rl_training.report.statistics import STATISTICS, Estimate, estimate
from rl_training.report.study import Study
from rl_training.report.summary import Head
from rl_training.report.tables import Cell, Link, Table, bounds, plain_number

_MARKUP = re.compile(r"([\\`*_\[\]<>|#~&])")
_CSV_HEADER = ("task", "configuration", "metric", "evaluation", "runs", "statistic", "value", "low", "high")


def render_markdown(head: Head, parts: Sequence[Section]) -> str:
    """Title, verdict and tables; the charts are left to the HTML page."""
    lines = [f"# {_text(head.title)}", ""]
    for sentence in (*head.verdict, *head.facts):
        lines += [_text(sentence), ""]
    for part in parts:
        lines += [f"## {_text(part.title)}", ""]
        for table in part.blocks:
            if isinstance(table, Table):
                lines += _table(table, with_title=table.title != part.title)
    return "\n".join(lines)


def render_csv(study: Study, seed: int = 0) -> str:
    """One line per task, configuration, evaluation (last or best) and statistic."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_CSV_HEADER)
    for task in study.tasks:
        for group in task.groups:
            for name, scores in (("last", group.last(task.metric)), ("best", group.best(task.metric))):
                place = (_plain(task.label), _plain(group.label), _plain(task.metric), name, len(scores))
                for statistic, function in STATISTICS.items() if scores else ():
                    result = estimate([scores], function, seed=seed)
                    low, high = (result.low, result.high) if result.has_interval else ("", "")
                    writer.writerow((*place, statistic, result.value, low, high))
                if not scores:
                    writer.writerow((*place, "", "", "", ""))
    return out.getvalue()


def _table(table: Table, *, with_title: bool) -> list[str]:
    title = [f"### {_text(table.title)}", ""] if with_title else []
    note = [_text(table.note), ""] if table.note else []
    head = [_row([_text(name) for name in table.header]), _row(["---"] * len(table.header))]
    return [*title, *note, *head, *(_row([_cell(cell) for cell in row]) for row in table.rows), ""]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(cell: Cell) -> str:
    if isinstance(cell, Link):
        return f"[{_text(cell.text)}]({quote(cell.target)})"
    if isinstance(cell, Estimate):
        return f"{plain_number(cell.value)} {_text(bounds(cell))}"
    return _text(cell)


def _text(value: str) -> str:
    """Text that Markdown shows as it is: marks escaped, on one line."""
    return _MARKUP.sub(r"\\\1", " ".join(value.split()))


def _plain(value: str) -> str:
    """Text that a spreadsheet does not take for a formula."""
    return f"'{value}" if value[:1] in ("=", "+", "-", "@", "\t", "\r") else value
