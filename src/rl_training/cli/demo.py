"""`rl-training demo`: a log, a recommended policy and the truth, each with the command that a user types."""

from __future__ import annotations

import shlex
from pathlib import Path

import typer

from rl_training.cli.options import OutputDirOption, QuietOption, SeedOption, print_table


def demo(seed: SeedOption = None, output_dir: OutputDirOption = None, quiet: QuietOption = False) -> None:
    """Make a log, find the best policy that it allows and how good it is, then ask for the truth.

    The log comes from a small plant that is built in; nothing is downloaded. Stopped anywhere, the same
    command goes on.
    """
    from rl_training.cli.auto import print_found
    from rl_training.cli.data import print_guess
    from rl_training.cli.judge import Stages
    from rl_training.data.convert import source_location
    from rl_training.demo.page import HEADER, truth_rows, truth_sentence
    from rl_training.demo.story import RUNS, Demo

    number = seed or 0
    name = f"demo-s{number}" if number else "demo"
    story, narrator = Demo((output_dir or Path("runs")) / name, number), Narrator(quiet)
    narrator.step(f"A log: {RUNS} hours of a hot-water tank, run by hand by four operators ({story.log})")
    story.write_log()
    narrator.step("What is in it?", *story.inspect_command)
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
    story.write_page(found, truth)
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
