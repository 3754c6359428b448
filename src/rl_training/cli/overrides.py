"""Command-line options as config overrides, so that they are checked with everything else."""

import json
import re
from pathlib import Path

from rl_training.core.errors import ConfigError


def parse_seeds(text: str | None) -> list[int] | None:
    """`0-7` or `0,3,5` (or both: `0-2,9`) as a list of seeds."""
    if text is None:
        return None
    seeds: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:\s*-\s*(\d+))?\s*", part)
        if match is None:
            raise ConfigError(f"seeds must be a list such as 0-7 or 0,3,5, got {text!r}")
        first, last = int(match[1]), int(match[2] or match[1])
        seeds.extend(range(first, last + 1))
    return seeds


def as_overrides(**options: str | int | list[int] | Path | None) -> list[str]:
    """`--set` strings for the options that were given. JSON quoting keeps a name such as `1e5` text."""
    return [
        f"{name}={json.dumps(str(value) if isinstance(value, Path) else value)}"
        for name, value in options.items()
        if value is not None
    ]
