"""The commands put together, and how an error becomes an exit code."""

from __future__ import annotations

import os
import platform
import shlex
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated

import typer

from rl_training.cli.auto import auto, demo
from rl_training.cli.data import app as data_app
from rl_training.cli.judge import judge
from rl_training.cli.options import examples
from rl_training.cli.predict import evaluate, export, predict
from rl_training.cli.serve import drift, serve, studio
from rl_training.cli.studies import compare, report, sweep, tune
from rl_training.cli.train import configs, describe, finetune, resume, train
from rl_training.core.errors import UserError, asked_for, is_out_of_memory, printable
from rl_training.core.version import VERSION, library_versions

BUG = 70
"""The exit code of a bug of ours (`EX_SOFTWARE` of sysexits.h)."""


def report_bug(problem: Exception, arguments: Sequence[str], *, debug: bool) -> int:
    """Say what happened and where the whole story is, and return the exit code."""
    what = " ".join(f"{type(problem).__name__}: {problem}".split())[:500]
    if debug:
        traceback.print_exception(problem)
    place = _write_report(problem, arguments)
    where = "no report could be written" if place is None else f"full report: {place}"
    remedy = "" if debug else "; rl-training --debug COMMAND … shows the traceback"
    typer.echo(f"error: this is a bug of rl-training: {printable(what)}; {where}{remedy}", err=True)
    return BUG


def _write_report(problem: Exception, arguments: Sequence[str]) -> str | None:
    """A file of its own in the system's temporary directory, which only the user can read."""
    versions = [f"{name} {version}" for name, version in library_versions().items()]
    lines = [
        f"command: {shlex.join(['rl-training', *arguments])}",
        f"directory: {_working_directory()}",
        f"versions: {', '.join([*versions, platform.platform()])}",
        "",
        "".join(traceback.format_exception(problem)),
    ]
    try:
        descriptor, place = tempfile.mkstemp(prefix="rl-training-bug-", suffix=".txt")
        with open(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write("\n".join(lines))
    except OSError:
        return None
    return place


def _working_directory() -> str:
    try:
        return os.getcwd()
    except OSError:
        return "no longer there"


USER_ERROR = 2

app = typer.Typer(
    name="rl-training",
    help="Train, evaluate, resume and use policies for continuous control.",
    epilog=examples(
        "rl-training demo",
        "rl-training train --config sac/pendulum",
        "rl-training evaluate --checkpoint runs/RUN",
        "rl-training describe sac",
    ),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
COMMANDS: dict[Callable[..., None], tuple[str, ...]] = {
    auto: (
        "auto 'logs/*.csv' --obs T_tank,level --action valve --reward score --episode run",
        "auto log.parquet --minutes 10 --out found",
    ),
    train: (
        "train --config sac/pendulum",
        "train --config my_run.yaml --seed 3 --set algo_kwargs.gamma=0.98",
    ),
    evaluate: ("evaluate --checkpoint runs/RUN --episodes 20",),
    predict: (
        'predict --checkpoint runs/RUN --obs "0.1, 0.2, 0.3"',
        "predict --checkpoint runs/RUN --obs-file observations.npy",
        "predict --checkpoint runs/RUN --obs-file - < observations.json",
    ),
    export: (
        "export --checkpoint runs/RUN --format onnx --out policy.onnx",
        "export --checkpoint runs/RUN --out policy.safetensors --distribution",
    ),
    resume: (
        "resume --checkpoint runs/RUN",
        "resume --checkpoint runs/RUN --total-timesteps 50000",
    ),
    finetune: (
        "finetune --checkpoint runs/RUN --timesteps 20000",
        "finetune --checkpoint runs/RUN --timesteps 20000 --set algo_kwargs.offline_share=0.25",
    ),
    configs: ("configs", "configs sac/pendulum > my_run.yaml"),
    describe: ("describe sac",),
    demo: ("demo", "demo --seed 1 --output-dir demo_runs"),
    sweep: ("sweep pendulum --workers 2", "sweep my_sweep.yaml --backend ray --address auto"),
    tune: ("tune pendulum --workers 2", "tune my_search.yaml"),
    report: ("report runs --out report.html", "report 'runs/sac-*' 'runs/tqc-*' --out report.md"),
    judge: (
        "judge runs/RUN --data log.parquet --out judge.html",
        "judge policy.onnx runs/RUN --data log.hdf5 --gamma 0.98 --json judge.json",
    ),
    compare: ("compare 'runs/sac-*' 'runs/tqc-*'",),
    serve: ("serve policy.onnx", "serve policy.onnx --mode advise --port 9000 --watch"),
    studio: ("studio", "studio plant --port 8700"),
    drift: ("drift decisions.db --policy policy.onnx --out drift.html",),
}
"""Each with examples of how it is called."""

for _command, _calls in COMMANDS.items():
    app.command(epilog=examples(*(f"rl-training {call}" for call in _calls)))(_command)
app.command("eval", hidden=True, help="The same as `evaluate`.")(evaluate)
app.add_typer(data_app, name="data")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"rl-training {VERSION}")
        raise typer.Exit


@dataclass
class Wishes:
    """Options of the whole command that matter after it has ended."""

    debug: bool = False


@app.callback()
def _options(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop."),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Print the traceback of an error that is a bug of rl-training.")
    ] = False,
) -> None:
    context.ensure_object(Wishes).debug = debug


@cache
def _commands() -> Callable[..., object]:
    """All commands; Typer reads every signature for them, which a process that runs several needs once."""
    return typer.main.get_command(app)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; without `argv` the arguments of the process are used.

    An expected problem becomes `error: ...` and code 2. Any other exception is a bug: one line, a report in a
    file, and code 70.
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    wishes = Wishes()
    try:
        _commands()(args=arguments, prog_name="rl-training", obj=wishes)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except UserError as error:
        for line in str(error).splitlines():
            typer.echo(f"error: {printable(line)}", err=True)
        return USER_ERROR
    except Exception as problem:
        if is_out_of_memory(problem):
            what = printable(asked_for(problem))
            typer.echo(f"error: not enough memory: {what}; choose smaller sizes or less data", err=True)
            return USER_ERROR
        return report_bug(problem, arguments, debug=wishes.debug)
    return 0


def entry_point() -> None:
    """What the installed `rl-training` calls.

    Modules in the working directory can be imported, as with `python -m`, for environment ids and wrappers
    that the user writes; they come last, so that none of them stands in for a library.
    """
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    # a warning is a message to the user, who has no use for the line of code that gave it
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"
    sys.exit(main())
