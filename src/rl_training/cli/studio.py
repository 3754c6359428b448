"""`rl-training studio`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def studio(
    directory: Annotated[Path, typer.Argument(help="Directory with logs and runs.")] = Path("."),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any that is free.")] = 0,
) -> None:
    """Open a page over a directory: from a log to a policy beside its machine, without commands.

    What is started from the page are ordinary commands; they go on when the page and this command are closed.
    """
    from rl_training.studio.server import studio

    studio(directory, port, lambda line: typer.echo(line, err=True))
