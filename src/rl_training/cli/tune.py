"""`rl-training tune`."""

from typing import Annotated

import typer

from rl_training.cli.options import OutputDirOption


def tune(
    file: Annotated[str, typer.Argument(help="YAML file of the search, or the name of a packaged one.")],
    workers: Annotated[
        int | None,
        typer.Option("--workers", "-w", min=1, help="Worker processes; default: the number of cores."),
    ] = None,
    output_dir: OutputDirOption = None,
) -> None:
    """Search for good settings; called again, it goes on where it was stopped."""
    from rl_training.cli.output import print_table
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
    print_table(("result", "value"), rows)
    if result.signal is not None:
        typer.echo(f"stopped and saved; go on with: rl-training tune {file}", err=True)
        raise typer.Exit(128 + result.signal)
