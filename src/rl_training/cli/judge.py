"""`rl-training judge`: how good policies are, from a log alone."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_training.cli.options import (
    MinariRootOption,
    given,
    print_table,
    with_column_options,
)
from rl_training.core.errors import ConfigError, UserError

if TYPE_CHECKING:
    from rl_training.judging.verdict import Judgement
    from rl_training.report.content import Bounded


@with_column_options
def judge(
    fields: dict[str, Any],
    policies: Annotated[
        list[Path],
        typer.Argument(
            metavar="POLICY_OR_RUN...",
            help="Run directories, checkpoints or exported .onnx/.safetensors policies.",
        ),
    ],
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            help="The log: file, folder, pattern, or Minari id. Runs may leave it out: their own data.",
        ),
    ] = None,
    minari_root: MinariRootOption = None,
    gamma: Annotated[
        float | None,
        typer.Option("--gamma", help="Discount of future rewards; default: that of the runs, else 0.99."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, help="Seed of the judgement; default: 0.")
    ] = None,
    dial: Annotated[
        str | None,
        typer.Option(
            "--dial",
            help="Positions of a policy's dial to judge, such as 0,.25,.5,.75,1; says which to take.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Write one HTML page with everything.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write everything as JSON.")] = None,
    checkpoints: Annotated[
        Path | None,
        typer.Option("--checkpoints", help="Keep fits in this folder; the same command goes on from them."),
    ] = None,
    workers: Annotated[
        int, typer.Option(min=1, help="Processes for fits that do not need each other; same numbers.")
    ] = 1,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="Any other setting of a judgement, such as members=4."
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Say how good policies are from a log alone, and whether that can be said at all."""
    from rl_training.core.files import refuse_unwritable, write_json_atomic

    keywords = settings_of_a_judgement([*(settings or []), *given(gamma=gamma, seed=seed).items()])
    if out is not None and out == json_file:
        raise UserError(f"--out and --json must name two files, got {out} twice")
    for option, file in (("--out", out), ("--json", json_file)):
        if file is not None:
            refuse_unwritable(file, option)
    for path in policies:
        if not path.exists():
            raise UserError(f"no such run: {path}; give a run directory, a checkpoint or an exported policy")
    if minari_root is not None:
        data = in_minari_root(data, minari_root)
    dials = None if dial is None else parse_dials(dial)
    from rl_training.runs.judge import judge as judge_files

    columns = fields.pop("columns", None)
    with Stages(quiet) as stages:
        result = judge_files(
            policies,
            data,
            columns=columns,
            fields=fields,
            on_progress=stages.tell,
            checkpoints=checkpoints,
            workers=workers,
            dial=dials,
            **keywords,
        )
    print_result(result)
    if "gamma" not in keywords:
        typer.echo(f"discount of future rewards: {result.settings['gamma']:g}")
    if json_file is not None:
        write_json_atomic(json_file, result.to_dict())
        typer.echo(f"numbers: {json_file}")
    if out is not None:
        from rl_training.report.judge_page import write_judge_page

        typer.echo(f"page: {write_judge_page(result, out)}")


def settings_of_a_judgement(changes: list[str | tuple[str, object]]) -> dict[str, Any]:
    """What is said by name; a name that is no setting must not become another argument of the judge."""
    from rl_training.config.run import apply_overrides
    from rl_training.judging.settings import JudgeConfig

    keywords: dict[str, Any] = {}
    apply_overrides(keywords, changes)
    if not keywords.keys() <= JudgeConfig.model_fields.keys():
        JudgeConfig.build(keywords)  # which says what is wrong
    return keywords


def in_minari_root(data: str | None, root: Path) -> str:
    """The folder of a Minari dataset, which names it wherever the datasets lie."""
    from rl_training.data.convert import source_location

    if data is None:
        raise ConfigError("--minari-root must come with --data, the id of a dataset in it")
    return source_location(data, root).spelling


def parse_dials(text: str) -> list[float]:
    """`0,.5,1` as numbers."""
    try:
        return [float(each) for each in text.split(",")]
    except ValueError:
        raise ConfigError(f"--dial must be numbers from 0 to 1 between commas, got {text!r}") from None


def print_result(result: Judgement) -> None:
    from rl_training.judging.candidates import sentence_of_dial
    from rl_training.report.content import plain_number, with_interval
    from rl_training.report.judge_page import COST_HEADER, cost_rows

    def numbers(of: Bounded) -> tuple[str, str]:
        return with_interval(of), plain_number(result.per_step(of.value))

    rows: list[tuple[str, ...]] = [(p.name, p.verdict, *numbers(p)) for p in result.ranking()]
    rows.append(("logged behaviour", "–", *numbers(result.behaviour)))
    rows += [(f"operator {each.name}", "–", *numbers(each)) for each in result.operators]
    share = f"{100 * float(result.settings['confidence']):.0f} %"
    print_table(("policy", "verdict", f"value [{share}]", "per step"), rows)
    if result.logged_costs:
        print_table(COST_HEADER, cost_rows(result))
    for policy in result.ranking():
        typer.echo(f"{policy.name}: {policy.sentence}")
    for first, second in pairwise(result.ranking()):
        told = with_interval(result.compare(first.name, second.name))
        typer.echo(f"{first.name} earns {told} more than {second.name}")
    for curve in result.dials:
        typer.echo(sentence_of_dial(curve))
    tied = [each.name for each in result.ties()]
    if len(tied) > 1:
        typer.echo(f"{tied[0]} comes first, but this log cannot tell it from: {', '.join(tied[1:])}")
    for sentence in result.advice:
        typer.echo(f"- {sentence}")


STAGES = {
    "values": "values of policies and behaviour",
    "dynamics": "model of the dynamics",
    "density": "density of the logged actions",
    "policies": "checks and verdicts",
}


class Stages:
    """A live table of what is being fitted and how far it is, for people at a terminal."""

    def __init__(self, quiet: bool) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self.progress = Progress(*columns, console=console, disable=quiet or not console.is_terminal)
        self.tasks: dict[str, Any] = {}

    def __enter__(self) -> Stages:
        self.progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.progress.stop()

    def tell(self, name: str, done: int, total: int) -> None:
        if name not in self.tasks:
            told = STAGES.get(name, name.replace("_", " "))
            self.tasks[name] = self.progress.add_task(told, total=total)
        self.progress.update(self.tasks[name], completed=done, total=total)
