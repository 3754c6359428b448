"""A sweep: one file that stands for many configurations, each trained with several seeds."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping
from copy import deepcopy
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from pydantic import field_validator

from rl_training.config import ConfigModel, setting
from rl_training.config.wording import did_you_mean, shown
from rl_training.config.yaml_text import parse_yaml, read_yaml_text
from rl_training.core.config_files import load_config
from rl_training.core.errors import ConfigError
from rl_training.core.train_config import TrainConfig, parse_config
from rl_training.experiment.runs import directory_name


class SweepConfig(ConfigModel):
    """Every variant with every point of the grid, and each of these with every seed."""

    base: str | dict[str, object] = setting(..., "config that all runs start from: name, file or mapping")
    grid: dict[str, Any] = setting({}, "for each key a list of values; all combinations are run")
    variants: tuple[dict[str, object], ...] = setting((), "overrides, each a mapping; `name` names it")
    seeds: tuple[int, ...] = setting((0,), "seeds of every configuration", ge=0)
    output_dir: str | None = setting(None, "directory of the sweep; null = runs/ and the name of the file")
    stack: Literal["auto"] | bool = setting(
        "auto", "train the seeds of a configuration as one batch; auto = small networks and short runs"
    )
    metric: str = setting(
        "auto",
        "what configurations are ranked by in the end: auto (eval_return_mean with an environment, "
        "judge_score without), judge_score, or none",
    )
    retries: int = setting(2, "further attempts at a run that crashed", ge=0)

    @field_validator("seeds")
    @classmethod
    def _seeds_differ(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if not value or len(set(value)) < len(value):
            raise ValueError(f"seeds must be different seeds, at least one, got {list(value)}")
        return value

    @classmethod
    def further_mistakes(cls, values: Mapping[str, object]) -> list[str]:
        grid = values.get("grid", {})
        if not isinstance(grid, Mapping):
            return []
        return [
            f"grid.{key} must be a list of at least one value, got {shown(choices)}"
            for key, choices in grid.items()
            if not isinstance(choices, list | tuple) or not choices
        ]


def load_sweep_config(source: str | os.PathLike[str]) -> SweepConfig:
    """Read a sweep file, or a packaged sweep by its name."""
    return SweepConfig.build(read_study(source, "sweep"))


def read_study(source: str | os.PathLike[str], kind: str) -> dict[str, object]:
    """The mapping in a YAML file, or in a packaged one of this kind (`sweep` or `tune`)."""
    path, name = Path(source), os.fspath(source).removesuffix(".yaml")
    folder = files("rl_training") / "assets" / f"{kind}s"
    packaged = {file.name.removesuffix(".yaml"): file for file in folder.iterdir()}
    try:
        text = read_yaml_text(path) if path.is_file() or name not in packaged else None
    except FileNotFoundError:
        raise ConfigError(
            f"{kind} {os.fspath(source)!r} is neither a file nor packaged{did_you_mean(name, packaged)}; "
            f"packaged: {', '.join(sorted(packaged))}"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{source} cannot be read: {error}") from None
    values = parse_yaml(packaged[name].read_text(encoding="utf-8") if text is None else text, str(source))
    if not isinstance(values, dict):
        raise ConfigError(f"{source} must hold a mapping such as `base: sac/pendulum`, got {shown(values)}")
    return values


def expand(sweep: SweepConfig) -> dict[str, TrainConfig]:
    """The configurations by name; the mistakes of all of them are reported together."""
    mistakes: list[str] = []
    found: dict[str, TrainConfig] = {}
    for name, overrides in _combinations(sweep):
        if name in found:
            mistakes.append(f"run name {name!r} is used twice; give each of the variants a `name` of its own")
            continue
        try:
            found[name] = parse_config(apply_overrides(sweep.base, overrides))
        except ConfigError as error:
            mistakes += [f"{name}: {line}" for line in str(error).splitlines()]
    if mistakes:
        raise ConfigError("\n".join(mistakes))
    return found


def apply_overrides(base: str | Mapping[str, object], overrides: Mapping[str, object]) -> dict[str, object]:
    """The base config with dotted keys replaced; the override `base` takes another config instead."""
    chosen = overrides.get("base", base)
    values = deepcopy(dict(chosen)) if isinstance(chosen, Mapping) else load_config(str(chosen)).to_dict()
    for key, value in overrides.items():
        if key == "base":
            continue
        level, names = values, key.split(".")
        for name in names[:-1]:
            level = level.setdefault(name, {})
            if not isinstance(level, dict):
                raise ConfigError(f"{key} cannot be set: {name} is not a mapping, got {shown(level)}")
        level[names[-1]] = deepcopy(value)
    return values


def _combinations(sweep: SweepConfig) -> Iterator[tuple[str, dict[str, object]]]:
    """Names and overrides; a key that has one value only does not appear in a name."""
    telling = [key for key, choices in sweep.grid.items() if len(choices) > 1]
    for variant in sweep.variants or ({},):
        own = {key: value for key, value in variant.items() if key != "name"}
        words = [_label(key, value) for key, value in own.items()]
        if "name" in variant:
            words = [str(variant["name"])]
        for point in itertools.product(*sweep.grid.values()):
            overrides = dict(zip(sweep.grid, point, strict=True))
            parts = [*words, *(_label(key, overrides[key]) for key in telling)]
            yield directory_name(*(parts or ["base"])), {**own, **overrides}


def _label(key: str, value: object) -> str:
    """`gamma=0.98`; an algorithm or a base config speaks for itself."""
    text = "x".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return text if key in ("algo", "base") else f"{key.rpartition('.')[2]}={text}"
