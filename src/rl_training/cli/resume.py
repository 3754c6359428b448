"""`rl-training resume`."""

from typing import Annotated

import typer

from rl_training.cli.options import CheckpointOption, OutputDirOption, QuietOption


def resume(
    checkpoint: CheckpointOption,
    total_timesteps: Annotated[
        int | None,
        typer.Option(
            "--total-timesteps", min=1, help="New total length of the run; default: as it was planned."
        ),
    ] = None,
    output_dir: OutputDirOption = None,
    quiet: QuietOption = False,
) -> None:
    """Continue a run exactly where its checkpoint was saved."""
    from rl_training.cli.run import report
    from rl_training.experiment.workflows import resume_training

    result = resume_training(checkpoint, total_timesteps=total_timesteps, output_dir=output_dir, quiet=quiet)
    report(result, quiet=quiet)
