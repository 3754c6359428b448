"""Commands that serve: `rl-training serve`, `drift` after the export, and `studio`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer


def serve(
    policy: Annotated[Path, typer.Argument(help="Exported policy: .onnx or .safetensors.")],
    mode: Annotated[
        Literal["shadow", "advise", "act"],
        typer.Option(
            help="shadow: recommend and record, answer with what was applied; advise: answer with the "
            "recommendation, what was done comes with the next call; act: answer with the action to play."
        ),
    ] = "shadow",
    host: Annotated[
        str, typer.Option(help="Address to listen on; any but this machine's own needs a token.")
    ] = ("127.0.0.1"),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on.")] = 8000,
    name: Annotated[
        str | None, typer.Option(help="Name of the model in addresses; default: that of the file.")
    ] = None,
    decisions: Annotated[
        str | None,
        typer.Option(
            help="Where every decision is written: a SQLite file or postgresql://HOST/DATABASE; '' for "
            "nowhere. Default: decisions.db beside the policy."
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(help="File with the token that calls must carry; or set RL_TRAINING_TOKEN."),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Take over the file whenever it changes.")] = False,
    dial: Annotated[
        float | None,
        typer.Option(help="Position of the dial, 0 to 1; default: that of the file. Changed at /dial."),
    ] = None,
    idle_minutes: Annotated[
        float, typer.Option(min=0.01, help="A session that is silent for longer begins a new episode.")
    ] = 60.0,
) -> None:
    """Answer calls with a policy's actions, by column names, and write down every decision."""
    from rl_training.serve.app import ServeSettings, serve

    settings = ServeSettings(
        policy, mode, host, port, name, decisions, token_file, watch, dial, idle_minutes * 60.0
    )
    serve(settings, lambda line: typer.echo(line, err=True))


def drift(
    decisions: Annotated[
        str, typer.Argument(help="Decision log: a SQLite file or postgresql://HOST/DATABASE.")
    ],
    policy: Annotated[Path, typer.Option(help="The policy that decided: .onnx or .safetensors.")],
    out: Annotated[Path, typer.Option(help="Page to write.")] = Path("drift.html"),
    last: Annotated[int, typer.Option(min=1, help="Newest decisions that are looked at.")] = 10_000,
) -> None:
    """Write a page on how far what a served policy sees lies from what it was trained on."""
    from rl_training.serve.drift import write_drift_page

    for line in write_drift_page(decisions, policy, out, last=last):
        typer.echo(line)
    typer.echo(str(out))


# ---- `rl-training studio`


def studio(
    directory: Annotated[Path, typer.Argument(help="Directory with logs and runs.")] = Path("."),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any that is free.")] = 0,
) -> None:
    """Open a page over a directory: from a log to a policy beside its machine, without commands.

    What is started from the page are ordinary commands; they go on when the page and this command are closed.
    """
    from rl_training.studio.app import studio

    studio(directory, port, lambda line: typer.echo(line, err=True))
