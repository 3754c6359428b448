"""Commands that judge by a log: `rl-training judge`, and `auto` and `demo`, which look for a policy first."""

from __future__ import annotations

import shlex
import sys
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_training.cli.options import (
    HighOption,
    LowOption,
    MinariRootOption,
    OutputDirOption,
    QuietOption,
    SeedOption,
    given,
    parse_bounds,
    print_table,
    with_column_options,
)
from rl_training.core.errors import ConfigError, UserError

if TYPE_CHECKING:
    from rl_training.judging.verdict import Judgement
    from rl_training.recommend.auto import AutoResult
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


# ---- `rl-training auto`: from a log to one recommended policy, or to an honest no; and the demo of it


@with_column_options
def auto(
    fields: dict[str, Any],
    data: Annotated[
        str, typer.Argument(metavar="LOG", help="File, folder, or pattern in quotes ('logs/*.csv').")
    ],
    minutes: Annotated[
        float | None, typer.Option(help="Minutes of processor time, about; default: 20.")
    ] = None,
    gamma: Annotated[
        float | None, typer.Option("--gamma", help="Discount of future rewards; default: 0.99.")
    ] = None,
    held_out: Annotated[
        float | None,
        typer.Option("--held-out", help="Share of the episodes that only the judge sees; default: 0.2."),
    ] = None,
    action_low: LowOption = None,
    action_high: HighOption = None,
    out: Annotated[Path, typer.Option("--out", help="Folder of everything that is found.")] = Path("auto"),
    workers: Annotated[
        int | None, typer.Option(min=1, help="Trainings at once; default: as many as there are cores.")
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Spread trainings and judgements over this Ray cluster."),
    ] = None,
    copy_to: Annotated[
        str | None,
        typer.Option(
            "--copy-to",
            metavar="ADDRESS",
            help="Copy everything there at the end (s3://bucket/found, gs://…).",
        ),
    ] = None,
    seed: SeedOption = None,
    quiet: QuietOption = False,
) -> None:
    """Find the best policy that a log allows: train several, judge all, recommend one, or none.

    Writes a page that says why, and the policy as a file with a guard. Stopped anywhere, the same command
    goes on.
    """
    from rl_training.recommend.auto import auto as search

    if not fields.get("columns"):
        fields = {**fields, **agreed_mapping(data, fields)}
    columns = fields.pop("columns", None)
    low, high = parse_bounds(action_low, action_high)
    bounds = given(action_low=low, action_high=high)
    say = (lambda sentence: None) if quiet else (lambda sentence: typer.echo(sentence, err=True))
    with Stages(quiet) as stages:
        found = search(
            data,
            columns=columns,
            fields={**fields, **bounds},
            costs=None,
            limits=None,
            out=out,
            workers=workers,
            ray=ray,
            copy_to=copy_to,
            say=say,
            on_progress=stages.tell,
            **given(minutes=minutes, gamma=gamma, held_out=held_out, seed=seed),
        )
    if quiet:
        typer.echo(str(found.policy or ""))
        return
    print_found(found)


def print_found(found: AutoResult) -> None:
    """The judgement of all candidates, the answer, and where everything lies."""
    from rl_training.report.auto_page import time_taken

    print_result(found.judgement)
    typer.secho(f"\n{found.sentence}", bold=True)
    for name, problem in found.failed.items():
        typer.echo(f"- {name} failed: {problem}")
    for sentence in found.next_steps:
        typer.echo(f"- {sentence}")
    typer.echo(time_taken(found))
    typer.echo(f"page: {found.page}")
    if found.policy is not None:
        typer.echo(f"policy: {found.policy}")
        typer.echo(f"try it beside your operators: rl-training serve {shlex.quote(str(found.policy))}")


def agreed_mapping(data: str, fields: dict[str, Any]) -> dict[str, Any]:
    """The columns of a table that says nothing of them: asked for in a terminal, told elsewhere."""
    from rl_training.cli.data import guess_of, show_guess
    from rl_training.data.convert import source_location

    guess = guess_of(source_location(data), fields)
    if guess is None:
        return {}
    line = f"rl-training auto {shlex.quote(data)} {guess.flags()}"
    if not sys.stdin.isatty():
        raise ConfigError(
            f"{data}: say which columns are what (--obs, --action, --reward); a guess, to be checked: {line}"
        )
    show_guess(guess)
    if not guess.columns.actions or not typer.confirm("Go on with this mapping?", default=False):
        raise ConfigError(f"say which columns are what, from: {line}")
    told: dict[str, Any] = {"columns": {k: v for k, v in guess.columns.to_dict().items() if v}}
    return {**told, "missing_values": "hold"} if guess.has_empty_cells else told


# ---- `rl-training demo`: a log, a recommended policy and the truth, each with the command that a user types


def demo(seed: SeedOption = None, output_dir: OutputDirOption = None, quiet: QuietOption = False) -> None:
    """Make a log, find the best policy that it allows and how good it is, then ask for the truth.

    The log comes from a small plant that is built in; nothing is downloaded. Stopped anywhere, the same
    command goes on.
    """
    from rl_training.cli.data import print_guess
    from rl_training.data.convert import source_location
    from rl_training.demo.story import HEADER, RUNS, Demo, truth_rows, truth_sentence, write_demo_page

    number = seed or 0
    name = f"demo-s{number}" if number else "demo"
    story, narrator = Demo((output_dir or Path("runs")) / name, number), Narrator(quiet)
    narrator.step(f"A log: {RUNS} hours of a hot-water tank, run by hand by four operators ({story.log})")
    story.write_log()
    narrator.step("What is in it?", "data", "inspect", str(story.log))
    if not quiet:
        print_guess(source_location(str(story.log)), {}, as_json=False)
    question = "Which policy is better than the operators? Nobody tries anything out"
    narrator.step(question, *story.auto_command)
    with Stages(quiet) as stages:
        found = story.recommend(narrator.say, stages.tell)
    if not quiet:
        print_found(found)
    narrator.step("And the truth? The plant tries out everybody")
    truth = story.truth(found)
    write_demo_page(found, truth, story.page)
    if not quiet:
        print_table(HEADER, truth_rows(found, truth))
        typer.echo(truth_sentence(found, truth))
        policy = [] if found.policy is None else [("policy", str(found.policy))]
        paths = [("log", str(story.log)), *policy, ("page", str(story.page))]
        print_table(("what", "where"), paths)


class Narrator:
    """Says what happens next, and the command that does it."""

    def __init__(self, quiet: bool) -> None:
        self.quiet, self.steps = quiet, 0

    def step(self, title: str, *command: str) -> None:
        self.steps += 1
        if not self.quiet:
            typer.secho(f"\n{self.steps}. {title}", bold=True)
        if command and not self.quiet:
            typer.secho(f"\n   $ rl-training {shlex.join(command)}\n", dim=True)

    def say(self, sentence: str) -> None:
        if not self.quiet:
            typer.echo(sentence, err=True)
