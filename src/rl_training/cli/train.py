"""`rl-training train`."""

from typing import Annotated

import typer

from rl_training.cli.options import DeviceOption, OutputDirOption, QuietOption, SeedOption, SeedsOption
from rl_training.cli.overrides import as_overrides, parse_seeds


def train(
    config: Annotated[
        str,
        typer.Option("--config", "-c", help="YAML file, or the name of a packaged config (see `configs`)."),
    ],
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change one setting; may be given several times."),
    ] = None,
    seed: SeedOption = None,
    seeds: SeedsOption = None,
    output_dir: OutputDirOption = None,
    device: DeviceOption = None,
    quiet: QuietOption = False,
) -> None:
    """Train a policy as a config says, and evaluate it."""
    from rl_training.cli.run import run_and_report
    from rl_training.core.config_files import load_config

    options = as_overrides(seed=seed, seeds=parse_seeds(seeds), output_dir=output_dir, device=device)
    run_and_report(load_config(config, [*(changes or []), *options]), quiet=quiet)
