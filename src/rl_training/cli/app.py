"""The commands put together, and how an error becomes an exit code.

Nothing here may import torch or pydantic: each command imports what it needs when it runs, so that help and
mistyped commands answer at once.
"""

import os
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from rl_training.cli.compare import compare
from rl_training.cli.configs import configs
from rl_training.cli.crash import report_bug
from rl_training.cli.data import app as data_app
from rl_training.cli.demo import demo
from rl_training.cli.describe import describe
from rl_training.cli.evaluate import evaluate
from rl_training.cli.examples import examples
from rl_training.cli.export import export
from rl_training.cli.finetune import finetune
from rl_training.cli.judge import judge
from rl_training.cli.predict import predict
from rl_training.cli.report import report
from rl_training.cli.resume import resume
from rl_training.cli.sweep import sweep
from rl_training.cli.train import train
from rl_training.cli.tune import tune
from rl_training.config.wording import printable
from rl_training.core.errors import UserError
from rl_training.core.version import VERSION

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
app.command(
    epilog=examples(
        "rl-training train --config sac/pendulum",
        "rl-training train --config my_run.yaml --seed 3 --set algo_kwargs.gamma=0.98",
    )
)(train)
app.command(epilog=examples("rl-training evaluate --checkpoint runs/RUN --episodes 20"))(evaluate)
app.command("eval", hidden=True, help="The same as `evaluate`.")(evaluate)
app.command(
    epilog=examples(
        'rl-training predict --checkpoint runs/RUN --obs "0.1, 0.2, 0.3"',
        "rl-training predict --checkpoint runs/RUN --obs-file observations.npy",
        "echo '[[0.1, 0.2, 0.3]]' | rl-training predict --checkpoint runs/RUN --obs-file -",
    )
)(predict)
app.command(
    epilog=examples(
        "rl-training export --checkpoint runs/RUN --format onnx --out policy.onnx",
        "rl-training export --checkpoint runs/RUN --out policy.safetensors --distribution",
    )
)(export)
app.command(
    epilog=examples(
        "rl-training resume --checkpoint runs/RUN",
        "rl-training resume --checkpoint runs/RUN --total-timesteps 50000",
    )
)(resume)
app.command(
    epilog=examples(
        "rl-training finetune --checkpoint runs/RUN --timesteps 20000",
        "rl-training finetune --checkpoint runs/RUN --timesteps 20000 --set algo_kwargs.offline_share=0.25",
    )
)(finetune)
app.command(epilog=examples("rl-training configs", "rl-training configs sac/pendulum > my_run.yaml"))(configs)
app.command(epilog=examples("rl-training describe sac"))(describe)
app.command(epilog=examples("rl-training demo", "rl-training demo --seed 1 --output-dir demo_runs"))(demo)

app.command(
    epilog=examples(
        "rl-training sweep pendulum --workers 2",
        "rl-training sweep my_sweep.yaml --backend ray --address auto",
    )
)(sweep)
app.command(epilog=examples("rl-training tune pendulum --workers 2", "rl-training tune my_search.yaml"))(tune)
app.command(
    epilog=examples(
        "rl-training report runs --out report.html",
        "rl-training report 'runs/sac-*' 'runs/tqc-*' --out report.md",
    )
)(report)
app.command(
    epilog=examples(
        "rl-training judge runs/RUN --data log.parquet --out judge.html",
        "rl-training judge policy.onnx runs/RUN --data log.hdf5 --gamma 0.98 --json judge.json",
    )
)(judge)
app.command(epilog=examples("rl-training compare 'runs/sac-*' 'runs/tqc-*'"))(compare)

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


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; without `argv` the arguments of the process are used.

    An expected problem becomes `error: ...` and code 2. Any other exception is a bug: one line, a report in a
    file, and code 70.
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    wishes = Wishes()
    try:
        app(args=arguments, prog_name="rl-training", obj=wishes)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except UserError as error:
        for line in str(error).splitlines():
            typer.echo(f"error: {printable(line)}", err=True)
        return USER_ERROR
    except MemoryError as problem:
        typer.echo(
            f"error: not enough memory: {str(problem) or 'no details'}; choose smaller sizes", err=True
        )
        return USER_ERROR
    except Exception as problem:
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
