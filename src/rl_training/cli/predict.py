"""Commands that use a policy: `rl-training predict`, `evaluate` and `export`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rl_training.cli.options import (
    CheckpointOption,
    DeviceOption,
    EnvKwargsOption,
    EnvOption,
    WrapperOption,
    parse_env_kwargs,
    print_json,
)
from rl_training.core.errors import UserError

if TYPE_CHECKING:
    from rl_training.policies.acting import ActingPolicy
    from rl_training.policies.files import Chunks


DialOption = Annotated[
    float | None,
    typer.Option("--dial", help="Position of the policy's dial, 0 to 1; default: where it stands."),
]


LimitOption = Annotated[
    float | None,
    typer.Option(
        "--limit",
        help="What the cost may be, of a policy that takes a limit (caps): per step or episode, as set.",
    ),
]


def chosen(dial: float | None, limit: float | None) -> dict[str, float]:
    """What is chosen of a policy's inputs."""
    return {name: value for name, value in (("dial", dial), ("limit", limit)) if value is not None}


def predict(
    checkpoint: Annotated[
        Path,
        typer.Option(
            "--checkpoint", "-k", help="Checkpoint file, run directory, or exported .onnx/.safetensors."
        ),
    ],
    obs: Annotated[
        str | None, typer.Option("--obs", help='One observation: "0.1, 0.2, 0.3" or "0.1 0.2 0.3".')
    ] = None,
    obs_file: Annotated[
        str | None,
        typer.Option(
            "--obs-file",
            help="Observations, one per row: a table with the columns that the policy was trained on, in "
            "any order and among others, or bare numbers in .npy, .csv or .json; - reads standard input. "
            "With --out also .npz and .parquet, of any size.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Write the actions to this .csv, .npy, .npz or .parquet file instead."),
    ] = None,
    missing_values: Annotated[
        Literal["error", "hold"] | None,
        typer.Option(
            "--missing-values",
            help="Empty cells and NaN: an error, or hold = the last value of a table's column before. "
            "Default: a policy with a guard flags such rows, for any other they are an error.",
        ),
    ] = None,
    dial: DialOption = None,
    limit: LimitOption = None,
) -> None:
    """Print the actions of a saved policy as JSON, or write those of a whole file.

    Of a policy with a guard: action (the fallback's where it is flagged), novelty and flagged.
    """
    import numpy as np

    from rl_training.policies.files import load_policy
    from rl_training.runs.options import chunks_by_name, read_observations

    if out is not None and (obs is not None or obs_file in (None, "-")):
        raise UserError("--out needs --obs-file FILE: a .csv, .npy, .npz or .parquet file")
    policy = load_policy(checkpoint).with_inputs(**chosen(dial, limit))
    names, hold = policy.features.observations, missing_values == "hold"
    finite = policy.guard_facts is None or missing_values == "error"
    chunks = None if obs is not None else chunks_by_name(obs_file, names, hold=hold, gaps=not finite)
    if chunks is None and hold:
        raise UserError("--missing-values hold needs --obs-file with a table that has the policy's columns")
    if out is not None:
        _predict_file(policy, Path(str(obs_file)), out, chunks, finite=finite)
        return
    if chunks is None:
        values = read_observations(obs, obs_file, names)
    else:
        values = np.concatenate([chunk.rows for chunk in chunks])
    follows = policy.memory is not None or policy.counter is not None
    if policy.guard_facts is None and follows:  # rows that follow each other
        rows = policy.spaces.check_observations(values)
        print_json(policy.controller().act(rows).action.tolist())
        return
    if policy.guard_facts is None:
        print_json(policy.predict(values).tolist())
        return
    told = policy.guarded().act(policy.spaces.check_observations(values, finite=finite))
    columns = {**told._asdict(), "action": policy.spaces.in_words(told.action)}
    print_json({name: values.tolist() for name, values in columns.items()})


