"""`rl-training evaluate`."""

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
) -> None:
    """Run a saved policy in its environment and print the returns as JSON."""
    from rl_training.cli.output import print_json
    from rl_training.runtime.workflows import evaluate_checkpoint

    print_json(evaluate_checkpoint(checkpoint, num_episodes=episodes, device=device or "auto"))
