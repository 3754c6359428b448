"""The options that say which columns of a table are what, for every command that reads data."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, get_type_hints

import typer

from rl_training.core.errors import ConfigError

_PANEL = "Columns of a table"


def _option(name: str, help: str, kind: Any = str) -> Any:
    return Annotated[kind | None, typer.Option(name, help=help, rich_help_panel=_PANEL)]


_LISTS = {
    "obs": ("observations", "Columns of the observation: a,b,c or obs_*; may be given several times."),
    "action": ("actions", "Columns of the action."),
    "next_obs": ("next_observations", "Columns of the next observation, where they are logged."),
}
_NAMES = {
    "reward": "Column of the reward.",
    "episode": "Column that is the same in all rows of an episode.",
    "time": "Column of the time of a step.",
    "terminated": "Flag of rows where the task itself ended.",
    "truncated": "Flag of rows where only the recording ended.",
    "behavior_logprobs": "Log-probability of the action under the logging policy.",
}
_UNITS = "Unit of a column, as NAME=UNIT; may be given several times."
_FIELDS: dict[str, tuple[Any, str]] = {
    "missing_values": (str, "Empty cells: error, drop (the step) or hold (the last value)."),
    "max_gap": (float, "A longer time between two rows ends the episode."),
    "files_end_episodes": (bool, "Whether an episode ends where its file ends."),
    "csv_separator": (str, "Character between cells; detected if not given."),
    "csv_decimal": (str, "Decimal mark, . or ,; detected if not given."),
    "csv_encoding": (str, "Encoding of text; detected if not given."),
}

TABLE_FIELDS = ("columns", *_FIELDS)
"""What the options below stand for in a config."""


def with_column_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the column options; it receives what was given as `fields`, ready for a config."""
    own = inspect.signature(command)
    hints = get_type_hints(command, include_extras=True)
    added = {
        **{key: _option(_flag(key), help, list[str]) for key, (_, help) in _LISTS.items()},
        **{key: _option(_flag(key), help) for key, help in _NAMES.items()},
        "unit": _option("--unit", _UNITS, list[str]),
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
    columns: dict[str, Any] = {
        field: [name.strip() for text in options[key] for name in text.split(",") if name.strip()]
        for key, (field, _) in _LISTS.items()
        if options[key]
    }
    columns |= {key: options[key] for key in _NAMES if options[key] is not None}
    if options["unit"]:
        columns["units"] = dict(_named_unit(text) for text in options["unit"])
    fields = {key: options[key] for key in _FIELDS if options[key] is not None}
    return {**fields, "columns": columns} if columns else fields


def _named_unit(text: str) -> tuple[str, str]:
    name, sign, unit = text.partition("=")
    if not (name and sign and unit):
        raise ConfigError(f"--unit must be NAME=UNIT, such as T_tank=°C, got {text!r}")
    return name, unit


def _flag(key: str) -> str:
    return "--" + key.replace("_", "-")
