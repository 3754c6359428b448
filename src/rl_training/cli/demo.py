"""`rl-training demo`: a log, a policy, a verdict and the truth, each with the command that a user types."""

from __future__ import annotations

import shlex
from pathlib import Path

import typer

from rl_training.cli.options import OutputDirOption, QuietOption, SeedOption, print_table


def demo(seed: SeedOption = None, output_dir: OutputDirOption = None, quiet: QuietOption = False) -> None:
    """Make a log, learn a policy from it, let the judge say how good it is, then ask for the truth.

    The log comes from a small plant that is built in; nothing is downloaded.
    """
    from rl_training.cli.data import print_guess
    from rl_training.cli.judge import Stages, print_result
    from rl_training.cli.train import report
    from rl_training.data.convert import source_location
    from rl_training.demo.page import HEADER, truth_rows, truth_sentence
    from rl_training.demo.story import RUNS, Demo

    story, say = Demo((output_dir or Path("runs")) / "demo", seed or 0), Narrator(quiet)
    say.step(f"A log: {RUNS} hours of a hot-water tank, run by hand by four operators ({story.log})")
    story.write_log()
    say.step("What is in it?", *story.inspect_command)
    if not quiet:
        print_guess(source_location(str(story.log)), {}, as_json=False)
    say.step("Learn a policy from the log alone", *story.train_command)
    result = story.train(quiet=quiet)
    report(result, quiet=quiet)
    run_dir = Path(result.run_dir)
    question = "Is it better than what was logged? Nobody has tried it out"
    say.step(question, *story.judge_command(run_dir))
    with Stages(quiet) as stages:
        judgement = story.judge(run_dir, stages.tell)
    if not quiet:
        print_result(judgement)
    say.step("And the truth? The plant tries out everybody")
    truth = story.truth(run_dir)
    story.write_page(judgement, truth)
    if not quiet:
        print_table(HEADER, truth_rows(judgement, truth))
        typer.echo(truth_sentence(judgement, truth))
        paths = {"log": story.log, "run directory": run_dir, "page": story.page}
        print_table(("what", "where"), [(name, str(path)) for name, path in paths.items()])


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
