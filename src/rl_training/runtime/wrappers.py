"""Environment wrappers that a user names in a config as `module:function`."""

from __future__ import annotations

from collections.abc import Sequence

from rl_training.core.errors import ConfigError
from rl_training.core.registry import load_object
from rl_training.runtime.environments import Wrapper, describe_error


def load_wrappers(names: Sequence[str]) -> list[Wrapper]:
    """Import what the user wrote. Never called with names out of a checkpoint or a data file."""
    return [_load(name) for name in names]


def _load(name: str) -> Wrapper:
    if ":" not in name:
        raise ConfigError(f"wrappers must be written module:function, got {name!r}")
    try:
        found = load_object(name)
    except Exception as error:  # importing runs the user's module, which may raise anything
        raise ConfigError(f"wrapper {name!r} cannot be imported: {describe_error(error)}") from error
    if not callable(found):
        raise ConfigError(f"wrapper {name!r} must be a function that takes an environment, got {found!r}")
    return found
