"""Configs as YAML: files, packaged ones found by name, `--set` overrides, and writing one out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from rl_training.config.run_fields import ControlFields
from rl_training.config.wording import did_you_mean, shown
from rl_training.config.yaml_text import dump_yaml, parse_yaml, read_yaml_text
from rl_training.core.errors import ConfigError
from rl_training.core.plain import State
from rl_training.core.train_config import TrainConfig, parse_config


@dataclass(frozen=True)
class PackagedConfig:
    """A config that comes with the package; `summary` is the first comment of its file."""

    name: str
    algo: str
    env_id: str | None
    total_timesteps: int
    summary: str
    text: str


def load_config(path_or_name: str | os.PathLike[str], overrides: Sequence[str] = ()) -> TrainConfig:
    """Read a YAML file or a packaged config (`sac/pendulum`), apply `key=value` overrides and check it."""
    values = _read_mapping(os.fspath(path_or_name))
    for override in overrides:
        apply_override(values, override)
    return parse_config(values)


def config_to_yaml(config: TrainConfig, *, settings: ControlFields | None = None) -> str:
    """YAML that `load_config` reads back; with `settings`, every default of algo_kwargs is written out."""
    values = config.to_dict()
    if settings is not None:
        values["algo_kwargs"] = settings.to_dict()
    return dump_yaml(values)


def list_packaged_configs() -> list[PackagedConfig]:
    """The packaged configs in alphabetical order."""
    return [_packaged(name, file) for name, file in sorted(_packaged_files().items())]


def _packaged_files() -> dict[str, Traversable]:
    found: dict[str, Traversable] = {}
    for folder in (files("rl_training") / "assets" / "configs").iterdir():
        if folder.is_dir():
            for file in folder.iterdir():
                if file.name.endswith(".yaml"):
                    found[f"{folder.name}/{file.name.removesuffix('.yaml')}"] = file
    return found


def _packaged(name: str, file: Traversable) -> PackagedConfig:
    text = file.read_text(encoding="utf-8")
    values = parse_yaml(text, name)
    comment = next((line.lstrip("# ") for line in text.splitlines() if line.startswith("#")), "")
    return PackagedConfig(
        name, values["algo"], values.get("env_id"), values["total_timesteps"], comment.rstrip("."), text
    )


def _read_mapping(source: str) -> State:
    values = parse_yaml(_read_text(source), source)
    if not isinstance(values, dict):
        raise ConfigError(f"{source} must hold a mapping such as `algo: sac`, got {shown(values)}")
    return values


def _read_text(source: str) -> str:
    path = Path(source)
    try:
        if path.is_file():
            return read_yaml_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{source} cannot be read: {error}") from None
    packaged = _packaged_files()
    name = source.removesuffix(".yaml")
    if name not in packaged:
        hint = did_you_mean(name, packaged)
        raise ConfigError(
            f"config {source!r} is neither a file nor a packaged config{hint}; "
            "`rl-training configs` lists the packaged ones"
        )
    return packaged[name].read_text(encoding="utf-8")


def apply_override(values: State, override: str) -> None:
    """Put one `algo_kwargs.gamma=0.98` into the mapping; the value is read as YAML."""
    key, equals, text = override.partition("=")
    names = key.strip().split(".")
    if not equals or not all(names):
        raise ConfigError(f"--set needs key=value (such as algo_kwargs.gamma=0.98), got {override!r}")
    level = values
    for depth, name in enumerate(names[:-1], start=1):
        inner = level.get(name)
        if inner is None:
            inner = level[name] = {}
        if not isinstance(inner, dict):
            raise ConfigError(
                f"--set {override}: {'.'.join(names[:depth])} is not a mapping, got {shown(inner)}"
            )
        level = inner
    level[names[-1]] = parse_yaml(text, f"--set {key}")
