"""`rl-training data`: look at datasets, collect them, convert them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rl_training.cli.column_options import with_column_options
from rl_training.cli.examples import examples
from rl_training.cli.options import QuietOption

if TYPE_CHECKING:
    from rl_training.core.spaces import Spaces
    from rl_training.data.episode_log import EpisodeLog
    from rl_training.data.inspection import Inspection

app = typer.Typer(help="Inspect, collect and convert datasets.", no_args_is_help=True)

RootOption = Annotated[
    Path | None, typer.Option("--minari-root", help="Directory of Minari datasets (default: Minari's own).")
]
EnvOption = Annotated[
    str | None, typer.Option("--env-id", help="Gymnasium environment that the data comes from.")
]
LowOption = Annotated[
    list[float] | None, typer.Option("--action-low", help="Lower bound; once, or once per action.")
]
HighOption = Annotated[
    list[float] | None, typer.Option("--action-high", help="Upper bound; once, or once per action.")
]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace a file that exists already.")]


@app.command(
    epilog=examples(
        "rl-training data inspect log.hdf5",
        "rl-training data inspect 'logs/*.csv'",
        "rl-training data inspect 'logs/*.csv' --obs 'T_*,level' --action 'valve,heater' --reward score",
        "rl-training data inspect D4RL/door/human-v2 --json",
    )
)
@with_column_options
def inspect(
    source: Annotated[
        str, typer.Argument(metavar="FILE_OR_ID", help="File, folder, pattern in quotes, or a Minari id.")
    ],
    fields: dict[str, object],
    env_id: EnvOption = None,
    action_low: LowOption = None,
    action_high: HighOption = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="Where the picture goes.")] = None,
    no_plot: Annotated[bool, typer.Option("--no-plot", help="Draw no picture.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    minari_root: RootOption = None,
) -> None:
    """Say what is in a dataset and what is suspicious about it.

    Of a table whose columns are not known, say what they may be, and propose a mapping.
    """
    import warnings

    from rl_training.cli.output import print_json
    from rl_training.cli.table_guess import print_guess
    from rl_training.data.convert import read_place, source_place
    from rl_training.data.inspection import inspect_log
    from rl_training.data.inspection_plot import plot_inspection
    from rl_training.data.validation import DataWarning

    place = source_place(source, minari_root)
    if print_guess(place, fields, as_json=as_json):
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # they are part of the report
        log = read_place(place, lenient=True, fields=fields)
    stated = _given_bounds(log, action_low, action_high)
    found = inspect_log(log, stated or _bounds_for_report(env_id, log.info.env_id))
    if as_json:
        print_json(found.to_dict())
    else:
        _print_report(found)
    if not no_plot:
        name = source.replace("/", "-") if place.dataset_id is not None else Path(source).stem
        path = plot or Path(f"inspect-{name.replace('*', 'all')}.png")
        plot_inspection(found, log, path)
        typer.echo(f"picture: {path}", err=as_json)


@app.command(
    epilog=examples(
        "rl-training data collect --env-id Pendulum-v1 --rows 10000 --out random.hdf5",
        "rl-training data collect --checkpoint runs/RUN --rows 50000 --noise 0.1 --out medium.npz",
    )
)
def collect(
    out: Annotated[
        str, typer.Option("--out", help="File to write (.hdf5, .npz, .parquet) or minari:NAME-v0.")
    ],
    rows: Annotated[int, typer.Option("--rows", min=1, help="Transitions to collect.")] = 10_000,
    env_id: EnvOption = None,
    checkpoint: Annotated[
        Path | None, typer.Option("--checkpoint", "-k", help="Policy to roll out (default: random actions).")
    ] = None,
    noise: Annotated[
        float,
        typer.Option("--noise", min=0.0, help="Std of noise on the policy's actions, in [-1, 1] units."),
    ] = 0.0,
    random_share: Annotated[
        float, typer.Option("--random-share", min=0.0, max=1.0, help="Share of actions drawn at random.")
    ] = 0.0,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of environment and noise.")] = 0,
    env_kwargs: Annotated[
        str, typer.Option("--env-kwargs", help="Keyword arguments of the environment, as YAML.")
    ] = "{}",
    overwrite: OverwriteOption = False,
    minari_root: RootOption = None,
    quiet: QuietOption = False,
) -> None:
    """Step an environment with random actions or a saved policy, and store the transitions.

    Run the same command again after an interruption: it goes on where it stopped.
    """
    from rl_training.data.convert import target_place
    from rl_training.runtime.progress import ProgressDisplay
    from rl_training.runtime.resumable_collection import CollectionRequest, collect_to

    target = target_place(out, minari_root)
    _refuse_existing(target.path if target.dataset_id is None else None, overwrite)
    env, kwargs = _environment(env_id, _mapping(env_kwargs), checkpoint)
    request = CollectionRequest(
        env_id=env,
        rows=rows,
        seed=seed,
        checkpoint=None if checkpoint is None else str(checkpoint),
        noise=noise,
        random_share=random_share,
        env_kwargs=kwargs,
    )
    display = ProgressDisplay(quiet=quiet)
    try:
        display.start(rows, f"collecting {rows} rows of {env}")
        log = collect_to(target, request, display.update)
    finally:
        display.stop()
    typer.echo(f"{target}: {len(log)} rows, {int(log.ends.sum())} episodes")


@app.command(
    epilog=examples(
        "rl-training data convert log.hdf5 log.parquet",
        "rl-training data convert log.csv log.npz --action-low -2 --action-high 2",
        "rl-training data convert log.npz minari:my-robot/logs-v0 --env-id Pendulum-v1",
    )
)
@with_column_options
def convert(
    source: Annotated[str, typer.Argument(metavar="FILE_OR_ID", help="Dataset to read.")],
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET", help="File to write (.hdf5, .npz, .parquet, .csv) or minari:NAME-v0."
        ),
    ],
    fields: dict[str, object],
    env_id: EnvOption = None,
    action_low: LowOption = None,
    action_high: HighOption = None,
    overwrite: OverwriteOption = False,
    minari_root: RootOption = None,
) -> None:
    """Write a dataset in another format: every transition, its precision and its action bounds stay."""
    from rl_training.data import convert as conversion

    place, goal = conversion.source_place(source, minari_root), conversion.target_place(target, minari_root)
    _refuse_existing(goal.path if goal.dataset_id is None else None, overwrite)
    log = conversion.read_place(place, exact=True, fields=fields)
    spaces = _given_bounds(log, action_low, action_high) or _bounds(env_id)
    log = conversion.with_facts(log, spaces=spaces, env_id=env_id)
    conversion.write_place(log, goal)
    typer.echo(f"{goal}: {len(log)} rows, {int(log.ends.sum())} episodes")
    omitted = conversion.left_out(place, fields)
    if omitted:
        typer.echo(f"left out, not part of a transition: {', '.join(omitted)}", err=True)


def _bounds(env_id: str | None) -> Spaces | None:
    """Action bounds of an environment that the user names."""
    if env_id is None:
        return None
    from rl_training.runtime.environments import spaces_of

    return spaces_of(env_id)


def _bounds_for_report(env_id: str | None, named: str | None) -> Spaces | None:
    """Bounds of the user's environment; of one that the data merely names, only if it is known here."""
    if env_id is not None or named is None:
        return _bounds(env_id)
    from rl_training.core.errors import UserError
    from rl_training.runtime.offline_data import spaces_of_named

    try:
        return spaces_of_named(named, "the data")
    except UserError:
        return None


