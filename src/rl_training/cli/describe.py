"""Commands that explain: `rl-training describe` and `configs`."""

from typing import Annotated

import typer

from rl_training.cli.options import print_table
from rl_training.core.errors import ConfigError, did_you_mean


def describe(
    algo: Annotated[str, typer.Argument(metavar="ALGO", help="Algorithm, such as `sac`.")],
) -> None:
    """Explain every setting of a run: its type, bound, default and meaning."""
    from rl_training.config import describe_fields
    from rl_training.config.run import TrainConfig, algorithm_settings

    header = ("setting", "type", "bound", "default", "meaning")
    for level, model in (("", TrainConfig), ("algo_kwargs, ", algorithm_settings(algo))):
        groups: dict[str, list[tuple[str, ...]]] = {}
        for row in describe_fields(model):
            cells = (row.name, row.type, row.bound, row.default, row.meaning)
            groups.setdefault(row.group, []).append(cells)
        for group in reversed(groups):  # fields of base classes come first; the algorithm's own matter most
            print_table(header, groups[group], title=f"{level}{group}")


def configs(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Print this config as YAML instead of the list.")
    ] = None,
    show: Annotated[str | None, typer.Option("--show", metavar="NAME", hidden=True)] = None,
) -> None:
    """List the packaged configs, or print one as a start for your own."""
    from rl_training.config.run import list_packaged_configs

    packaged = {config.name: config for config in list_packaged_configs()}
    if name is not None and show not in (None, name):
        raise ConfigError(f"one config must be named, got {name!r} and {show!r}")
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
