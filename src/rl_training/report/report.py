"""A report on finished and unfinished runs, as HTML, Markdown or CSV."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from rl_training.core.atomic import write_text_atomic
from rl_training.core.errors import UserError
from rl_training.report.html import render_html
from rl_training.report.run_reader import find_runs
from rl_training.report.sections import metric_title, sections
from rl_training.report.study import Study, arrange
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
) -> Path:
    """Read the runs, compute their statistics (`seed` fixes the bootstrap) and write the report to `out`.

    Links to the runs are relative to `out`, so that a folder with both can be moved or sent as a whole.
    """
    path = Path(out)
    if path.is_dir():
        raise UserError(f"out must name a file, got the directory {out}: write {path / f'report.{format}'}")
    study = arrange(find_runs(paths), metric)
    write_text_atomic(path, render(study, path.parent, format=format, title=title, seed=seed))
    return path


def render(study: Study, folder: Path, *, format: Format, title: str, seed: int = 0) -> str:
    """The report's text; links in it are relative to `folder`."""
    if format == "csv":
        return render_csv(study, seed)
    parts = sections(study, folder, seed)
    writer = render_html if format == "html" else render_markdown
    return writer(title, summary_line(study), parts)


def summary_line(study: Study) -> str:
    """How many runs were read and how many of them count."""
    groups = [group for task in study.tasks for group in task.groups]
    counted = sum(len(group.runs) for group in groups)
    unfinished = sum(len(group.unfinished) for group in groups)
    repeated = sum(len(group.repeated) for group in groups)
    parts = [f"{_count(counted, 'run')} of {_count(len(groups), 'configuration')}"]
    parts.append(f"on {_count(len(study.tasks), 'task')}, judged by {metric_title(study.metric)}")
    left_out = [f"{unfinished} not finished or not evaluated"] if unfinished else []
    left_out += [f"{repeated} that repeat a seed"] if repeated else []
    return " ".join(parts) + (f"; left out: {', '.join(left_out)}" if left_out else "") + "."


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
