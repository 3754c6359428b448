"""What commands share: options, their meaning as settings, columns of tables; tables and JSON."""

from __future__ import annotations

import functools
import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rl_training.config.yaml import parse_yaml
from rl_training.core.errors import ConfigError
from rl_training.core.files import plain_json

if TYPE_CHECKING:
    from rl_training.core.types import State


def examples(*lines: str) -> str:
    """An epilog in which every example keeps its own line (a blank line is what the help renderer keeps)."""
    return "\n\n".join(["Examples:", *(f"  {line}" for line in lines)])


# ---- tables for people, JSON for programs

_WIDTH_OF_A_FILE = 160  # a pipe has no width of its own; the usual 80 would break every sentence


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]], *, title: str | None = None) -> None:
    """Print rows of plain text under a header; long cells wrap to the width of the terminal."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_WIDTH_OF_A_FILE)
    table = Table(*header, box=box.SIMPLE, title=title, title_justify="left", title_style="bold")
    table.columns[0].no_wrap = True  # names stay searchable
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))  # Text: brackets in a cell are not markup
    console.print(table)


def print_json(value: object) -> None:
    """Print as JSON that any parser reads: a number that is not finite becomes null."""
    print(json.dumps(plain_json(value), indent=2 if isinstance(value, Mapping) else None))


# ---- options that several commands share, so that they read the same everywhere

CheckpointOption = Annotated[
    Path,
    typer.Option(
        "--checkpoint", "-k", help="Checkpoint file, or a run directory (its newest checkpoint is used)."
    ),
]
DeviceOption = Annotated[
    str | None, typer.Option("--device", help="Where to compute: auto, cpu, cuda, cuda:N or mps.")
]
EnvOption = Annotated[
    str | None,
    typer.Option(
        "--env-id",
        help="Environment, in place of the saved one; say it yourself where its id names a module to import.",
    ),
]
EnvKwargsOption = Annotated[
    str | None,
    typer.Option(
        "--env-kwargs",
        metavar="MAPPING",
        help="Keyword arguments of the environment, in place of the run's or config's: '{g: 9.8}'.",
    ),
]
WrapperOption = Annotated[
    list[str] | None,
    typer.Option(
        "--wrapper", metavar="MODULE:FUNCTION", help="Put around the environment; may be given several times."
    ),
]
SeedOption = Annotated[int | None, typer.Option("--seed", help="Seed of every random stream of the run.")]
SeedsOption = Annotated[
    str | None,
    typer.Option(
        "--seeds",
        metavar="LIST",
        help="Train several seeds as one batched computation, a run directory each: 0-7, or 0,3,5.",
    ),
]
OutputDirOption = Annotated[
    Path | None, typer.Option("--output-dir", "-o", help="Directory in which the run directory is created.")
]
SavedDataOption = Annotated[
    str | None,
    typer.Option(
        "--data",
        help="Where the run's data lies; to be said where the checkpoint lies outside a run directory.",
    ),
]
ChangedDataOption = Annotated[
    bool,
    typer.Option("--allow-changed-data", help="Go on although the data is not what it was; not exact."),
]
MinariRootOption = Annotated[
    Path | None, typer.Option("--minari-root", help="Directory of Minari datasets (default: Minari's own).")
]
LowOption = Annotated[
    list[str] | None,
    typer.Option("--action-low", metavar="NUMBERS", help="Lower bound: 0, or one per action as 0,-1."),
]
HighOption = Annotated[
    list[str] | None,
    typer.Option("--action-high", metavar="NUMBERS", help="Upper bound: 1, or one per action as 1,50."),
]
ChangesOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change one setting; may be given several times."),
]
QuietOption = Annotated[
    bool, typer.Option("--quiet", "-q", help="No progress and no table; print only the run directory.")
]


# ---- what options say, as settings


def given(**options: object) -> dict[str, object]:
    """The options that were given, paths as text: what is not said leaves a config as it is."""
    return {
        name: str(value) if isinstance(value, Path) else value
        for name, value in options.items()
        if value is not None
    }


def parse_bounds(
    low: list[str] | None, high: list[str] | None
) -> tuple[list[float] | None, list[float] | None]:
    """What `--action-low` and `--action-high` name, once for all actions or for each: `0,-1`, or twice."""
    found: list[list[float] | None] = []
    for option, texts in (("--action-low", low), ("--action-high", high)):
        try:
            found.append(
                None if texts is None else [float(each) for text in texts for each in text.split(",")]
            )
        except ValueError:
            told = " ".join(texts or ())
            raise ConfigError(f"{option} must be numbers such as 0 or 0,-1, got {told!r}") from None
    return found[0], found[1]


def parse_seeds(text: str | None) -> list[int] | None:
    """`0-7` or `0,3,5` (or both: `0-2,9`) as a list of seeds."""
    if text is None:
        return None
    seeds: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:\s*-\s*(\d+))?\s*", part)
        if match is None:
            raise ConfigError(f"seeds must be a list such as 0-7 or 0,3,5, got {text!r}")
        first, last = int(match[1]), int(match[2] or match[1])
        seeds.extend(range(first, last + 1))
    return seeds


def parse_env_kwargs(text: str | None) -> State | None:
    """The mapping of `--env-kwargs`."""
    if text is None:
        return None
    values = parse_yaml(text, "--env-kwargs")
    if not isinstance(values, dict):
        raise ConfigError(f"--env-kwargs must be a mapping such as '{{g: 9.8}}', got {text!r}")
    return values


# ---- which columns of a table are what, for every command that reads data

_PANEL = "Columns of a table"


def _option(name: str, help: str, kind: Any = str) -> Any:
    if kind is bool:
        name = f"{name}/--no-{name.removeprefix('--')}"
    return Annotated[kind | None, typer.Option(name, help=help, rich_help_panel=_PANEL)]


_LISTS = {
    "obs": (
        "observations",
        "Columns of the observation: a,b,c or obs_*, or formulas: 'T - T_set, lags(valve, 3), mean(x, 20)'; "
        "may be given several times.",
    ),
    "action": ("actions", "Columns of the action; of a choice with its levels: valve,pump{off,on}."),
    "next_obs": ("next_observations", "Columns of the next observation, where they are logged."),
}
_NAMES = {
    "reward": "Column of the reward, or a formula: '-(next(T) - T_set)**2'.",
    "episode": "Column that is the same in all rows of an episode.",
    "time": "Column of the time of a step.",
    "terminated": "Flag of rows where the task itself ended, or a formula: 'level > 2.4'.",
    "truncated": "Flag of rows where only the recording ended.",
    "behavior_logprobs": "Log-probability of the action under the logging policy.",
    "operator": "Who acted (shift, person, controller): each is judged beside the policies.",
}
_MASK = (
    "Columns that say, 1 or 0, which levels of choices may be taken in a row: one per level, in their order."
)
_RATES = "Most that an action may move in a step, as NAME=NUMBER; may be given several times."
_COSTS = (
    "What must not happen too often: a name, and a column or formula ('overheat: T_tank > 80'); may be given "
    "several times."
)
_LIMITS = (
    "Most that a cost may be, on average per step ('overheat: 0.01') or in an episode ('overheat: 3 per "
    "episode'); may be given several times."
)
_UNITS = "Unit of a column, as NAME=UNIT; may be given several times."
_FIELDS: dict[str, tuple[Any, str]] = {
    "query": (str, "Rows of a database: 'select … order by run, time'."),
    "table": (str, "Rows of a database: all of a table, sorted by --episode and --time."),
    "query_timeout": (float, "Seconds after which a database is no longer waited for (600)."),
    "history": (int, "Rows of the past that the policy sees: lags of all observations and actions."),
    "missing_values": (str, "Empty cells: error, drop (the step) or hold (the last value)."),
    "max_gap": (float, "A longer time between two rows ends the episode."),
    "episode_length": (
        str,
        "Cut a continuous log into episodes: 24h, 90min, '500 rows', day or 'shifts 06:00,14:00,22:00'.",
    ),
    "time_zone": (str, "Zone of clock times without one: Europe/Berlin."),
    "date_order": (str, "What comes first in dates such as 03/04/2026: day or month."),
    "files_end_episodes": (bool, "Whether an episode ends where its file ends."),
    "csv_separator": (str, "Character between cells; detected if not given."),
    "csv_decimal": (str, "Decimal mark, . or ,; detected if not given."),
    "csv_encoding": (str, "Encoding of text; detected if not given."),
    "csv_thousands": (str, "Mark between thousands: . , ' or a space; detected if not given."),
    "csv_header": (bool, "Whether text tables have a line of names; without, columns are column_1, …"),
    "sheet": (str, "Sheet of an Excel workbook."),
    "missing_columns": (str, "Columns that not all files have: error or empty (cells)."),
    "pivot": (str, "Narrow table with a row per reading: TAG=VALUE, with --time."),
    "pivot_step": (str, "Time between the rows of a pivot: 30s, 5min."),
}


def with_column_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the column options; it receives what was given as `fields`, ready for a config."""
    own = inspect.signature(command)
    hints = get_type_hints(command, include_extras=True)
    added = {
        **{key: _option(_flag(key), help, list[str]) for key, (_, help) in _LISTS.items()},
        "action_mask": _option("--action-mask", _MASK, list[str]),
        **{key: _option(_flag(key), help) for key, help in _NAMES.items()},
        "unit": _option("--unit", _UNITS, list[str]),
        "rate": _option("--rate", _RATES, list[str]),
        "cost": _option("--cost", _COSTS, list[str]),
        "limit": _option("--limit", _LIMITS, list[str]),
        **{key: _option(_flag(key), help, kind) for key, (kind, help) in _FIELDS.items()},
    }

    @functools.wraps(command)
    def extended(**given: Any) -> None:
        options = {key: given.pop(key) for key in added}
        command(**given, fields=table_fields(options))

    parameters = [
        parameter.replace(annotation=hints[name])
        for name, parameter in own.parameters.items()
        if name != "fields"
    ]
    parameters += [
        inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for key, annotation in added.items()
    ]
    extended.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]  # typer reads it
    extended.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return extended


