"""Commands over many runs: `rl-training sweep`, `tune`, `report` and `compare`."""

from pathlib import Path
from typing import Annotated, Literal, get_args

import typer

from rl_training.cli.options import OutputDirOption, QuietOption, print_table
from rl_training.core.errors import ConfigError, UserError

INCOMPLETE = 1

WorkersOption = Annotated[
    int | None,
    typer.Option("--workers", "-w", min=1, help="Worker processes; default: the number of cores."),
]


def sweep(
    file: Annotated[str, typer.Argument(help="YAML file of the sweep, or the name of a packaged one.")],
    workers: WorkersOption = None,
    backend: Annotated[
        Literal["local", "ray"], typer.Option("--backend", help="Run here, or on a Ray cluster.")
    ] = "local",
    address: Annotated[
        str | None,
        typer.Option("--address", help="Ray cluster to use; default: a local one is started."),
    ] = None,
    output_dir: OutputDirOption = None,
    quiet: QuietOption = False,
) -> None:
    """Train all runs of a study; called again, it goes on where it was stopped."""
    from rl_training.sweeps.sweep import run_sweep

    if address is not None and backend != "ray":
        raise ConfigError(f"address must be left out without --backend ray, got {address!r}")
    if workers is not None and backend == "ray":
        raise ConfigError(f"workers must be left out with --backend ray, which places runs, got {workers}")
    result = run_sweep(
        file, output_dir=output_dir, workers=workers, backend=backend, address=address, quiet=quiet
    )
    if quiet:
        typer.echo(str(result.output_dir))
    else:
        rows = [
            (run.name, status.state, status.shown_return, str(run.run_dir)) for run, status in result.runs
        ]
        print_table(("run", "state", "return", "directory"), rows)
    if result.ranking is not None and result.complete:
        typer.echo(result.ranking)
    if result.signal is not None:
        typer.echo(f"stopped and saved; go on with: rl-training sweep {file}", err=True)
        raise typer.Exit(128 + result.signal)
    if not result.complete:
        for run, status in result.runs:
            if status.state != "done":
                reason = status.problem or f"it ended without a reason; see {result.output_dir / 'logs'}"
                typer.echo(f"error: {run.name} is not done: {reason}", err=True)
        typer.echo(f"the other runs are done; try these again with: rl-training sweep {file}", err=True)
        raise typer.Exit(INCOMPLETE)


def tune(
    file: Annotated[str, typer.Argument(help="YAML file of the search, or the name of a packaged one.")],
    workers: WorkersOption = None,
    output_dir: OutputDirOption = None,
) -> None:
    """Search for good settings; called again, it goes on where it was stopped."""
    from rl_training.sweeps.tune import BEST_FILE, run_tune

    def tell(line: str) -> None:
        typer.echo(line, err=True)

    result = run_tune(file, output_dir=output_dir, workers=workers, report=tell)
    rows = [(f"trials {state}", str(count)) for state, count in result.states.items()]
    if result.best_value is not None:
        rows += [("best value", f"{result.best_value:.6g}")]
        if result.level:
            told = f"trials {', '.join(map(str, result.level))}: a tie within the noise of the estimates"
            rows += [("level with the best", told)]
        rows += [(key, str(value)) for key, value in result.best_params.items()]
        rows += [("best config", str(result.output_dir / BEST_FILE))]
    elif "complete" in result.states:
        rows += [("best", "none: no trial is shown to keep the limits")]
    print_table(("result", "value"), rows)
    if result.signal is not None:
        typer.echo(f"stopped and saved; go on with: rl-training tune {file}", err=True)
        raise typer.Exit(128 + result.signal)


ReportFormat = Literal["html", "md", "csv"]

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
    title: Annotated[
        str | None, typer.Option("--title", help="Heading of the report; default: Training report.")
    ] = None,
) -> None:
    """Write a report on runs: learning curves, final scores with intervals, differences, throughput."""
    from rl_training.report.pages import write_report

    chosen = _chosen_format(out, format)
    path = out or Path(f"report.{chosen}")
    typer.echo(str(write_report(runs, path, format=chosen, metric=metric, title=title)))


def _chosen_format(out: Path | None, format: ReportFormat | None) -> ReportFormat:
    """What is asked for; the name of the file must not say otherwise."""
    ending = out.suffix.removeprefix(".") if out is not None else ""
    named = next((each for each in get_args(ReportFormat) if each == ending), None)
    if named is None and ending and format is None:
        raise UserError(f"--out must end in .html, .md or .csv, or --format say what it is, got {out}")
    if None not in (named, format) and named != format:
        raise UserError(f"--out {out} ends in .{ending} and --format says {format}: make them agree")
    return named or format or "html"


_SIDE = "a run directory, a folder of runs that differ by their seeds, or a pattern in quotes."


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help=f"First: {_SIDE}")],
    b: Annotated[str, typer.Argument(metavar="B", help=f"Second: {_SIDE}")],
    metric: MetricOption = None,
) -> None:
    """Say which of two configurations is better, with an interval."""
    from rl_training.report.compare import compare_runs
    from rl_training.report.content import bounds, plain_number
    from rl_training.report.statistics import Estimate, estimate
    from rl_training.report.study import find_runs, metric_title

    def show(result: Estimate) -> str:
        return f"{plain_number(result.value)} {bounds(result)}"

    result = compare_runs(find_runs([a]), find_runs([b]), metric=metric)
    rows = []
    for side, label, runs, last, best in zip(
        "AB", result.labels, result.runs, result.last, result.best, strict=True
    ):
        rows.append((f"{side}: {label}", str(runs), show(estimate(last)), show(estimate(best))))
    total = str(sum(result.runs))
    rows.append(("A - B", total, show(result.last_difference), show(result.best_difference)))
    rows.append(("P(A above B)", total, show(result.improvement), ""))
    what = metric_title(result.metric)
    header = ("", "runs", f"last {what}, mean [95 %]", f"best {what}, mean [95 %]")
    # The best evaluations say nothing more where they are the last ones.
    shown = 3 if result.best == result.last else 4
    print_table(header[:shown], [row[:shown] for row in rows])
    if result.estimates is not None:
        told = [
            (f"{side}: {label}", each.told, plain_number(each.score))
            for side, label, each in zip("AB", result.labels, result.estimates, strict=True)
        ]
        print_table(("judged by the log", "verdict", "score"), told)
    online = [
        (name, show(estimate(first)), show(estimate(second)), show(change))
        for name, (first, second, change) in result.online.items()
    ]
    if online:
        print_table(("going online", "A", "B", "A - B"), online)
    typer.echo(result.verdict)
