"""`rl-training finetune`."""

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


def finetune(
    checkpoint: CheckpointOption,
    timesteps: Annotated[
        int, typer.Option("--timesteps", "-t", min=1, help="Environment steps to learn from.")
    ],
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change one setting; may be given several times."),
    ] = None,
    env_id: EnvOption = None,
    wrapper: WrapperOption = None,
    output_dir: OutputDirOption = None,
    data: SavedDataOption = None,
    allow_changed_data: ChangedDataOption = False,
    quiet: QuietOption = False,
) -> None:
    """Go on learning in an environment from a policy that was trained on data, as a new run."""
    from rl_training.cli.run import report
    from rl_training.core.config_files import apply_override
    from rl_training.experiment.finetuning import finetune_checkpoint
    from rl_training.runtime.wrappers import load_wrappers

    changed: dict[str, object] = {}
    for change in changes or ():
        apply_override(changed, change)
    result = finetune_checkpoint(
        checkpoint,
        timesteps=timesteps,
        changes=changed,
        output_dir=output_dir,
        env=env_id,
        wrappers=None if wrapper is None else load_wrappers(wrapper),
        data=data,
        allow_changed_data=allow_changed_data,
        quiet=quiet,
    )
    report(result, quiet=quiet)
