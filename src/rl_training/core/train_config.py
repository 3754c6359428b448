"""The configuration of a run, checked together with the settings of its algorithm."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from pydantic import ValidationInfo, field_validator

from rl_training.config.fields import setting
from rl_training.config.limits import MAX_ENVS, MAX_SEEDS
from rl_training.config.mistakes import under, unknown_key
from rl_training.config.model import ConfigModel
from rl_training.config.run_fields import ControlFields
from rl_training.config.wording import shown
from rl_training.core.algorithms import ALGORITHMS
from rl_training.core.errors import ConfigError

_DEVICE = re.compile(r"auto|cpu|mps|cuda(:\d+)?")


class RunFields(ConfigModel):
    """A run's config as it is written down; what its `algo_kwargs` mean, the algorithm alone knows."""

    section: ClassVar[str] = "run"

    algo: str = setting(..., "algorithm to train; `rl-training describe ALGO` lists its algo_kwargs")
    env_id: str | None = setting(None, "Gymnasium environment; optional when offline data carries its spaces")
    seed: int = setting(0, "seed of every random stream of the run", ge=0)
    seeds: tuple[int, ...] | None = setting(
        None,
        "train these seeds as one batched computation, a run directory each; replaces seed",
        ge=0,
        longest=MAX_SEEDS,
    )
    total_timesteps: int = setting(..., "length: environment steps online, gradient steps offline", ge=1)
    online_timesteps: int = setting(
        0, "environment steps of an online phase after total_timesteps of offline training", ge=0
    )
    output_dir: str = setting("runs", "directory that receives the run directory")
    device: str = setting("auto", "auto, cpu, cuda, cuda:N or mps; auto takes a GPU when there is one")
    num_envs: int = setting(1, "environments stepped side by side while collecting", ge=1, most=MAX_ENVS)
    eval_episodes: int = setting(10, "episodes of one evaluation; 0 never evaluates", ge=0)
    log_interval: int = setting(1000, "steps between two rows of training metrics", ge=1)
    checkpoint_interval: int = setting(5000, "steps between two checkpoints; 0 saves only the last", ge=0)
    tags: tuple[str, ...] = setting((), "free words stored with the run")
    wrappers: tuple[str, ...] = setting(
        (), "functions put around every environment, written module:function; imported when training starts"
    )
    trackers: tuple[Literal["wandb", "mlflow"], ...] = setting(
        (), "where metrics go beside metrics.jsonl and TensorBoard: wandb, mlflow"
    )
    algo_kwargs: dict[str, Any] = setting({}, "settings of the algorithm, its data and its schedule (flat)")
    env_kwargs: dict[str, Any] = setting({}, "keyword arguments for gymnasium.make")

    @field_validator("output_dir", mode="before")
    @classmethod
    def _paths_are_text(cls, value: object) -> object:
        return os.fspath(value) if isinstance(value, os.PathLike) else value

    @field_validator("seeds")
    @classmethod
    def _seeds_differ(cls, value: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if value is not None and (not value or len(set(value)) < len(value)):
            raise ValueError(f"seeds must be different seeds, at least one, got {list(value)}")
        return value

    @field_validator("device")
    @classmethod
    def _device_is_known(cls, value: str) -> str:
        if not _DEVICE.fullmatch(value):
            raise ValueError(f"device must be auto, cpu, cuda, cuda:N or mps, got {value!r}")
        return value

    @field_validator("algo_kwargs", "env_kwargs", mode="before")
    @classmethod
    def _kwargs_are_plain(cls, value: object, info: ValidationInfo) -> object:
        """Stored as a private copy that YAML and JSON can hold, so that the checkpoint can carry it."""
        return _plain(value, info.field_name or "") if isinstance(value, Mapping) else value


class TrainConfig(RunFields):
    """Everything that defines a run; `algo_kwargs` holds what belongs to the algorithm and its data."""

    def run_config(self) -> ControlFields:
        """The algorithm's typed settings with every default filled in."""
        return ALGORITHMS.get(self.algo).settings.build(self.algo_kwargs, where="algo_kwargs")

    @classmethod
    def keys_elsewhere(cls, values: Mapping[str, object]) -> tuple[str, ...]:
        algo = values.get("algo")
        if not isinstance(algo, str) or algo not in ALGORITHMS:
            return ()
        return tuple(f"algo_kwargs.{name}" for name in ALGORITHMS.get(algo).settings.model_fields)

    @classmethod
    def further_mistakes(cls, values: Mapping[str, object]) -> list[str]:
        algo, given = values.get("algo"), values.get("algo_kwargs", {})
        if not isinstance(algo, str):
            return []
        try:
            recipe = ALGORITHMS.get(algo)
        except ConfigError as error:
            return [str(error)]
        lines: list[str] = []
        if recipe.online and values.get("env_id") is None:
            lines.append(f"env_id is required: {algo} collects its own data in an environment")
        lines += _online_mistakes(values, algo, online=recipe.online)
        if isinstance(given, Mapping):
            lines += under("algo_kwargs", _mistakes_of(recipe.settings, given))
        return lines


def parse_config(values: Mapping[str, object]) -> TrainConfig:
    """Check a mapping, however it was made, and return the run's configuration."""
    return TrainConfig.build(values)


def _online_mistakes(values: Mapping[str, object], algo: str, *, online: bool) -> list[str]:
    """What does not fit an online phase after offline training."""
    steps, given = values.get("online_timesteps", 0), values.get("algo_kwargs", {})
    if not isinstance(steps, int) or steps < 1:
        return []
    if online:
        return [
            f"online_timesteps must be 0 for {algo}, all of whose total_timesteps are online, got {steps}"
        ]
    warmup = given.get("warmup_steps_online", 0) if isinstance(given, Mapping) else 0
    if isinstance(warmup, int) and warmup >= steps:
        return [f"algo_kwargs.warmup_steps_online must be < online_timesteps ({steps}), got {warmup}"]
    return []


def _mistakes_of(run_class: type[ConfigModel], given: Mapping[str, object]) -> list[str]:
    """Mistakes inside algo_kwargs; a run key written there is pointed outside."""
    misplaced = (TrainConfig.model_fields.keys() - run_class.model_fields.keys()) & given.keys()
    lines = [unknown_key(key, (), elsewhere=(key,)) for key in sorted(misplaced)]
    try:
        run_class.build({key: value for key, value in given.items() if key not in misplaced})
    except ConfigError as error:
        lines += str(error).splitlines()
    return lines


def _plain(value: object, where: str) -> object:
    if isinstance(value, ConfigModel):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {key: _plain(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_plain(item, f"{where}[{index}]") for index, item in enumerate(value)]
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return float(value)
    raise ValueError(f"{where} must be plain data (number, text, list or mapping), got {shown(value)}")
