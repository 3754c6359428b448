"""A search: one file that says what may vary, within which limits, and what counts as better."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import model_validator

from rl_training.config import ConfigModel, setting
from rl_training.config.wording import shown
from rl_training.core.errors import ConfigError
from rl_training.core.train_config import parse_config
from rl_training.sweeps.sweep_config import apply_overrides, read_study


class Parameter(ConfigModel):
    """The values one setting may take: a range, or a list of choices."""

    low: float | int | None = setting(None, "smallest value; whole numbers on both ends mean a whole number")
    high: float | int | None = setting(None, "largest value")
    log: bool = setting(False, "search on a logarithmic scale")
    step: float | int | None = setting(None, "distance between values", gt=0)
    choices: tuple[Any, ...] | None = setting(None, "values to choose from, of any kind")

    @model_validator(mode="after")
    def _is_range_or_choices(self) -> Self:
        if self.choices is not None:
            if not self.choices or self.low is not None or self.high is not None:
                raise ValueError("choices must be a list of at least one value, without low and high")
        elif self.low is None or self.high is None or self.low >= self.high:
            raise ValueError(f"low must be < high, got {self.low} and {self.high}; or give choices")
        elif self.log and (self.low <= 0 or self.step is not None):
            raise ValueError(f"low must be > 0 and step left out where log is true, got {self.low}")
        return self

    @property
    def labels(self) -> dict[str | int | float | bool | None, Any]:
        """Choices by a name that a database can hold: a list is named by its JSON."""
        return {
            json.dumps(value) if isinstance(value, list | tuple | dict) else value: value
            for value in self.choices or ()
        }

    @property
    def extremes(self) -> list[Any]:
        return [self.low, self.high] if self.choices is None else list(self.choices)


class TuneConfig(ConfigModel):
    """What is searched: trials of one run each, proposed by what earlier ones showed."""

    base: str | dict[str, object] = setting(..., "config that all trials start from: name, file or mapping")
    space: dict[str, object] = setting(..., "for each key its range {low, high, log, step} or its {choices}")
    trials: int = setting(20, "trials in all, over all calls", ge=1)
    metric: str = setting(
        "auto",
        "final metric that is compared: any of a run's, or auto (eval_return_mean with an environment, "
        "judge_score without)",
    )
    mode: Literal["max", "min"] = setting("max", "whether more or less of the metric is better")
    prune: bool = setting(True, "stop a trial whose evaluations are worse than the median of the others")
    seed: int = setting(0, "seed of the proposals", ge=0)
    retries: int = setting(1, "further attempts at a trial that crashed", ge=0)
    output_dir: str | None = setting(None, "directory of the search; null = runs/ and the name of the file")

    @classmethod
    def further_mistakes(cls, values: Mapping[str, object]) -> list[str]:
        space, base = values.get("space"), values.get("base")
        if not isinstance(space, Mapping):
            return []
        if not space:
            return ["space must name at least one setting, got {}"]
        lines: list[str] = []
        for key, given in space.items():
            try:
                parameter = parse_parameter(key, given)
            except ConfigError as error:
                lines += str(error).splitlines()
                continue
            if isinstance(base, str | Mapping):
                lines += [line for value in parameter.extremes for line in _mistakes_with(base, key, value)]
        return list(dict.fromkeys(lines))

    @property
    def parameters(self) -> dict[str, Parameter]:
        return {key: parse_parameter(key, given) for key, given in self.space.items()}


def load_tune_config(source: str | os.PathLike[str]) -> TuneConfig:
    """Read a search file, or a packaged one by its name."""
    return TuneConfig.build(read_study(source, "tune"))


def parse_parameter(key: str, given: Any) -> Parameter:
    if not isinstance(given, Mapping):
        raise ConfigError(f"space.{key} must be a mapping such as {{low: 0, high: 1}}, got {shown(given)}")
    return Parameter.build(given, where=f"space.{key}")


def _mistakes_with(base: str | Mapping[str, object], key: str, value: object) -> list[str]:
    """A value the algorithm would refuse is found before the first trial, not in the tenth."""
    try:
        parse_config(apply_overrides(base, {key: value}))
    except ConfigError as error:
        return str(error).splitlines()
    return []
