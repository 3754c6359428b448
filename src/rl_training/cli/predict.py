"""`rl-training predict`."""

from typing import Annotated

import typer

from rl_training.cli.options import CheckpointOption


def predict(
    checkpoint: CheckpointOption,
    obs: Annotated[
        str | None, typer.Option("--obs", help='One observation as numbers between commas: "0.1, 0.2, 0.3".')
    ] = None,
    obs_file: Annotated[
        str | None,
        typer.Option(
            "--obs-file", help="Observations, one per row: .npy, .csv or .json; - reads standard input."
        ),
    ] = None,
) -> None:
    """Print the actions of a saved policy, in the units of its environment, as JSON."""
    from rl_training.cli.observations import read_observations
    from rl_training.cli.output import print_json
    from rl_training.runtime.workflows import predict_checkpoint

    print_json(predict_checkpoint(checkpoint, read_observations(obs, obs_file)).tolist())
