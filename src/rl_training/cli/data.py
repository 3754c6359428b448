"""`rl-training data`: look at datasets, collect them, convert them."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rl_training.cli.options import (
    EnvKwargsOption,
    HighOption,
    LowOption,
    MinariRootOption,
    QuietOption,
    examples,
    parse_bounds,
    parse_env_kwargs,
    print_json,
    print_table,
    with_column_options,
)
from rl_training.core.errors import ConfigError, DataError, UserError

if TYPE_CHECKING:
    from rl_training.core.spaces import Spaces
    from rl_training.data.convert import DatasetLocation
    from rl_training.data.inspect import Inspection
    from rl_training.data.log import EpisodeLog
    from rl_training.data.tables.guess import Guess


def print_guess(place: DatasetLocation, fields: dict[str, object], *, as_json: bool) -> bool:
    """Print columns and a mapping to start from, if the place is a table that needs one."""
    guess = guess_of(place, fields)
    if guess is None:
        return False
    if as_json:
        print_json(guess.to_dict())
    else:
        show_guess(guess)
    return True


def guess_of(place: DatasetLocation, fields: dict[str, object]) -> Guess | None:
    """What the columns of a table seem to be, if neither their names nor the fields say it."""
    from rl_training.config.data import TABLE_KINDS

    if place.kind not in TABLE_KINDS:
        return None
    from rl_training.data.tables.guess import guess_mapping, look_at, needs_mapping

    source, kind = place.source(fields), None if place.kind == "table" else place.kind
    return guess_mapping(look_at(source, kind=kind)) if needs_mapping(source, kind=kind) else None


def show_guess(guess: Guess) -> None:
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
        "or on the command line (also of `data inspect` and `data convert`), everything or one training:\n"
    )
    typer.echo(f"  rl-training auto {shlex.quote(facts.source)} {guess.flags()}")
    typer.echo(
        f"  rl-training train --algo iql {guess.data_flag} {guess.flags()} --action-low … --action-high …"
    )


app = typer.Typer(help="Inspect, collect and convert datasets.", no_args_is_help=True)

EnvOption = Annotated[
    str | None, typer.Option("--env-id", help="Gymnasium environment that the data comes from.")
]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace a file that exists already.")]


@app.command(
    epilog=examples(
        "rl-training data inspect log.hdf5",
        "rl-training data inspect 'logs/*.csv'",
        "rl-training data inspect 'logs/*.csv' --obs 'T_*,level' --action 'valve,heater' --reward score",
        "rl-training data inspect D4RL/door/human-v2 --json",
        "rl-training data inspect log.hdf5 --plot log.png",
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
    plot: Annotated[Path | None, typer.Option("--plot", help="Draw a picture into this PNG file.")] = None,
    no_plot: Annotated[bool, typer.Option("--no-plot", help="Draw none: the default.", hidden=True)] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    minari_root: MinariRootOption = None,
) -> None:
    """Say what is in a dataset, what is suspicious about it, and whether a policy should look back.

    Of a table whose columns are not known, say what they may be, and propose a mapping.
    """
    import warnings

    from rl_training.config.data import TableFields
    from rl_training.data.convert import read_location, source_location
    from rl_training.data.formulas import log_with_signals
    from rl_training.data.inspect import inspect_log, plot_inspection
    from rl_training.data.reading import DataWarning

    if plot is not None and no_plot:
        raise ConfigError(f"--plot {plot} and --no-plot contradict each other; give one of them")
    if env_id is not None and (action_low or action_high):
        raise ConfigError(f"--env-id {env_id} and --action-low/--action-high both give bounds: choose one")
    place = source_location(source, minari_root)
    _refuse_root(minari_root, place)
    if print_guess(place, fields, as_json=as_json):
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # they are part of the report
        log = read_location(place, exact=True, lenient=True, fields=fields)
    spaces = _stated_spaces(log, env_id, *parse_bounds(action_low, action_high)) or _named_spaces(
        log.info.env_id
    )
    limits = TableFields.build({"limits": fields.get("limits", {})}).stated_limits
    found = inspect_log(log_with_signals(log, lenient=True), spaces, limits)
    if as_json:
        print_json(found.to_dict())
    else:
        _print_report(found)
    if plot is not None:
        plot_inspection(found, log, plot)
        typer.echo(f"picture: {plot}", err=as_json)


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
    env_kwargs: EnvKwargsOption = None,
    overwrite: OverwriteOption = False,
    minari_root: MinariRootOption = None,
    quiet: QuietOption = False,
) -> None:
    """Step an environment with random actions or a saved policy, and store the transitions.

    Run the same command again after an interruption: it goes on where it stopped.
    """
    from rl_training.data.convert import target_location
    from rl_training.runtime.progress import ProgressDisplay
    from rl_training.runtime.record import CollectionRequest, collect_to

    for option, value in (("--noise", noise), ("--random-share", random_share)):
        if value and checkpoint is None:
            raise ConfigError(f"{option} needs --checkpoint: without one all actions are random, got {value}")
    from rl_training.runs.saved import SavedRun, environment_to_collect_in

    target = target_location(out, minari_root)
    _refuse_root(minari_root, target)
    _refuse_existing(target.path if target.dataset_id is None else None, overwrite)
    run = None if checkpoint is None else SavedRun(checkpoint, device="cpu")
    env, kwargs = environment_to_collect_in(run, env_id, parse_env_kwargs(env_kwargs))
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
        log = collect_to(target, request, display.update, policy=None if run is None else run.policy)
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
    minari_root: MinariRootOption = None,
) -> None:
    """Write a dataset in another format: every transition, its precision and its action bounds stay."""
    from rl_training.data import convert as conversion

    place, goal = (
        conversion.source_location(source, minari_root),
        conversion.target_location(target, minari_root),
    )
    _refuse_root(minari_root, place, goal)
    _refuse_existing(goal.path if goal.dataset_id is None else None, overwrite)
    log = conversion.read_location(place, exact=True, fields=fields)
    spaces = _stated_spaces(log, env_id, *parse_bounds(action_low, action_high))
    log = conversion.with_facts(log, spaces=spaces, env_id=env_id)
    conversion.write_location(log, goal)
    typer.echo(f"{goal}: {len(log)} rows, {int(log.ends.sum())} episodes")
    omitted = conversion.left_out(place, fields)
    if omitted:
        typer.echo(f"left out, not part of a transition: {', '.join(omitted)}", err=True)


def _refuse_root(root: Path | None, *places: DatasetLocation) -> None:
    """A directory of Minari datasets says nothing where only files are read and written."""

    if root is not None and all(place.dataset_id is None for place in places):
        raise ConfigError(f"--minari-root is for Minari ids, not for {places[0]}: leave it out")


def _stated_spaces(
    log: EpisodeLog, env_id: str | None, low: list[float] | None, high: list[float] | None
) -> Spaces | None:
    """The bounds that the user gives, in numbers or by the name of an environment that has them."""
    from rl_training.runtime.envs import spaces_of
    from rl_training.runtime.offline_data import spaces_of_log

    if low is None and high is None:
        choices = log.info.choices
        if env_id is None and choices and all(choices):
            return spaces_of_log(log, {})
        return None if env_id is None else spaces_of(env_id)
    if low is None or high is None:
        raise ConfigError("--action-low and --action-high must be given together")
    return spaces_of_log(log, {"--action-low": low, "--action-high": high})


def _named_spaces(env_id: str | None) -> Spaces | None:
    """Bounds of an environment that the data merely names, only if it is known here."""
    from rl_training.runtime.offline_data import spaces_of_named

    try:
        return None if env_id is None else spaces_of_named(env_id, "the data")
    except UserError:
        return None


def _refuse_existing(path: Path | None, overwrite: bool) -> None:

    if path is not None and path.exists() and not overwrite:
        raise DataError(f"{path} exists already; add --overwrite to replace it")


def _print_report(found: Inspection) -> None:
    from rl_training.data.inspect import action_rows, cost_rows, observation_rows, overview_rows

    print_table(("dataset", found.source), overview_rows(found))
    shares = "on a bound, or levels" if found.level_shares else "on a bound"
    print_table(("action", "min", "max", shares), action_rows(found))
    print_table(("observation", "min", "max", "mean", "std"), observation_rows(found))
    if found.costs:
        header = ("cost", "mean per step", "per episode", "limit", "episodes that keep it")
        print_table(header, cost_rows(found))
    if found.advice is not None:
        print_table(("earlier rows looked at", "changes not foreseen"), found.advice.rows())
        for sentence in found.advice.sentences:
            typer.echo(f"- {sentence}")
        if found.advice.observations is not None:
            typer.echo(f"  --obs {shlex.quote(found.advice.observations)}")
    for warning in found.warnings:
        typer.echo(f"- {warning}")
    if not found.warnings:
        typer.echo("Nothing suspicious was found.")
