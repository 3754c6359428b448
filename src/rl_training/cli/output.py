"""Tables for people, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rl_training.core.atomic import plain_json

_WIDTH_OF_A_FILE = 160  # a pipe has no width of its own; the usual 80 would break every sentence


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]], *, title: str | None = None) -> None:
    """Print rows of plain text under a header; long cells wrap to the width of the terminal."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_WIDTH_OF_A_FILE)
    table = Table(*header, box=box.SIMPLE, title=title, title_justify="left", title_style="bold")
    table.columns[0].no_wrap = True  # names stay searchable
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))  # Text: brackets in a cell are not markup
    console.print(table)


def print_json(value: object) -> None:
    """Print as JSON that any parser reads: a number that is not finite becomes null."""
    print(json.dumps(plain_json(value), indent=2 if isinstance(value, Mapping) else None))
