"""`rl-training judge`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_training.cli.column_options import with_column_options

if TYPE_CHECKING:
    from rl_training.data.offline_dataset import TransitionDataset
    from rl_training.judging.critics import TrainedCritic
    from rl_training.judging.judgement import Judgement


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
    gamma: Annotated[float, typer.Option("--gamma", help="Discount of future rewards.")] = 0.99,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the judgement.")] = 0,
    out: Annotated[Path | None, typer.Option("--out", help="Write one HTML page with everything.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write everything as JSON.")] = None,
    checkpoints: Annotated[
        Path | None,
        typer.Option("--checkpoints", help="Keep fits in this folder; the same command goes on from them."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="Any other setting of a judgement, such as members=4."
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Say how good policies are from a log alone, and whether that can be said at all."""
    from rl_training.cli.overrides import parsed_settings
    from rl_training.core.atomic import write_json_atomic

    keywords = {**parsed_settings("--set", settings or []), "gamma": gamma, "seed": seed}
    log = data_of_runs(policies) if data is None else data
    result = judged(policies, log, fields, quiet=quiet, checkpoints=checkpoints, **keywords)
    print_result(result)
    if json_file is not None:
        write_json_atomic(json_file, result.to_dict())
        typer.echo(f"numbers: {json_file}")
    if out is not None:
        from rl_training.report.judge_page import write_judge_page

        typer.echo(f"page: {write_judge_page(result, out)}")


def judged(
    policies: list[Path], data: str, fields: dict[str, Any], *, quiet: bool, **settings: Any
) -> Judgement:
    """The judgement of files by a log, with progress for people at a terminal."""
    from rl_training.judging.judge_policies import judge as judge_policies
    from rl_training.policies.predict_files import open_policy

    named = unique_names(policies)
    opened = {name: open_policy(path) for name, path in named.items()}
    log, critics = read_data(data, fields, policies), critics_of(named)
    settings = {"discount_by_time": trained_by_time(policies), **settings}
    with Stages(quiet) as stages:
        return judge_policies(opened, log, on_progress=stages.tell, critics=critics, **settings)


def critics_of(paths: dict[str, Path]) -> dict[str, TrainedCritic]:
    """What runs and checkpoints were trained with; exported policies have left it behind."""
    from rl_training.judging.critics import trained_critic
    from rl_training.policies.loading import is_policy_file

    found = {name: trained_critic(path) for name, path in paths.items() if not is_policy_file(path)}
    return {name: critic for name, critic in found.items() if critic is not None}


def read_data(source: str, fields: dict[str, Any], policies: list[Path]) -> TransitionDataset:
    """The log; a table is read with the columns of the first run that names some, unless others are given."""
    from rl_training.cli.table_guess import TABLE_KINDS
    from rl_training.data.convert import read_place, source_place

    place = source_place(source)
    if place.kind in TABLE_KINDS and not fields:
        fields = next((found for path in policies if (found := columns_of_run(path))), {})
    return read_place(place, fields=fields).to_dataset()


def data_of_runs(paths: list[Path]) -> str:
    """The log that all of these runs were trained on."""
    from rl_training.core.errors import UserError

    found: dict[str, Path] = {}
    for path in paths:
        # Only a run directory is the user's own: a path that another file names is not followed.
        settings = settings_of_run(path) if path.is_dir() else {}
        name = settings.get("dataset_path") or settings.get("dataset_id")
        if name is None:
            raise UserError(f"--data is needed: {path} does not say by which log it can be judged")
        found[str(name)] = path
    if len(found) > 1:
        told = ", ".join(f"{path} {name}" for name, path in found.items())
        raise UserError(f"--data is needed: the runs were trained on different logs ({told})")
    return next(iter(found))


def columns_of_run(path: Path) -> dict[str, Any]:
    """How a run or checkpoint read its own table; nothing for other data and for exported policies."""
    from rl_training.cli.column_options import TABLE_FIELDS

    settings = settings_of_run(path)
    given = {name: settings[name] for name in TABLE_FIELDS if settings.get(name) is not None}
    return given if any(given.get("columns", {}).values()) else {}


def trained_by_time(paths: list[Path]) -> bool:
    """Whether a run or checkpoint discounted steps by their duration: it is then judged so too."""
    return any(settings_of_run(path).get("discount_by_time") for path in paths)


def settings_of_run(path: Path) -> dict[str, Any]:
    """What a run or checkpoint was trained with; exported policies do not say."""
    from rl_training.core.checkpoints import read_header
    from rl_training.policies.loading import is_policy_file

    if is_policy_file(path):
        return {}
    settings: dict[str, Any] = read_header(path).get("config", {}).get("algo_kwargs", {})
    return settings


def unique_names(paths: list[Path]) -> dict[str, Path]:
    """A short name for every path: its own, with as much of the directory as keeps it apart."""
    for parts in range(1, max(len(path.parts) for path in paths) + 1):
        names = ["/".join(path.parts[-parts:]) for path in paths]
        if len(set(names)) == len(paths):
            return dict(zip(names, paths, strict=True))
    return {str(path): path for path in paths}


def print_result(result: Judgement) -> None:
    from rl_training.cli.output import print_table
    from rl_training.report.tables import plain_number

    def told(value: float, low: float, high: float) -> tuple[str, str]:
        bounds = f"{plain_number(value)} [{plain_number(low)}, {plain_number(high)}]"
        return bounds, plain_number(result.per_step(value))

    rows: list[tuple[str, ...]] = [
        (p.name, p.verdict, *told(p.value, p.low, p.high)) for p in result.ranking()
    ]
    own = result.behaviour
    rows.append(("logged behaviour", "–", *told(own.value, own.low, own.high)))
    share = f"{100 * float(result.settings['confidence']):.0f} %"
    print_table(("policy", "verdict", f"value [{share}]", "per step"), rows)
    for policy in result.ranking():
        typer.echo(f"{policy.name}: {policy.sentence}")
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
            self.tasks[name] = self.progress.add_task(STAGES.get(name, name), total=total)
        self.progress.update(self.tasks[name], completed=done, total=total)
