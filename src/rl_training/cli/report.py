"""`rl-training report`."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class ReportFormat(StrEnum):
    """What a report can be written as."""

    HTML = "html"
    MD = "md"
    CSV = "csv"


MetricOption = Annotated[
    str | None,
    typer.Option(
        "--metric",
        help="Evaluation metric to judge by; default: eval_normalized_score where all runs have it, "
        "else eval_return_mean.",
    ),
]


def report(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUNS...", help="Run directories, folders of runs, or patterns in quotes."),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", help="File to write; default: report.html, .md or .csv.")
    ] = None,
    format: Annotated[
        ReportFormat | None, typer.Option("--format", help="Default: as the name of --out ends, else html.")
    ] = None,
    metric: MetricOption = None,
    title: Annotated[str, typer.Option("--title", help="Heading of the report.")] = "Training report",
) -> None:
    """Write a report on runs: learning curves, final scores with intervals, differences, throughput."""
    from rl_training.report.report import write_report

    ending = out.suffix.removeprefix(".") if out is not None else ""
    chosen = format or (ReportFormat(ending) if ending in set(ReportFormat) else ReportFormat.HTML)
    path = out or Path(f"report.{chosen}")
    typer.echo(str(write_report(runs, path, format=chosen.value, metric=metric, title=title)))
