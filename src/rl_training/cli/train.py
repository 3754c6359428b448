"""Commands that train, `rl-training train`, `resume`, `finetune`, and that explain: `describe`, `configs`."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_training.cli.options import (
    ChangedDataOption,
    ChangesOption,
    CheckpointOption,
    DeviceOption,
    EnvKwargsOption,
    EnvOption,
    HighOption,
    LowOption,
    MinariRootOption,
    OutputDirOption,
    QuietOption,
    SavedDataOption,
    SeedOption,
    SeedsOption,
    WrapperOption,
    given,
    parse_bounds,
    parse_env_kwargs,
    parse_seeds,
    print_table,
    with_column_options,
)
from rl_training.core.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from rl_training.runtime.callbacks import TrainResult


MOST_COLUMNS = 3
"""Columns that the model predicts worst, which are told when a training ends."""

_INTERRUPTS = (signal.SIGINT, signal.SIGTERM)


def report(result: TrainResult, *, quiet: bool) -> None:
    """Print the result; a run stopped by a signal says how to resume and exits as a shell would."""
    if result.metrics.get("signal") in _INTERRUPTS:
        typer.echo(
            f"saved {result.checkpoint_path}; "
            f"resume with: rl-training resume --checkpoint {result.checkpoint_path}",
            err=True,
        )
        raise typer.Exit(128 + int(result.metrics["signal"]))
    if quiet:
        typer.echo(str(result.run_dir))
    else:
        print_table(("result", "value"), _result_rows(result))


def _estimated(result: TrainResult) -> list[tuple[str, str]]:
    """What the log says of the policy, or why it says nothing; marked as estimated everywhere."""
    from rl_training.judging.candidates import candidate_of

    metrics = result.metrics
    value = metrics.get("judge_value")
    if result.members:
        if value is None:
            return []
        spread = f"{value:.4g} ± {metrics['judge_value_std']:.4g}"
        judged = candidate_of(member.metrics for member in result.members)
        told = "not all of them" if judged is None else judged.told
        return [(f"estimated value, {len(result.members)} seeds", spread), ("judged by the log", told)]
    note = metrics.get("judge_note")
    if value is None:
        return [] if note is None else [("estimated value", note)]
    interval = f"{value:.4g} [{metrics['judge_low']:.4g}, {metrics['judge_high']:.4g}]"
    rows = [("estimated value [90 %]", interval)]
    rows.append(("estimated value of the logged behaviour", f"{metrics['judge_behaviour']:.4g}"))
    judged = candidate_of([metrics])
    return [*rows, (f"judged by the log: {'' if judged is None else judged.told}", str(note))]


def _result_rows(result: TrainResult) -> list[tuple[str, str]]:
    metrics = result.metrics
    rows = [("steps", f"{metrics['global_step']:,}"), ("gradient updates", f"{metrics['gradient_steps']:,}")]
    if metrics.get("data_return_mean") is not None:
        rows.append(("return of the logged data", f"{metrics['data_return_mean']:.1f}"))
    if metrics.get("eval_return_mean") is not None:
        spread = f"{metrics['eval_return_mean']:.1f} ± {metrics['eval_return_std']:.1f}"
        what = f"{metrics['eval_episodes']} episodes"
        if result.members:
            what = f"{len(result.members)} seeds"
        rows.append((f"return over {what}", spread))
    rows += _estimated(result)
    if metrics.get("eval_normalized_score") is not None and not result.members:
        reference = metrics["eval_normalized_score_reference"]
        rows.append((f"normalised score ({reference})", f"{metrics['eval_normalized_score']:.1f}"))
    rows += [*_held_out_rows(metrics), *_model_rows(metrics), *_online_rows(metrics)]
    if result.members:
        return rows + [(f"seed {m.run_dir.name.rpartition('-s')[2]}", str(m.run_dir)) for m in result.members]
    rows += [("checkpoint", str(result.checkpoint_path)), ("run directory", str(result.run_dir))]
    curve = Path(result.run_dir) / "learning_curve.png"
    if curve.is_file():
        rows.append(("learning curve", str(curve)))
    return rows


def _held_out_rows(metrics: dict[str, object]) -> list[tuple[str, str]]:
    if metrics.get("validation_action_error") is None:
        return []
    constant = f"{metrics['validation_constant_error']:.4g} for a constant action"
    return [("held-out action error", f"{metrics['validation_action_error']:.4g} ({constant})")]


def _model_rows(metrics: dict[str, Any]) -> list[tuple[str, str]]:
    """What the model of the plant can tell least, and how much of it it leaves open."""
    from rl_training.algorithms.dynamics import ColumnErrors

    errors = [ColumnErrors(**each) for each in metrics.get("model_errors") or ()]
    if not errors:
        return []
    worst = sorted(errors, key=lambda each: -each.left)[:MOST_COLUMNS]
    told = ", ".join(f"{100 * each.left:.0f} % of {each.column}" for each in worst)
    return [(f"left open by the model, {errors[0].steps[-1]} steps ahead", told)]


def _online_rows(metrics: dict[str, object]) -> list[tuple[str, str]]:
    rows = []
    if metrics.get("online_return_before") is not None:
        rows.append(("return before going online", f"{metrics['online_return_before']:.1f}"))
    if metrics.get("online_drop") is not None:
        rows.append(("lowest in the first online steps", f"{metrics['online_return_lowest']:.1f}"))
    if metrics.get("online_rollout_mean") is not None:
        what = f"mean of {metrics['online_episodes']:.0f} episodes while learning"
        rows.append((what, f"{metrics['online_rollout_mean']:.1f}"))
    return rows


_DATA = "Own data instead of a config"


@with_column_options
def train(
    fields: dict[str, object],
    config: Annotated[
        str | None,
        typer.Option("--config", "-c", help="YAML file, or the name of a packaged config (see `configs`)."),
    ] = None,
    changes: ChangesOption = None,
    algo: Annotated[
        str | None, typer.Option("--algo", help="Algorithm, without a config.", rich_help_panel=_DATA)
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            help="File, folder, pattern in quotes ('logs/*.csv'), or a Minari id.",
            rich_help_panel=_DATA,
        ),
    ] = None,
    minari_root: MinariRootOption = None,
    steps: Annotated[
        int | None, typer.Option("--steps", help="Gradient steps (online: environment steps).", min=1)
    ] = None,
    action_low: LowOption = None,
    action_high: HighOption = None,
    env_id: Annotated[
        str | None, typer.Option("--env-id", help="Environment: to evaluate in, or to learn in (--algo sac).")
    ] = None,
    env_kwargs: EnvKwargsOption = None,
    seed: SeedOption = None,
    seeds: SeedsOption = None,
    output_dir: OutputDirOption = None,
    device: DeviceOption = None,
    quiet: QuietOption = False,
) -> None:
    """Train a policy as a config says, from a log of your own, or in an environment, and evaluate it."""
    from rl_training.runs.options import config_from_options

    if seed is not None and seeds is not None:
        raise ConfigError(f"--seed and --seeds must not be given together, got {seed} and {seeds!r}")
    run = given(
        seed=seed,
        seeds=parse_seeds(seeds),
        output_dir=output_dir,
        device=device,
        algo=algo,
        env_id=env_id,
        total_timesteps=steps,
    )
    bounds = parse_bounds(action_low, action_high)
    chosen = config_from_options(
        config,
        run,
        data=data,
        minari_root=minari_root,
        fields={**fields, **given(action_low=bounds[0], action_high=bounds[1])},
        env_kwargs=parse_env_kwargs(env_kwargs),
        changes=changes or (),
    )
    from rl_training.runs.train import train as start

    report(start(chosen, quiet=quiet), quiet=quiet)


def resume(
    checkpoint: CheckpointOption,
    total_timesteps: Annotated[
        int | None,
        typer.Option(
            "--total-timesteps", min=1, help="New total length of the run; default: as it was planned."
        ),
    ] = None,
    online_timesteps: Annotated[
        int | None,
        typer.Option(
            "--online-timesteps", min=1, help="New length of the online phase; default: as it was planned."
        ),
    ] = None,
    output_dir: OutputDirOption = None,
    env_id: EnvOption = None,
    env_kwargs: EnvKwargsOption = None,
    wrapper: WrapperOption = None,
    tracker: Annotated[
        list[str] | None,
        typer.Option("--tracker", metavar="NAME", help="Go on with wandb or mlflow; may be given twice."),
    ] = None,
    data: SavedDataOption = None,
    allow_changed_data: ChangedDataOption = False,
    quiet: QuietOption = False,
) -> None:
    """Continue a run exactly where its checkpoint was saved."""
    from rl_training.runs.resume import resume_training
    from rl_training.runtime.envs import load_wrappers

    result = resume_training(
        checkpoint,
        total_timesteps=total_timesteps,
        online_timesteps=online_timesteps,
        output_dir=output_dir,
        env=env_id,
        env_kwargs=parse_env_kwargs(env_kwargs),
        wrappers=None if wrapper is None else load_wrappers(wrapper),
        tracker_names=tracker,
        data=data,
        allow_changed_data=allow_changed_data,
        quiet=quiet,
    )
    report(result, quiet=quiet)


def finetune(
    checkpoint: CheckpointOption,
    timesteps: Annotated[
        int, typer.Option("--timesteps", "-t", min=1, help="Environment steps to learn from.")
    ],
    changes: ChangesOption = None,
    env_id: EnvOption = None,
    env_kwargs: EnvKwargsOption = None,
    wrapper: WrapperOption = None,
    output_dir: OutputDirOption = None,
    data: SavedDataOption = None,
    allow_changed_data: ChangedDataOption = False,
    quiet: QuietOption = False,
) -> None:
    """Go on learning in an environment from a policy that was trained on data, as a new run."""
    from rl_training.config.run import apply_overrides
    from rl_training.runs.resume import finetune_checkpoint
    from rl_training.runtime.envs import load_wrappers

    changed = given(env_kwargs=parse_env_kwargs(env_kwargs))
    apply_overrides(changed, changes or [])
    result = finetune_checkpoint(
        checkpoint,
        timesteps=timesteps,
        changes=changed,
        output_dir=output_dir,
        env=env_id,
        wrappers=None if wrapper is None else load_wrappers(wrapper),
        data=data,
        allow_changed_data=allow_changed_data,
        quiet=quiet,
    )
    report(result, quiet=quiet)


# ---- commands that explain: `rl-training describe` and `configs`


def describe(
    algo: Annotated[str, typer.Argument(metavar="ALGO", help="Algorithm, such as `sac`.")],
) -> None:
    """Explain every setting of a run: its type, bound, default and meaning."""
    from rl_training.config import describe_fields
    from rl_training.config.run import TrainConfig, algorithm_settings

    header = ("setting", "type", "bound", "default", "meaning")
    for level, model in (("", TrainConfig), ("algo_kwargs, ", algorithm_settings(algo))):
        groups: dict[str, list[tuple[str, ...]]] = {}
        for row in describe_fields(model):
            cells = (row.name, row.type, row.bound, row.default, row.meaning)
            groups.setdefault(row.group, []).append(cells)
        for group in reversed(groups):  # fields of base classes come first; the algorithm's own matter most
            print_table(header, groups[group], title=f"{level}{group}")


def configs(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Print this config as YAML instead of the list.")
    ] = None,
    show: Annotated[str | None, typer.Option("--show", metavar="NAME", hidden=True)] = None,
) -> None:
    """List the packaged configs, or print one as a start for your own."""
    from rl_training.config.run import list_packaged_configs

    packaged = {config.name: config for config in list_packaged_configs()}
    if name is not None and show not in (None, name):
        raise ConfigError(f"one config must be named, got {name!r} and {show!r}")
    chosen = name or show
    if chosen is None:
        rows = [
            (c.name, c.algo, c.env_id or "", f"{c.total_timesteps:,}", c.summary) for c in packaged.values()
        ]
        print_table(("name", "algo", "environment", "steps", "summary"), rows)
    elif chosen in packaged:
        typer.echo(packaged[chosen].text, nl=False)
    else:
        raise ConfigError(f"{chosen!r} is not a packaged config{did_you_mean(chosen, packaged)}")
