"""`rl-training evaluate`."""

from pathlib import Path
from typing import Annotated

import typer

from rl_training.cli.options import CheckpointOption, DeviceOption


def evaluate(
    checkpoint: CheckpointOption,
    episodes: Annotated[
        int | None,
        typer.Option("--episodes", "-n", min=1, help="Episodes to run; default: as in the config."),
    ] = None,
    device: DeviceOption = None,
    video: Annotated[
        Path | None,
        typer.Option("--video", metavar="DIR", help="Also film the episodes: DIR/episode-000.mp4 and so on."),
    ] = None,
) -> None:
    """Run a saved policy in its environment and print the returns as JSON."""
    from rl_training.cli.output import print_json

    if video is not None:
        from rl_training.experiment.video import film_checkpoint

        print_json(film_checkpoint(checkpoint, video, num_episodes=episodes, device=device or "auto"))
        return
    from rl_training.experiment.workflows import evaluate_checkpoint

    print_json(evaluate_checkpoint(checkpoint, num_episodes=episodes, device=device or "auto"))
