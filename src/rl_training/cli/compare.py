"""`rl-training compare`."""

from typing import Annotated

import typer

from rl_training.cli.report import MetricOption

_SIDE = "a run directory, a folder of runs that differ by their seeds, or a pattern in quotes."


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help=f"First: {_SIDE}")],
    b: Annotated[str, typer.Argument(metavar="B", help=f"Second: {_SIDE}")],
    metric: MetricOption = None,
) -> None:
    """Say which of two configurations is better, with an interval."""
    from rl_training.cli.output import print_table
    from rl_training.report.compare import compare_runs
    from rl_training.report.run_reader import find_runs, metric_title
    from rl_training.report.statistics import Estimate, estimate
    from rl_training.report.tables import bounds, plain_number

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
    online = [
        (name, show(estimate(first)), show(estimate(second)), show(change))
        for name, (first, second, change) in result.online.items()
    ]
    if online:
        print_table(("going online", "A", "B", "A - B"), online)
    typer.echo(result.verdict)
