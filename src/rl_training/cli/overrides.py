"""Command-line options as config overrides, so that they are checked with everything else."""

import json
from pathlib import Path


def as_overrides(**options: str | int | Path | None) -> list[str]:
    """`--set` strings for the options that were given. JSON quoting keeps a name such as `1e5` text."""
    return [
        f"{name}={json.dumps(str(value) if isinstance(value, Path) else value)}"
        for name, value in options.items()
        if value is not None
    ]
