"""The configuration of a run, checked together with the settings of its algorithm; files of configs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import PrivateAttr, ValidationInfo, field_validator, model_validator

from rl_training.config.model import ConfigModel, setting, under, unknown_key
from rl_training.config.yaml import dump_yaml, parse_yaml, read_yaml_text
from rl_training.core.errors import ConfigError, did_you_mean, shown
from rl_training.core.files import reason
from rl_training.core.registry import ALGORITHMS
from rl_training.core.schema import MAX_BATCH, MAX_ENVS, MAX_ROWS, MAX_SAMPLES, MAX_SEEDS
from rl_training.core.types import State


class EarlyStoppingConfig(ConfigModel):
    """Stop when evaluation no longer gets better, or once it is good enough."""

    section: ClassVar[str] = "early stopping"

    metric: str = setting("eval_return_mean", "evaluation metric that is watched")
    patience: int = setting(5, "evaluations without progress after which the run stops", ge=1)
    min_delta: float = setting(0.0, "smallest change that counts as progress", ge=0)
    mode: Literal["max", "min"] = setting("max", "whether more or less of the metric is better")
    target: float | None = setting(None, "stop at once when the metric reaches this value")


class ControlFields(ConfigModel):
    """How long a run trains and what happens along the way."""

    section: ClassVar[str] = "run control"

    batch_size: int = setting(256, "transitions per gradient update", ge=1, most=MAX_BATCH)
    eval_interval: int = setting(5000, "steps between evaluations; 0 evaluates only at the end", ge=0)
    max_updates: int | None = setting(None, "stop after this many gradient updates", ge=1)
    max_epochs: int | None = setting(None, "stop after this many passes over the data (offline only)", ge=1)
    early_stopping: EarlyStoppingConfig | None = setting(None, "rule that ends the run early; null = none")
    learning_rate_schedule: Literal["constant", "linear", "cosine"] = setting(
        "constant", "how the learning rates fall over schedule_steps: not at all, or to zero"
    )
    warmup_steps: int = setting(
        0, "steps, counted like total_timesteps, in which the learning rates rise from zero", ge=0
    )
    schedule_steps: int | None = setting(
        None,
        "steps, counted like total_timesteps, that the schedule spans; null = all of the first run",
        ge=1,
    )
    schedule_groups: Literal["all", "actor", "critic"] = setting(
        "all", "networks whose learning rate follows the schedule"
    )
    keep_checkpoints: int = setting(3, "newest checkpoints that are kept", ge=1)
    save_best: bool = setting(True, "also keep the checkpoint with the best evaluation")
    compile: Literal["auto"] | bool = setting(
        "auto", "torch.compile for the update; auto = where the run is long enough to gain"
    )
    products: Literal["auto", "mkl", "onednn"] = setting(
        "auto",
        "library for the matrix products of updates on a processor; auto = the one that is faster here for "
        "these sizes (measured once), and only if its error is that of single precision",
    )
    eval_deterministic: bool = setting(True, "evaluate the policy's best action; false samples from it")
    eval_seed: int | None = setting(None, "seed of the evaluation episodes; null = derived from seed", ge=0)

    def mistaken_lengths(self, total: int | None, online: int | None) -> list[str]:
        """What is wrong with `total_timesteps` and `online_timesteps` for an algorithm with such settings."""
        return []

    @model_validator(mode="after")
    def _warmup_fits(self) -> Self:
        if self.schedule_steps is not None and self.warmup_steps > self.schedule_steps:
            raise ValueError(
                f"warmup_steps must be <= schedule_steps ({self.schedule_steps}), got {self.warmup_steps}"
            )
        return self


class RewardFields(ConfigModel):
    """How rewards are changed before anything is learned from them, online and offline alike."""

    section: ClassVar[str] = "rewards"

    reward_scale: float = setting(1.0, "factor of every reward", gt=0)
    reward_shift: float = setting(0.0, "added to every scaled reward")
    reward_clip: float | tuple[float, float] | None = setting(
        None, "bounds of the transformed reward: c for [-c, c], or [low, high]"
    )
    penalty: dict[str, float] = setting(
        {},
        "weight of each cost that is taken off the reward, such as {overheat: 3}; in what is learned from, "
        "while returns that are shown or judged stay as they are",
    )

    @model_validator(mode="after")
    def _clip_is_a_range(self) -> Self:
        for name, weight in self.penalty.items():
            if not 0.0 <= weight < float("inf"):
                raise ValueError(f"penalty of {name} must be >= 0, got {weight:g}")
        clip = self.reward_clip
        if isinstance(clip, tuple):
            if not clip[0] < clip[1]:
                raise ValueError(f"reward_clip must be [low, high] with low < high, got {clip}")
        elif clip is not None and clip <= 0:
            raise ValueError(f"reward_clip must be > 0 or [low, high], got {clip}")
        return self


class CollectionFields(ConfigModel):
    """How transitions are collected and how often is learned from them."""

    section: ClassVar[str] = "online collection"

    buffer_capacity: int = setting(
        1_000_000, "transitions the replay buffer holds; the oldest give way", ge=1, most=MAX_ROWS
    )
    train_frequency: int = setting(1, "steps of all environments between two rounds of updates", ge=1)
    gradient_updates_per_step: int = setting(1, "updates per collected transition", ge=1, most=MAX_SAMPLES)
    async_envs: bool = setting(False, "step each environment in its own process")
    collect_ahead: bool = setting(
        False,
        "step each environment in its own process while updates go on; an action is then chosen before the "
        "updates that follow the step before it",
    )


Share = float | tuple[float, float, int]
"""A share of a batch: a number, or [a, b, n], the line from a to b over n steps."""


class ShareFields(ConfigModel):
    """How much of a batch comes from logged data where a run also collects."""

    section: ClassVar[str] = "data and collection"

    offline_share: Share | None = setting(
        None,
        "share of each batch from the data while collecting: a number, or [a, b, n] for a line from a to b "
        "over n online steps; null = 0.5 where there is data",
        ge=0,
    )

    @model_validator(mode="after")
    def _shares_are_shares(self) -> Self:
        share = self.offline_share
        ends = share[:2] if isinstance(share, tuple) else () if share is None else (share,)
        if any(end > 1 for end in ends):
            raise ValueError(f"offline_share must be between 0 and 1, got {shown_share(share)}")
        if isinstance(share, tuple) and share[2] < 1:
            raise ValueError(f"offline_share must be [a, b, n] with n >= 1 steps, got {shown_share(share)}")
        return self


def shown_share(share: Share | None) -> object:
    """As YAML writes it."""
    return list(share) if isinstance(share, tuple) else share


class FineTuneFields(CollectionFields, ShareFields):
    """What happens in the online phase that follows offline training (`online_timesteps`)."""

    section: ClassVar[str] = "online phase"

    offline_data: Literal["mix", "append", "drop"] = setting(
        "mix",
        "the data in the online phase: mix takes offline_share of each batch from it, append draws from data "
        "and collected rows as one set, drop leaves it out",
    )
    warmup_steps_online: int = setting(
        0, "first online steps, in which the trained policy acts and nothing is updated", ge=0
    )
    batch_size_online: int | None = setting(
        None, "transitions per update in the online phase; null = batch_size", ge=1, most=MAX_BATCH
    )
    exploration_noise: float = setting(
        0.1,
        "standard deviation of the Gaussian noise, in units of [-1, 1], that a deterministic policy explores "
        "with; others draw their own actions",
        ge=0,
    )

    @model_validator(mode="after")
    def _share_is_used(self) -> Self:
        if self.offline_share is not None and self.offline_data != "mix":
            raise ValueError(
                f"offline_share must be null with offline_data {self.offline_data!r} (it belongs to mix), "
                f"got {shown_share(self.offline_share)}"
            )
        return self


class OnlineFields(ControlFields, RewardFields, CollectionFields):
    """How an online run collects transitions and how often it learns from them."""

    section: ClassVar[str] = "online collection"

    learning_starts: int = setting(
        1000,
        "transitions collected with random actions before the first update; enough that the first batches do "
        "not repeat a handful of rows",
        ge=0,
    )

    @model_validator(mode="after")
    def _no_epochs_online(self) -> Self:
        if self.max_epochs is not None:
            raise ValueError(
                f"max_epochs must be null online (no fixed data to pass over), got {self.max_epochs}; "
                "use max_updates"
            )
        return self


class SelfJudgingFields(ConfigModel):
    """What a run says of its own policy where nobody can try it out.

    Nothing here follows the run's own seed or discount: the candidates of a search are judged alike.
    """

    section: ClassVar[str] = "judging at the end"

    judge_at_end: Literal["auto"] | bool = setting(
        "auto",
        "estimate the trained policy's value from logged episodes (those of validation_share, where set); "
        "auto = without an environment, after at least as many updates as that takes itself",
    )
    judge_gamma: float = setting(
        0.99, "discount of that estimate, whatever the policy was trained with", gt=0, lt=1
    )
    judge_rows: int = setting(
        20_000,
        "logged rows that it takes at most, in whole episodes drawn with dataset_seed",
        ge=1,
        most=MAX_ROWS,
    )
    judge_updates: int | None = setting(
        None, "updates of its value networks; null = as many as judge_gamma needs (6,000 at 0.99)", ge=1
    )


_DEVICE = re.compile(r"auto|cpu|mps|cuda(:\d+)?")


def algorithm_settings(algo: str) -> type[ControlFields]:
    """The class of an algorithm's settings, which must know the settings of every run."""
    settings = ALGORITHMS.get(algo).settings
    if not issubclass(settings, ControlFields):
        raise ConfigError(
            f"the settings of algorithm {algo!r} must extend ControlFields, got {settings.__name__}"
        )
    return settings


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

    _settings: ControlFields = PrivateAttr()

    def complete(self, values: Mapping[str, object], *, valid: bool) -> list[str]:
        given = self.algo_kwargs if valid else values.get("algo_kwargs", {})
        settings, lines = _algorithm_part(values, given)
        if valid and settings is not None:
            self._settings = settings
        return lines

    def run_config(self) -> ControlFields:
        """The algorithm's typed settings with every default filled in, as they were built with the config."""
        return self._settings

    @classmethod
    def keys_elsewhere(cls, values: Mapping[str, object]) -> tuple[str, ...]:
        algo = values.get("algo")
        if not isinstance(algo, str) or algo not in ALGORITHMS:
            return ()
        return tuple(f"algo_kwargs.{name}" for name in algorithm_settings(algo).model_fields)


