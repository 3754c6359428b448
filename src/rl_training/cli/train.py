"""`rl-training train`."""

from typing import Annotated

import typer

from rl_training.cli.column_options import with_column_options
from rl_training.cli.options import DeviceOption, OutputDirOption, QuietOption, SeedOption, SeedsOption
from rl_training.cli.overrides import as_overrides, data_overrides, parse_seeds

_DATA = "Own data instead of a config"


@with_column_options
def train(
    fields: dict[str, object],
    config: Annotated[
        str | None,
        typer.Option("--config", "-c", help="YAML file, or the name of a packaged config (see `configs`)."),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change one setting; may be given several times."),
    ] = None,
    algo: Annotated[
        str | None, typer.Option("--algo", help="Algorithm, without a config.", rich_help_panel=_DATA)
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            "--data", help="File, folder, or pattern in quotes: 'logs/*.csv'.", rich_help_panel=_DATA
        ),
    ] = None,
    steps: Annotated[
        int | None, typer.Option("--steps", help="Gradient steps (online: environment steps).", min=1)
    ] = None,
    action_low: Annotated[
        list[float] | None,
        typer.Option("--action-low", help="Lower bound; once, or once per action.", rich_help_panel=_DATA),
    ] = None,
    action_high: Annotated[
        list[float] | None,
        typer.Option("--action-high", help="Upper bound; once, or once per action.", rich_help_panel=_DATA),
    ] = None,
    env_id: Annotated[str | None, typer.Option("--env-id", help="Environment to evaluate in.")] = None,
    seed: SeedOption = None,
    seeds: SeedsOption = None,
    output_dir: OutputDirOption = None,
    device: DeviceOption = None,
    quiet: QuietOption = False,
) -> None:
    """Train a policy as a config says, or straight from a log of your own, and evaluate it."""
    from rl_training.cli.run import run_and_report
    from rl_training.core.config_files import load_config

    options = as_overrides(
        seed=seed,
        seeds=parse_seeds(seeds),
        output_dir=output_dir,
        device=device,
        algo=algo,
        env_id=env_id,
        total_timesteps=steps,
    )
    name, recipe = data_overrides(config, algo, data, fields, action_low, action_high)
    run_and_report(load_config(name, [*recipe, *(changes or []), *options]), quiet=quiet)
