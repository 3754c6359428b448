"""`rl-training auto`: from a log to one recommended policy, or to an honest no; `demo` shows it."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_training.cli.judge import Stages, print_result
from rl_training.cli.options import (
    HighOption,
    LowOption,
    OutputDirOption,
    QuietOption,
    SeedOption,
    given,
    parse_bounds,
    print_table,
    with_column_options,
)
from rl_training.core.errors import ConfigError

if TYPE_CHECKING:
    from rl_training.recommend.auto import AutoResult


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