def parse_config(values: Mapping[str, object]) -> TrainConfig:
    """Check a mapping, however it was made, and return the run's configuration."""
    return TrainConfig.build(values)


def _algorithm_part(values: Mapping[str, object], given: object) -> tuple[ControlFields | None, list[str]]:
    """The typed settings in `algo_kwargs`, and what is wrong with them or with the run for its algorithm.

    A run key that is written in `algo_kwargs` is pointed outside.
    """
    algo = values.get("algo")
    if not isinstance(algo, str):
        return None, []
    try:
        recipe = ALGORITHMS.get(algo)
    except ConfigError as error:
        return None, [str(error)]
    lines: list[str] = []
    if recipe.online and values.get("env_id") is None:
        lines.append(f"env_id is required: {algo} collects its own data in an environment")
    lines += _online_mistakes(values, algo, online=recipe.online)
    if not isinstance(given, Mapping):
        return None, lines
    kind = algorithm_settings(algo)
    misplaced = (TrainConfig.model_fields.keys() - kind.model_fields.keys()) & given.keys()
    lines += under("algo_kwargs", [unknown_key(key, (), elsewhere=(key,)) for key in sorted(misplaced)])
    try:
        known = {key: value for key, value in given.items() if key not in misplaced}
        settings = kind.build(known, where="algo_kwargs")
        lengths = (values.get(name) for name in ("total_timesteps", "online_timesteps"))
        lines += settings.mistaken_lengths(*(each if isinstance(each, int) else None for each in lengths))
        return settings, lines
    except ConfigError as error:
        return None, [*lines, *str(error).splitlines()]


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


