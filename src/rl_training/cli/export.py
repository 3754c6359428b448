"""`rl-training export`."""

from pathlib import Path
from typing import Annotated

import typer

from rl_training.cli.options import CheckpointOption


def export(
    checkpoint: CheckpointOption,
    out: Annotated[Path, typer.Option("--out", help="File to write: .onnx, .pt or .safetensors.")],
    format: Annotated[
        str | None,
        typer.Option("--format", help="onnx, torchscript or safetensors; default: by the suffix of --out."),
    ] = None,
    distribution: Annotated[
        bool,
        typer.Option("--distribution", help="Also give mean and log_std of a stochastic policy as outputs."),
    ] = False,
    guard: Annotated[
        list[str] | None,
        typer.Option(
            "--guard",
            metavar="DATA",
            help="Let the file notice observations unlike this data (novelty, flag, fallback): a file or "
            "folder, or run for the run's own data; may be given several times.",
        ),
    ] = None,
    guard_set: Annotated[
        list[str] | None,
        typer.Option(
            "--guard-set", metavar="NAME=VALUE", help="A setting of the guard, such as fallback=hold."
        ),
    ] = None,
) -> None:
    """Write a policy as one portable file (scaling, network, bounds) and a model card beside it."""
    from rl_training.cli.overrides import parsed_settings
    from rl_training.experiment.exporting import export_checkpoint

    file = export_checkpoint(
        checkpoint,
        out,
        format=format,
        distribution=distribution,
        guard=guard or None,
        guard_settings=parsed_settings("--guard-set", guard_set or []),
    )
    typer.echo(str(file))
