"""`rl-training describe`."""

from itertools import groupby
from typing import Annotated

import typer


def describe(
    algo: Annotated[str, typer.Argument(metavar="ALGO", help="Algorithm, such as `sac`.")],
) -> None:
    """Explain every setting of a run: its type, bound, default and meaning."""
    from rl_training.cli.output import print_table
    from rl_training.experiment.config import TrainConfig, describe_fields
    from rl_training.experiment.registry import get_algorithm_spec

    spec = get_algorithm_spec(algo)
    levels = {"": describe_fields(TrainConfig), "algo_kwargs, ": describe_fields(spec.config_class)}
    for level, rows in levels.items():
        for group, members in groupby(sorted(rows, key=lambda row: row.group), key=lambda row: row.group):
            cells = [(row.name, row.type, row.bound, row.default, row.meaning) for row in members]
            print_table(("setting", "type", "bound", "default", "meaning"), cells, title=f"{level}{group}")
