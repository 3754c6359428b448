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
) -> None:
    """Write a policy as one portable file (scaling, network, bounds) and a model card beside it."""
    from rl_training.experiment.exporting import export_checkpoint

    typer.echo(str(export_checkpoint(checkpoint, out, format=format, distribution=distribution)))