def _predict_file(
    policy: ActingPolicy, source: Path, out: Path, chunks: Chunks | None, *, finite: bool
) -> None:
    """Stream a file through the policy, with a bar for people at a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    from rl_training.policies.files import predict_file

    console = Console(stderr=True)
    rows_done = TextColumn("{task.fields[rows]:,} observations")
    columns = (BarColumn(bar_width=None), TaskProgressColumn(), rows_done, TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, expand=True) as progress:
        task = progress.add_task("", total=1.0, rows=0)

        def show(rows: int, share: float) -> None:
            progress.update(task, completed=share, rows=rows)

        rows = predict_file(policy, source, out, show, chunks, finite=finite)
    typer.echo(f"{out}: {rows} actions")


def evaluate(
    checkpoint: CheckpointOption,
    episodes: Annotated[
        int | None,
        typer.Option("--episodes", "-n", min=1, help="Episodes to run; default: as in the config."),
    ] = None,
    env_id: EnvOption = None,
    env_kwargs: EnvKwargsOption = None,
    wrapper: WrapperOption = None,
    device: DeviceOption = None,
    dial: DialOption = None,
    limit: LimitOption = None,
    video: Annotated[
        Path | None,
        typer.Option("--video", metavar="DIR", help="Also film the episodes: DIR/episode-000.mp4 and so on."),
    ] = None,
) -> None:
    """Run a saved policy in its environment and print the returns as JSON."""
    from rl_training.runs.evaluate import evaluate_checkpoint
    from rl_training.runtime.envs import load_wrappers

    play = evaluate_checkpoint
    if video is not None:
        from rl_training.runs.evaluate import film_checkpoint

        play = partial(film_checkpoint, folder=video)
    metrics = play(
        checkpoint,
        num_episodes=episodes,
        device=device or "auto",
        env=env_id,
        wrappers=None if wrapper is None else load_wrappers(wrapper),
        env_kwargs=parse_env_kwargs(env_kwargs),
        inputs=chosen(dial, limit),
    )
    print_json(metrics)


def export_dial(text: str) -> float | Literal["auto"]:
    """A number, or the word that asks the judge for one."""
    if text == "auto":
        return "auto"
    try:
        return float(text)
    except ValueError:
        raise UserError(f"--dial must be a number from 0 to 1, or auto, got {text!r}") from None


def export(
    checkpoint: CheckpointOption,
    out: Annotated[Path, typer.Option("--out", help="File to write: .onnx, .pt or .safetensors.")],
    format: Annotated[
        str | None,
        typer.Option("--format", help="onnx, torchscript or safetensors; default: by the suffix of --out."),
    ] = None,
    distribution: Annotated[
        bool,
        typer.Option("--distribution", help="Also give mean and log_std of a stochastic policy as outputs."),
    ] = False,
    guard: Annotated[
        list[str] | None,
        typer.Option(
            "--guard",
            metavar="DATA",
            help="Let the file notice observations unlike this data (novelty, flag, fallback): a file or "
            "folder, or run for the run's own data; may be given several times.",
        ),
    ] = None,
    guard_set: Annotated[
        list[str] | None,
        typer.Option(
            "--guard-set", metavar="NAME=VALUE", help="A setting of the guard, such as fallback=rate."
        ),
    ] = None,
    dial: Annotated[
        str | None,
        typer.Option(
            "--dial",
            help="Where the dial of the file stands if nobody turns it: a number from 0 to 1, or auto = what "
            "a judgement by the run's own data recommends.",
        ),
    ] = None,
    limit: LimitOption = None,
) -> None:
    """Write a policy as one portable file (scaling, network, bounds) and a model card beside it."""
    from rl_training.config.run import apply_overrides
    from rl_training.runs.export import export_checkpoint

    settings: dict[str, object] = {}
    apply_overrides(settings, guard_set or [], "--guard-set")
    file = export_checkpoint(
        checkpoint,
        out,
        format=format,
        distribution=distribution,
        guard=guard or None,
        guard_settings=settings,
        dial=None if dial is None else export_dial(dial),
        limit=limit,
    )
    typer.echo(str(file))