def _given_bounds(log: EpisodeLog, low: list[float] | None, high: list[float] | None) -> Spaces | None:
    from rl_training.core.errors import ConfigError
    from rl_training.core.spaces import Spaces

    if low is None and high is None:
        return None
    if low is None or high is None:
        raise ConfigError("--action-low and --action-high must be given together")
    obs_dim, action_dim = (values.shape[1] if values.ndim > 1 else 1 for values in (log.obs, log.actions))
    for name, bound in (("--action-low", low), ("--action-high", high)):
        if len(bound) not in (1, action_dim):
            raise ConfigError(f"{name} must be given once or {action_dim} times, got {len(bound)}")
    bounds = [tuple(bound) * (action_dim // len(bound)) for bound in (low, high)]
    return Spaces(obs_dim, bounds[0], bounds[1])


def _environment(
    env_id: str | None, env_kwargs: dict[str, object], checkpoint: Path | None
) -> tuple[str, dict[str, object]]:
    """The environment of the options, else the one that the checkpoint's policy was trained for."""
    from rl_training.core.checkpoints import load_run_state
    from rl_training.core.errors import ConfigError
    from rl_training.experiment.workflows import refuse_import, saved_fields
    from rl_training.policies.saved import NOT_FOR_ACTING

    if env_id is not None:
        return env_id, env_kwargs
    if checkpoint is None:
        raise ConfigError("--env-id is required (or --checkpoint of a run that has one)")
    config, _ = saved_fields(load_run_state(checkpoint, skip=NOT_FOR_ACTING))
    if config.env_id is None:
        raise ConfigError(f"--env-id is required: {checkpoint} was trained without an environment")
    return refuse_import(config.env_id), {**config.env_kwargs, **env_kwargs}


def _mapping(text: str) -> dict[str, object]:
    from rl_training.config.yaml_text import parse_yaml
    from rl_training.core.errors import ConfigError

    values = parse_yaml(text, "--env-kwargs")
    if not isinstance(values, dict):
        raise ConfigError(f"--env-kwargs must be a mapping such as '{{g: 9.8}}', got {text!r}")
    return values


def _refuse_existing(path: Path | None, overwrite: bool) -> None:
    from rl_training.core.errors import DataError

    if path is not None and path.exists() and not overwrite:
        raise DataError(f"{path} exists already; add --overwrite to replace it")


def _print_report(found: Inspection) -> None:
    from rl_training.cli.output import print_table
    from rl_training.data.inspection_text import feature_rows, overview_rows

    print_table(("dataset", found.source), overview_rows(found))
    print_table(("feature", "min", "max", "mean", "std", "on a bound"), feature_rows(found))
    for warning in found.warnings:
        typer.echo(f"- {warning}")
    if not found.warnings:
        typer.echo("Nothing suspicious was found.")
