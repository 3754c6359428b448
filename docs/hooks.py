"""Fills tables into the pages at build time, so that no default, bound or meaning is written twice.

`<!-- settings: run -->` becomes the fields of `TrainConfig`, `<!-- settings: sac -->` what `algo_kwargs` of
SAC may hold, in groups; both come from the same fields that check a config and answer `rl-training
describe`.
"""

import re
from itertools import groupby
from typing import Any

from rl_training.core.algorithms import ALGORITHMS
from rl_training.experiment.config import ConfigModel, FieldRow, TrainConfig, describe_fields

MARKER = re.compile(r"<!-- settings: (\w+) -->")
COLUMNS = ("setting", "type", "bound", "default", "meaning")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs for every page."""
    return MARKER.sub(lambda marker: settings_tables(marker[1]), markdown)


def settings_tables(name: str) -> str:
    """The tables of one config class, one per group of settings, as Markdown."""
    config_class: type[ConfigModel] = TrainConfig if name == "run" else ALGORITHMS.get(name).settings
    rows = sorted(describe_fields(config_class), key=lambda row: row.group)
    groups = groupby(rows, key=lambda row: row.group)
    return "\n\n".join(f"**{group.capitalize()}**\n\n{table(list(members))}" for group, members in groups)


def table(rows: list[FieldRow]) -> str:
    """Rows of settings as a Markdown table."""
    lines = [" | ".join(COLUMNS), " | ".join("---" for _ in COLUMNS)]
    for row in rows:
        cells = (f"`{row.name}`", row.type, row.bound, f"`{row.default}`", row.meaning)
        lines.append(" | ".join(cell.replace("|", "\\|") for cell in cells))
    return "\n".join(f"| {line} |" for line in lines)
