"""What `data inspect` prints about a table whose columns it does not know."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rl_training.data.convert import Place
    from rl_training.data.tables.guess import Guess

TABLE_KINDS = {"table": None, **{kind: kind for kind in ("csv", "parquet", "feather", "jsonl")}}


def print_guess(place: Place, fields: dict[str, object], *, as_json: bool) -> bool:
    """Print columns and a mapping to start from, if the place is a table that needs one."""
    if place.kind not in TABLE_KINDS or place.path is None:
        return False
    from rl_training.cli.output import print_json
    from rl_training.data.tables.facts import look_at
    from rl_training.data.tables.guess import guess_mapping, needs_mapping

    path, kind, source = Path(place.path), TABLE_KINDS[place.kind], place.source(fields)
    if not needs_mapping(path, source, kind=kind):
        return False
    guess = guess_mapping(look_at(path, source, kind=kind))
    if as_json:
        print_json(guess.to_dict())
    else:
        _print(guess)
    return True


def _print(guess: Guess) -> None:
    from rl_training.cli.output import print_table

    facts = guess.facts
    many = f"{facts.files} files, " if facts.files > 1 else ""
    typer.echo(f"{facts.source}: {many}{len(facts.columns)} columns, {facts.rows_seen:,} rows looked at")
    rows = [
        (
            column.name,
            column.kind,
            column.low,
            column.high,
            str(column.missing or ""),
            guess.reasons[column.name],
        )
        for column in facts.columns
    ]
    print_table(("column", "kind", "min", "max", "empty", "taken for"), rows)
    for question in guess.questions:
        typer.echo(f"- {question}")
    typer.echo("\nA mapping to start from, in a config:\n")
    typer.echo(guess.yaml())
    typer.echo(
        "or on the command line (also of `data inspect` and `data convert`, with the path in front):\n"
    )
    typer.echo(f"  rl-training train --algo iql {guess.flags()} --action-low … --action-high …")
