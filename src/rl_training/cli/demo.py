"""`rl-training demo`: a log, a policy, a verdict and the truth, each with the command that a user types."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from rl_training.cli.options import OutputDirOption, QuietOption, SeedOption

if TYPE_CHECKING:
    from rl_training.experiment.demo_plant import Truth
    from rl_training.judging.judgement import Judgement
    from rl_training.runtime.run import TrainResult

RUNS, STEPS, SAVED_EVERY, GAMMA = 200, 1500, 100, 0.95
COLUMNS = {"obs": "T_tank,level,outflow", "action": "heater,valve", "reward": "score", "episode": "run"}
CHANGES = [
    f"checkpoint_interval={SAVED_EVERY}",
    f"algo_kwargs.keep_checkpoints={STEPS // SAVED_EVERY}",
    f"algo_kwargs.gamma={GAMMA}",
    "algo_kwargs.judge_at_end=false",  # the judge has the next step to itself
]


def demo(seed: SeedOption = None, output_dir: OutputDirOption = None, quiet: QuietOption = False) -> None:
    """Make a log, learn a policy from it, let the judge say how good it is, then ask for the truth.

    The log comes from a small plant that is built in; nothing is downloaded.
    """
    from rl_training.cli.run import report
    from rl_training.experiment.demo_plant import write_log
    from rl_training.report.demo_page import write_demo_page

    number, folder = seed or 0, (output_dir or Path("runs")) / "demo"
    folder.mkdir(parents=True, exist_ok=True)
    log, page, say = folder / "log.csv", folder / "demo.html", Narrator(quiet)

    say.step(f"A log: {RUNS} hours of a hot-water tank, run by hand by four operators ({log})")
    write_log(log, runs=RUNS, seed=number)
    say.step("What is in it?", "data", "inspect", str(log))
    if not quiet:
        look_at_columns(log)
    say.step("Learn a policy from the log alone", *train_command(log, folder, number))
    result = learn(log, folder, number, quiet=quiet)
    report(result, quiet=quiet)
    say.step(
        "Is it better than what was logged? Nobody has tried it out", *judge_command(log, result, number)
    )
    judgement = judge_it(log, result, number, quiet=quiet)
    say.step("And the truth? The plant tries out everybody")
    truth = ask_for_the_truth(result, number)
    write_demo_page(judgement, truth, page)
    if not quiet:
        print_end(judgement, truth, {"log": log, "run directory": result.run_dir, "page": page})


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


def column_flags() -> list[str]:
    return [part for name, columns in COLUMNS.items() for part in (f"--{name}", columns)]


def column_fields() -> dict[str, Any]:
    """The same as fields of a config."""
    both = {"observations": COLUMNS["obs"].split(","), "actions": COLUMNS["action"].split(",")}
    return {"columns": {**both, "reward": COLUMNS["reward"], "episode": COLUMNS["episode"]}}


def look_at_columns(log: Path) -> None:
    from rl_training.cli.table_guess import print_guess
    from rl_training.data.convert import source_place

    print_guess(source_place(str(log)), {}, as_json=False)


def train_command(log: Path, folder: Path, seed: int) -> list[str]:
    bounds = ("--action-low", "0", "--action-high", "100")
    size = ("--steps", str(STEPS), "--seed", str(seed), "--output-dir", str(folder))
    changes = [part for change in CHANGES for part in ("--set", change)]
    return ["train", "--algo", "iql", "--data", str(log), *column_flags(), *bounds, *size, *changes]


def learn(log: Path, folder: Path, seed: int, *, quiet: bool) -> TrainResult:
    from rl_training.cli.overrides import as_overrides, data_overrides
    from rl_training.core.config_files import load_config
    from rl_training.experiment.default_manager import DefaultExperimentManager

    name, recipe = data_overrides(None, "iql", str(log), column_fields(), [0.0], [100.0])
    options = as_overrides(seed=seed, output_dir=folder, algo="iql", total_timesteps=STEPS)
    config = load_config(name, [*recipe, *CHANGES, *options])
    return DefaultExperimentManager().setup(config, quiet=quiet).train()


def judge_command(log: Path, result: TrainResult, seed: int) -> list[str]:
    options = ("--data", str(log), *column_flags(), "--gamma", str(GAMMA), "--seed", str(seed))
    return ["judge", str(result.run_dir), *options]


def judge_it(log: Path, result: TrainResult, seed: int, *, quiet: bool) -> Judgement:
    from rl_training.cli.judge import judged, print_result

    found = judged([Path(result.run_dir)], str(log), column_fields(), quiet=quiet, gamma=GAMMA, seed=seed)
    if not quiet:
        print_result(found)
    return found


def ask_for_the_truth(result: TrainResult, seed: int) -> Truth:
    from rl_training.core.checkpoints import checkpoint_path
    from rl_training.experiment.demo_plant import ask_the_plant
    from rl_training.policies.predict_files import open_policy

    steps = range(SAVED_EVERY, STEPS + 1, SAVED_EVERY)
    saved = [(each, open_policy(checkpoint_path(result.run_dir, each)).predict) for each in steps]
    return ask_the_plant(saved, gamma=GAMMA, seed=seed)


def print_end(judgement: Judgement, truth: Truth, paths: Mapping[str, str | Path]) -> None:
    from rl_training.cli.output import print_table
    from rl_training.report.demo_page import truth_rows, truth_sentence

    print_table(("who", "estimated from the log", "measured at the plant"), truth_rows(judgement, truth))
    typer.echo(truth_sentence(judgement, truth))
    print_table(("what", "where"), [(name, str(path)) for name, path in paths.items()])