@dataclass(frozen=True)
class PackagedConfig:
    """A config that comes with the package; `summary` is the first comment of its file."""

    name: str
    algo: str
    env_id: str | None
    total_timesteps: int
    summary: str
    text: str


Override = str | tuple[str, object]
"""`algo_kwargs.gamma=0.98` as a user writes it, or the key and a value that needs no reading."""


def load_config(
    path_or_name: str | os.PathLike[str],
    overrides: Iterable[Override] = (),
    *,
    start: Iterable[Override] = (),
) -> TrainConfig:
    """Read a YAML file or a packaged config (`sac/pendulum`), apply overrides and check it.

    Overrides must not contradict each other; those of `start` come before them and give way.
    """
    values = read_settings(path_or_name, "config", TrainConfig.model_fields, "algo: sac")
    apply_overrides(values, start)
    apply_overrides(values, overrides)
    return parse_config(values)


def config_to_yaml(config: TrainConfig, *, settings: ControlFields | None = None) -> str:
    """YAML that `load_config` reads back; with `settings`, every default of algo_kwargs is written out."""
    values = config.to_dict()
    if settings is not None:
        values["algo_kwargs"] = settings.to_dict()
    return dump_yaml(values)


def list_packaged_configs() -> list[PackagedConfig]:
    """The packaged configs in alphabetical order."""
    return [_packaged(name, file) for name, file in sorted(_packaged_files("config").items())]


