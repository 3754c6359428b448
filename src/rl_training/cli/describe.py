"""`rl-training describe`."""

from typing import Annotated

import typer


def describe(
    algo: Annotated[str, typer.Argument(metavar="ALGO", help="Algorithm, such as `sac`.")],
) -> None:
    """Explain every setting of a run: its type, bound, default and meaning."""
    from rl_training.cli.output import print_table
    from rl_training.config import describe_fields
    from rl_training.core.algorithms import ALGORITHMS
    from rl_training.core.train_config import TrainConfig

    recipe = ALGORITHMS.get(algo)
    header = ("setting", "type", "bound", "default", "meaning")
    for level, model in (("", TrainConfig), ("algo_kwargs, ", recipe.settings)):
        groups: dict[str, list[tuple[str, ...]]] = {}
        for row in describe_fields(model):
            cells = (row.name, row.type, row.bound, row.default, row.meaning)
            groups.setdefault(row.group, []).append(cells)
        for group in reversed(groups):  # fields of base classes come first; the algorithm's own matter most
            print_table(header, groups[group], title=f"{level}{group}")
