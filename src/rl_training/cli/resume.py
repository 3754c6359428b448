"""`rl-training resume`."""

from typing import Annotated

import typer

from rl_training.cli.options import (
    ChangedDataOption,
    CheckpointOption,
    EnvOption,
    OutputDirOption,
    QuietOption,
    SavedDataOption,
    WrapperOption,
)


def resume(
    checkpoint: CheckpointOption,
    total_timesteps: Annotated[
        int | None,
        typer.Option(
            "--total-timesteps", min=1, help="New total length of the run; default: as it was planned."
        ),
    ] = None,
    online_timesteps: Annotated[
        int | None,
        typer.Option(
            "--online-timesteps", min=1, help="New length of the online phase; default: as it was planned."
        ),
    ] = None,
    output_dir: OutputDirOption = None,
    env_id: EnvOption = None,
    wrapper: WrapperOption = None,
    data: SavedDataOption = None,
    allow_changed_data: ChangedDataOption = False,
    quiet: QuietOption = False,
) -> None:
    """Continue a run exactly where its checkpoint was saved."""
    from rl_training.cli.run import report
    from rl_training.experiment.workflows import resume_training
    from rl_training.runtime.wrappers import load_wrappers

    result = resume_training(
        checkpoint,
        total_timesteps=total_timesteps,
        online_timesteps=online_timesteps,
        output_dir=output_dir,
        env=env_id,
        wrappers=None if wrapper is None else load_wrappers(wrapper),
        data=data,
        allow_changed_data=allow_changed_data,
        quiet=quiet,
    )
    report(result, quiet=quiet)
