"""What `train`, `resume` and `demo` share: the final table and the exit code."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from rl_training.cli.output import print_table
from rl_training.core.amd_mkl import VARIABLE, would_help
from rl_training.core.train_config import TrainConfig

if TYPE_CHECKING:
    from rl_training.runtime.run import TrainResult

_INTERRUPTS = (signal.SIGINT, signal.SIGTERM)
_LONG = 20_000
"""Updates of a run that somebody has waited for."""


def run_and_report(config: TrainConfig, *, quiet: bool) -> None:
    """Train as configured and print the result."""
    from rl_training.experiment.default_manager import DefaultExperimentManager

    report(DefaultExperimentManager().setup(config, quiet=quiet).train(), quiet=quiet)


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
        if (hint := _hint(result)) is not None:
            typer.echo(hint, err=True)


def _hint(result: TrainResult) -> str | None:
    """What would have made a long run a lot faster on this machine."""
    from rl_training.core.devices import choose_device

    if result.metrics["gradient_steps"] < _LONG or choose_device("auto").type != "cpu" or not would_help():
        return None
    return f"hint: on this processor {VARIABLE}=1 makes updates up to twice as fast (docs/performance.md)"


def _estimated(result: TrainResult) -> list[tuple[str, str]]:
    """What the log says of the policy, or why it says nothing; marked as estimated everywhere."""
    metrics = result.metrics
    value = metrics.get("judge_value")
    if result.members:
        if value is None:
            return []
        spread = f"{value:.4g} ± {metrics['judge_value_std']:.4g}"
        verdicts = [str(member.metrics["judge_verdict"]) for member in result.members]
        told = ", ".join(f"{verdicts.count(each)} {each}" for each in sorted(set(verdicts)))
        return [(f"estimated value, {len(result.members)} seeds", spread), ("judged by the log", told)]
    note = metrics.get("judge_note")
    if value is None:
        return [] if note is None else [("estimated value", note)]
    interval = f"{value:.4g} [{metrics['judge_low']:.4g}, {metrics['judge_high']:.4g}]"
    rows = [("estimated value [90 %]", interval)]
    rows.append(("estimated value of the logged behaviour", f"{metrics['judge_behaviour']:.4g}"))
    return [*rows, (f"judged by the log: {metrics['judge_verdict']}", str(note))]


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
    rows += [*_held_out_rows(metrics), *_online_rows(metrics)]
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
