"""Options that several commands share, so that they read the same everywhere."""

from pathlib import Path
from typing import Annotated

import typer

CheckpointOption = Annotated[
    Path,
    typer.Option(
        "--checkpoint", "-k", help="Checkpoint file, or a run directory (its newest checkpoint is used)."
    ),
]
DeviceOption = Annotated[
    str | None, typer.Option("--device", help="Where to compute: auto, cpu, cuda, cuda:N or mps.")
]
EnvOption = Annotated[
    str | None,
    typer.Option(
        "--env-id",
        help="Environment, in place of the saved one; say it yourself where its id names a module to import.",
    ),
]
WrapperOption = Annotated[
    list[str] | None,
    typer.Option(
        "--wrapper", metavar="MODULE:FUNCTION", help="Put around the environment; may be given several times."
    ),
]
SeedOption = Annotated[int | None, typer.Option("--seed", help="Seed of every random stream of the run.")]
SeedsOption = Annotated[
    str | None,
    typer.Option(
        "--seeds",
        metavar="LIST",
        help="Train several seeds as one batched computation, a run directory each: 0-7, or 0,3,5.",
    ),
]
OutputDirOption = Annotated[
    Path | None, typer.Option("--output-dir", "-o", help="Directory in which the run directory is created.")
]
SavedDataOption = Annotated[
    str | None,
    typer.Option(
        "--data",
        help="Where the run's data lies; to be said where the checkpoint lies outside a run directory.",
    ),
]
ChangedDataOption = Annotated[
    bool,
    typer.Option("--allow-changed-data", help="Go on although the data is not what it was; not exact."),
]
QuietOption = Annotated[
    bool, typer.Option("--quiet", "-q", help="No progress and no table; print only the run directory.")
]
