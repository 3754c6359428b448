"""`rl-training evaluate`."""

from pathlib import Path
from typing import Annotated

import typer

from rl_training.cli.options import CheckpointOption, DeviceOption, EnvOption, WrapperOption


def evaluate(
    checkpoint: CheckpointOption,
    episodes: Annotated[
        int | None,
        typer.Option("--episodes", "-n", min=1, help="Episodes to run; default: as in the config."),
    ] = None,
    env_id: EnvOption = None,
    wrapper: WrapperOption = None,
    device: DeviceOption = None,
    video: Annotated[
        Path | None,
        typer.Option("--video", metavar="DIR", help="Also film the episodes: DIR/episode-000.mp4 and so on."),
    ] = None,
) -> None:
    """Run a saved policy in its environment and print the returns as JSON."""
    from rl_training.cli.output import print_json
    from rl_training.experiment.workflows import evaluate_checkpoint
    from rl_training.runtime.wrappers import load_wrappers

    wrappers = None if wrapper is None else load_wrappers(wrapper)
    where = device or "auto"
    if video is None:
        metrics = evaluate_checkpoint(
            checkpoint, num_episodes=episodes, device=where, env=env_id, wrappers=wrappers
        )
    else:
        from rl_training.experiment.video import film_checkpoint

        metrics = film_checkpoint(
            checkpoint, video, num_episodes=episodes, device=where, env=env_id, wrappers=wrappers
        )
    print_json(metrics)
