"""The names that `dataset_kind` may have: what is collected, the built-in formats, and those of plug-ins."""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points

from rl_training.config.wording import did_you_mean

BUILTIN_FORMATS = {
    "table": "rl_training.data.formats.table:TABLE",
    "csv": "rl_training.data.formats.table:CSV",
    "parquet": "rl_training.data.formats.table:PARQUET",
    "feather": "rl_training.data.formats.table:FEATHER",
    "jsonl": "rl_training.data.formats.table:JSONL",
    "hdf5": "rl_training.data.formats.hdf5:HDF5",
    "npz": "rl_training.data.formats.npz:NPZ",
    "minari": "rl_training.data.formats.minari:MINARI",
    "lerobot": "rl_training.data.formats.lerobot:LEROBOT",
    "robomimic": "rl_training.data.formats.robomimic:ROBOMIMIC",
    "ogbench": "rl_training.data.formats.ogbench:OGBENCH",
    "rlds": "rl_training.data.formats.rlds:RLDS",
    "neorl2": "rl_training.data.formats.neorl2:NEORL2",
}
"""Format -> where it lives, as an import string: a config can be checked without importing any of them."""

FORMAT_GROUP = "rl_training.formats"
"""Entry-point group in which an installed package offers formats."""

COLLECTED_KINDS = ("random", "checkpoint")
"""Kinds whose rows are collected in an environment."""

AUTO = "auto"
MIX = "mix"
NO_DATA = "none"
"""An online run without data beside what it collects."""

_registered: set[str] = set()


def add_format_name(name: str) -> None:
    """Make a format that was registered from Python a valid `dataset_kind`."""
    _registered.add(name)


def format_names() -> tuple[str, ...]:
    """Built-in formats, then those that were registered or are offered by installed packages."""
    return (*BUILTIN_FORMATS, *sorted((_registered | _offered()) - BUILTIN_FORMATS.keys()))


@cache
def _offered() -> frozenset[str]:
    """Names that installed packages offer; looking through them takes a while and is done once."""
    return frozenset(entry.name for entry in entry_points(group=FORMAT_GROUP))


def source_kinds() -> tuple[str, ...]:
    """Every kind that one part of a dataset can have."""
    return (AUTO, *COLLECTED_KINDS, *format_names())


def kind_problem(kind: str, *, mix: bool) -> str | None:
    """What is wrong with a `dataset_kind`; a `mix` cannot be part of a mix."""
    if kind in BUILTIN_FORMATS or kind in (AUTO, *COLLECTED_KINDS) or (mix and kind == MIX):
        return None
    known = (*source_kinds(), *((MIX,) if mix else ()))
    if kind in known:
        return None
    return f"dataset_kind must be one of {', '.join(known)}, got {kind!r}{did_you_mean(kind, known)}"