def _packaged_files(kind: str) -> dict[str, Traversable]:
    """The packaged files of a kind by their names, those of a folder as `folder/name`."""

    def inside(folder: Traversable, prefix: str) -> Iterator[tuple[str, Traversable]]:
        for file in folder.iterdir():
            if file.is_dir():
                yield from inside(file, f"{prefix}{file.name}/")
            elif file.name.endswith(".yaml"):
                yield f"{prefix}{file.name.removesuffix('.yaml')}", file

    return dict(inside(files("rl_training") / "assets" / f"{kind}s", ""))


def _packaged(name: str, file: Traversable) -> PackagedConfig:
    text = file.read_text(encoding="utf-8")
    values = parse_yaml(text, name)
    comment = next((line.lstrip("# ") for line in text.splitlines() if line.startswith("#")), "")
    return PackagedConfig(
        name, values["algo"], values.get("env_id"), values["total_timesteps"], comment.rstrip("."), text
    )


def read_settings(source: str | os.PathLike[str], kind: str, known: Iterable[str], example: str) -> State:
    """The mapping in a YAML file, or in a packaged one of this kind: `config`, `sweep` or `tune`.

    Of a file that sets none of the `known` ones nothing is told: it may be any file of the user's, and what
    is wrong with its text would be in the error, for others to see.
    """
    text, names = _read_text(os.fspath(source), kind), "|".join(known)
    must = f"it must hold a mapping such as `{example}`"
    if re.search(rf"""(?:^|[{{,])\s*["']?(?:{names})["']?\s*:""", text, re.MULTILINE) is None:
        raise ConfigError(f"{source} is not a {kind}: it sets none of the settings of one; {must}")
    values = parse_yaml(text, os.fspath(source))
    if not isinstance(values, dict):
        raise ConfigError(f"{source} is not a {kind}: {must}")
    return values


def _read_text(source: str, kind: str) -> str:
    path = Path(source)
    try:
        if path.is_file():
            return read_yaml_text(path)
    except OSError as error:
        raise ConfigError(f"{source} cannot be read: {reason(error)}") from None
    packaged = _packaged_files(kind)
    name = source.removesuffix(".yaml")
    if name not in packaged:
        hint, known = did_you_mean(name, packaged), f"packaged: {', '.join(sorted(packaged))}"
        if kind == "config":
            known = "`rl-training configs` lists the packaged ones"
        raise ConfigError(f"{kind} {source!r} is neither a file nor a packaged {kind}{hint}; {known}")
    return packaged[name].read_text(encoding="utf-8")


def apply_overrides(values: State, overrides: Iterable[Override], option: str = "--set") -> None:
    """Put each into the mapping; two that say different things are refused."""
    given = [_apply_override(values, override, option) for override in overrides]
    for names, value in given:
        if not _holds(values, names, value):
            both = f"as {shown(value)} and as {shown(_found(values, names))}"
            raise ConfigError(f"{'.'.join(names)} is given twice, {both}: leave one of them out")


def _holds(values: object, names: Sequence[str], value: object) -> bool:
    """Whether a mapping still says what was put into it; parts may have been added to a mapping in it."""
    found = _found(values, names)
    if isinstance(value, dict) and isinstance(found, dict):
        return all(_holds(found, [name], part) for name, part in value.items())
    return found == value


def _found(values: object, names: Sequence[str]) -> object:
    for name in names:
        values = values.get(name) if isinstance(values, dict) else None
    return values


def _apply_override(values: State, override: Override, option: str) -> tuple[list[str], object]:
    """Put one into the mapping, text read as YAML; returns where and what."""
    if isinstance(override, str):
        key, equals, text = override.partition("=")
        if not equals or not all(key.strip().split(".")):
            raise ConfigError(f"{option} needs key=value (such as algo_kwargs.gamma=0.98), got {override!r}")
        value, told = parse_yaml(text, f"{option} {key}"), f"{option} {override}"
    else:
        key, value = override
        told = f"{key} cannot be set"
    names = key.strip().split(".")
    level = values
    for depth, name in enumerate(names[:-1], start=1):
        inner = level.get(name)
        if inner is None:
            inner = level[name] = {}
        if not isinstance(inner, dict):
            raise ConfigError(f"{told}: {'.'.join(names[:depth])} is not a mapping, got {shown(inner)}")
        level = inner
    level[names[-1]] = value
    return names, deepcopy(value)