def table_fields(options: dict[str, Any]) -> dict[str, Any]:
    """The dataset fields of a config that the given options stand for."""
    from rl_training.core.expressions import split_list

    def names(key: str) -> list[str]:
        return [name for text in options[key] for name in split_list(text)]

    columns: dict[str, Any] = {field: names(key) for key, (field, _) in _LISTS.items() if options[key]}
    if options["action_mask"]:
        columns["fields"] = {"action_mask": names("action_mask")}
    columns |= {key: options[key] for key in _NAMES if options[key] is not None}
    if options["unit"]:
        columns["units"] = dict(_named_unit(text) for text in options["unit"])
    fields = {key: options[key] for key in _FIELDS if options[key] is not None}
    if options["rate"]:
        fields["rate"] = dict(_named_rate(text) for text in options["rate"])
    for option, example in (("cost", "overheat: T_tank > 80"), ("limit", "overheat: 0.01")):
        if options[option]:
            fields[f"{option}s"] = _named_texts(option, options[option], example)
    return {**fields, "columns": columns} if columns else fields


def _named_texts(option: str, texts: Sequence[str], example: str) -> dict[str, str]:
    """What stands behind the name and its colon, by name."""
    found: dict[str, str] = {}
    for text in texts:
        name, colon, value = (part.strip() for part in text.partition(":"))
        if not (name and colon and value):
            raise ConfigError(f"--{option} must be NAME: VALUE, such as {example!r}, got {text!r}")
        if name in found:
            raise ConfigError(f"--{option} {name} is given twice: leave one of them out")
        found[name] = value
    return found


def _named_unit(text: str) -> tuple[str, str]:
    name, sign, unit = text.partition("=")
    if not (name and sign and unit):
        raise ConfigError(f"--unit must be NAME=UNIT, such as T_tank=°C, got {text!r}")
    return name, unit


def _named_rate(text: str) -> tuple[str, float]:
    name, _, rate = text.partition("=")
    try:
        return name, float(rate)
    except ValueError:
        raise ConfigError(f"--rate must be NAME=NUMBER, such as valve=5, got {text!r}") from None


def _flag(key: str) -> str:
    return "--" + key.replace("_", "-")
