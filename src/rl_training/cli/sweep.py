"""`rl-training sweep`."""

from typing import Annotated, Literal

import typer

from rl_training.cli.options import OutputDirOption, QuietOption

INCOMPLETE = 1


def sweep(
    file: Annotated[str, typer.Argument(help="YAML file of the sweep, or the name of a packaged one.")],
    workers: Annotated[
        int | None,
        typer.Option("--workers", "-w", min=1, help="Worker processes; default: the number of cores."),
    ] = None,
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
    from rl_training.cli.output import print_table
    from rl_training.core.errors import ConfigError
    from rl_training.sweeps.run_sweep import run_sweep
    from rl_training.sweeps.table import shown_return

    if address is not None and backend != "ray":
        raise ConfigError(f"address must be left out without --backend ray, got {address!r}")
    result = run_sweep(
        file, output_dir=output_dir, workers=workers, backend=backend, address=address, quiet=quiet
    )
    if quiet:
        typer.echo(str(result.output_dir))
    else:
        rows = [
            (run.name, status.state, shown_return(status), str(run.run_dir)) for run, status in result.runs
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
