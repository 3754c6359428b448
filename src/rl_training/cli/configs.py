"""`rl-training configs`."""

from typing import Annotated

import typer


def configs(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Print this config as YAML instead of the list.")
    ] = None,
    show: Annotated[str | None, typer.Option("--show", metavar="NAME", hidden=True)] = None,
) -> None:
    """List the packaged configs, or print one as a start for your own."""
    from rl_training.cli.output import print_table
    from rl_training.config.wording import did_you_mean
    from rl_training.core.config_files import list_packaged_configs
    from rl_training.core.errors import ConfigError

    packaged = {config.name: config for config in list_packaged_configs()}
    chosen = name or show
    if chosen is None:
        rows = [
            (c.name, c.algo, c.env_id or "", f"{c.total_timesteps:,}", c.summary) for c in packaged.values()
        ]
        print_table(("name", "algo", "environment", "steps", "summary"), rows)
    elif chosen in packaged:
        typer.echo(packaged[chosen].text, nl=False)
    else:
        raise ConfigError(f"{chosen!r} is not a packaged config{did_you_mean(chosen, packaged)}")
