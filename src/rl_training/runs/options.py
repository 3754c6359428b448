"""What is said on the command line or in a file: the config of a run, observations to act on."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rl_training.config.run import TrainConfig, list_packaged_configs, load_config
from rl_training.core.errors import ConfigError, UserError, shown
from rl_training.core.files import absolute, parse_json
from rl_training.core.registry import algorithm_facts, builtin_algorithms
from rl_training.core.types import Facts, State
from rl_training.policies.files import Chunk, is_header, refuse_other_names

OWN_DATA = "iql/own_data"
"""Packaged config that runs on own data start from, where there is none of their algorithm; it sets nothing
that belongs to one algorithm."""

OWN_ENV = "sac/own_env"
"""Packaged config that runs in an environment alone start from, likewise."""


def config_from_options(
    config: str | None,
    options: Facts,
    *,
    data: str | None = None,
    minari_root: Path | None = None,
    fields: Facts | None = None,
    env_kwargs: Facts | None = None,
    changes: Sequence[str] = (),
) -> TrainConfig:
    """The config of that name, or the one for own data or an environment, with what the user says.

    `options` are settings of the run, `fields` of its data, `changes` are of the form `key=value`. Where
    `data` is given, the place of the config's own gives way; the path is made absolute.
    """
    start: State = {}
    given = dict(fields or {})
    if config is None:
        config = config_to_start_from(options.get("algo"), data, options.get("env_id"))
        if data is not None:  # the example values of the packaged config
            start |= {"columns": {}, "missing_values": "error", "action_low": None, "action_high": None}
    if data is not None:
        from rl_training.data.convert import source_location  # loads torch, which mistakes need not wait for

        place = source_location(data, minari_root)
        start |= {"dataset_kind": "auto", "dataset_path": None, "dataset_id": None}
        if place.dataset_id is None:
            given["dataset_path"] = absolute(data)
        else:
            start["dataset_kind"], given["dataset_id"] = "minari", place.dataset_id
        if place.dataset_id is not None and minari_root is not None:
            given["dataset_path"] = os.path.abspath(minari_root)
    elif minari_root is not None:
        raise ConfigError("--minari-root must come with --data, the id of a dataset in it")
    first = {f"algo_kwargs.{name}": value for name, value in given.items()}
    if env_kwargs is not None:
        first["env_kwargs"] = env_kwargs
    return load_config(
        config,
        [*first.items(), *changes, *options.items()],
        start=[(f"algo_kwargs.{name}", value) for name, value in start.items()],
    )


def config_to_start_from(algo: str | None, data: str | None, env_id: str | None) -> str:
    """The packaged config for a log, or for an environment alone, where the user names none."""
    if algo is None or (data is None and env_id is None):
        raise ConfigError(
            "--config is required, or --algo and --data to train on a log of your own, or --algo and "
            "--env-id to train in an environment"
        )
    facts = algorithm_facts(algo)
    if data is None and facts is not None and not facts.online:
        online = ", ".join(name for name, each in builtin_algorithms().items() if each.online)
        raise ConfigError(
            f"--data is required: {algo} learns from logged data (in an environment alone learn {online}); "
            "`rl-training configs` lists configs that collect some"
        )
    if data is None:
        return OWN_ENV
    own = f"{algo}/own_data"
    return own if any(each.name == own for each in list_packaged_configs()) else OWN_DATA


# ---- observations given on the command line or in a file


Array = NDArray[np.float64]


def read_observations(text: str | None, file: str | None, names: Sequence[str] = ()) -> Array:
    """One observation from `text`, or one per row from `file` (`-` is standard input).

    `names` are the columns that the policy observes: a line of other names is refused.
    """
    if (text is None) == (file is None):
        raise UserError('give either --obs "0.1, 0.2, 0.3" or --obs-file FILE')
    if file is None:
        return _checked(text or "", "--obs", lambda row: [float(number) for number in _cells(row)])
    if file == "-":
        text = sys.stdin.read()
        if not text.lstrip().startswith("["):
            refuse_other_names(text.lstrip().partition("\n")[0].strip(), names, "standard input")
        return _checked(text, "standard input", _rows)
    return _from_file(Path(file))


def chunks_by_name(
    file: str | None, names: Sequence[str], *, hold: bool, gaps: bool
) -> Iterator[Chunk] | None:
    """The observations of a table that has the policy's own columns; none where it is to be read by place."""
    from rl_training.data.tables.build import has_named_columns, named_rows

    if file in (None, "-"):
        return None
    path = Path(str(file))
    if has_named_columns(path, names):
        return (Chunk(rows, share) for rows, share in named_rows(path, names, hold=hold, gaps=gaps))
    if path.suffix == ".csv" and path.is_file():  # also where the reader of tables is not installed
        with path.open(encoding="utf-8-sig", errors="replace") as lines:
            refuse_other_names(lines.readline().strip(), names, f"--obs-file {path}")
    return None


def _from_file(path: Path) -> Array:
    if path.suffix not in (".npy", ".csv", ".json"):
        raise UserError(f"--obs-file must end in .npy, .csv or .json, got {str(path)!r}")
    try:
        if path.suffix == ".npy":
            return _from_npy(path)
        return _checked(path.read_text(encoding="utf-8", errors="replace"), f"--obs-file {path}", _rows)
    except (OSError, EOFError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"--obs-file {path} cannot be read: {reason}") from None


def _from_npy(path: Path) -> Array:
    try:
        return np.asarray(np.load(path), dtype=np.float64)
    except (ValueError, TypeError, AttributeError):
        raise UserError(f"--obs-file {path} does not hold one array of numbers") from None


def _checked(text: str, source: str, parse: Callable[[str], object]) -> Array:
    try:
        return np.asarray(parse(text), dtype=np.float64)
    except (ValueError, TypeError):
        raise UserError(
            f"{source} must hold numbers, the same count in every row, got {shown(text)}"
        ) from None


def _cells(text: str) -> list[str]:
    """What stands between commas or spaces."""
    return re.split(r"\s*,\s*|\s+", text.strip().strip("[]").strip())


def _rows(text: str) -> object:
    """JSON, or lines of numbers between commas or spaces; a first line of names is skipped.

    NaN stands for null and for an empty cell.
    """
    if text.lstrip().startswith("["):
        return parse_json(text)
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) > 1 and is_header(lines[0]):
        lines = lines[1:]
    return [[float(number or "nan") for number in _cells(line)] for line in lines]
