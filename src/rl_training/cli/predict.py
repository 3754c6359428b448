"""`rl-training predict`."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class MissingValues(StrEnum):
    """What an empty cell of an observation means."""

    error = "error"
    hold = "hold"


def predict(
    checkpoint: Annotated[
        Path,
        typer.Option(
            "--checkpoint", "-k", help="Checkpoint file, run directory, or exported .onnx/.safetensors."
        ),
    ],
    obs: Annotated[
        str | None, typer.Option("--obs", help='One observation: "0.1, 0.2, 0.3" or "0.1 0.2 0.3".')
    ] = None,
    obs_file: Annotated[
        str | None,
        typer.Option(
            "--obs-file",
            help="Observations, one per row: a table with the columns that the policy was trained on, in "
            "any order and among others, or bare numbers in .npy, .csv or .json; - reads standard input. "
            "With --out also .npz and .parquet, of any size.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Write the actions to this .csv, .npy, .npz or .parquet file instead."),
    ] = None,
    missing_values: Annotated[
        MissingValues,
        typer.Option(
            "--missing-values",
            help="Empty cells of a table: an error, or hold = the last value of the column before.",
        ),
    ] = MissingValues.error,
) -> None:
    """Print the actions of a saved policy as JSON, or write those of a whole file.

    Of a policy with a guard: action (the fallback's where it is flagged), novelty and flagged.
    """
    hold = missing_values is MissingValues.hold
    if out is not None:
        _predict_file(checkpoint, obs, obs_file, out, hold=hold)
        return
    import numpy as np

    from rl_training.cli.observations import chunks_by_name, read_observations
    from rl_training.cli.output import print_json
    from rl_training.policies.predict_files import open_policy

    policy = open_policy(checkpoint)
    chunks = None if obs is not None else chunks_by_name(obs_file, policy.features.observations, hold)
    if chunks is None:
        values = read_observations(obs, obs_file)
    else:
        values = np.concatenate([chunk.rows for chunk in chunks])
    if policy.guard_facts is None:
        print_json(policy.predict(values).tolist())
        return
    told = policy.guarded().act(values)
    print_json({name: numbers.tolist() for name, numbers in told._asdict().items()})


def _predict_file(checkpoint: Path, obs: str | None, obs_file: str | None, out: Path, *, hold: bool) -> None:
    """Stream a file through the policy, with a bar for people at a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    from rl_training.cli.observations import chunks_by_name
    from rl_training.core.errors import UserError
    from rl_training.policies.predict_files import open_policy, predict_file

    if obs is not None or obs_file is None or obs_file == "-":
        raise UserError("--out needs --obs-file FILE: a .csv, .npy, .npz or .parquet file")
    policy = open_policy(checkpoint)
    console = Console(stderr=True)
    rows_done = TextColumn("{task.fields[rows]:,} observations")
    columns = (BarColumn(bar_width=None), TaskProgressColumn(), rows_done, TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, expand=True) as progress:
        task = progress.add_task("", total=1.0, rows=0)

        def show(rows: int, share: float) -> None:
            progress.update(task, completed=share, rows=rows)

        chunks = chunks_by_name(obs_file, policy.features.observations, hold)
        rows = predict_file(policy, Path(obs_file), out, show, chunks)
    typer.echo(f"{out}: {rows} actions")
