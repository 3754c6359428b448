"""A report on finished and unfinished runs, as HTML, Markdown or CSV."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Literal

from rl_training.core.atomic import write_text_atomic
from rl_training.core.errors import UserError
from rl_training.report.html import render_html
from rl_training.report.run_reader import find_runs
from rl_training.report.sections import sections
from rl_training.report.study import Study, arrange
from rl_training.report.summary import Head, facts, verdict
from rl_training.report.text import render_csv, render_markdown

Format = Literal["html", "md", "csv"]


def write_report(
    paths: Sequence[str | Path],
    out: str | Path,
    *,
    format: Format = "html",
    metric: str | None = None,
    title: str = "Training report",
    seed: int = 0,
    written: date | None = None,
) -> Path:
    """Read the runs, compute their statistics (`seed` fixes the bootstrap) and write the report to `out`.

    `written` is the date it carries, by default today's.

    Links to the runs are relative to `out`, so that a folder with both can be moved or sent as a whole.
    """
    path = Path(out)
    if path.is_dir():
        raise UserError(f"out must name a file, got the directory {out}: write {path / f'report.{format}'}")
    study = arrange(find_runs(paths), metric)
    write_text_atomic(path, render(study, path.parent, format, title, written or date.today(), seed))
    return path


def render(study: Study, folder: Path, format: Format, title: str, written: date, seed: int) -> str:
    """The report's text; links in it are relative to `folder`."""
    if format == "csv":
        return render_csv(study, seed)
    head = Head(title, verdict(study, seed), facts(study, written))
    writer = render_html if format == "html" else render_markdown
    return writer(head, sections(study, folder, seed))
