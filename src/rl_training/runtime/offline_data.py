"""The data of an offline run: its recipe carried out, or a dataset given in memory, ready to train on."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from rl_training.algorithms.recipe import get_recipe
from rl_training.config.data import (
    ASKED_FIELDS,
    COLLECTED_KINDS,
    MIX,
    DatasetSource,
    OfflineDataFields,
    OfflineFields,
)
from rl_training.config.run import TrainConfig
from rl_training.core.errors import ConfigError, DataError
from rl_training.core.signals import Signals
from rl_training.core.spaces import Box, Choice, Spaces
from rl_training.data.formulas import log_with_costs, mean_action, with_history
from rl_training.data.info import DataInfo, reference_returns
from rl_training.data.log import EpisodeLog
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.prepare import Fitted, PreparedDataset, process_offline_dataset
from rl_training.data.read import load_log, transitions_of
from rl_training.data.reading import (
    DataWarning,
    action_range,
    check_finite,
    few_levels,
    few_levels_words,
)
from rl_training.data.rows import as_array
from rl_training.data.splits import LoggedEpisodes, logged_episodes
from rl_training.policies.policy import load_saved_policy
from rl_training.runtime.envs import EnvLike, spaces_of
from rl_training.runtime.record import Rollout, collect_in_memory

DEFAULT_GAMMA = 0.99
"""Discount of returns for an algorithm that has none of its own (BC)."""


def build_offline_dataset(
    config: TrainConfig,
    *,
    dataset: TransitionDataset | None = None,
    needs: frozenset[str] | None = None,
    env: EnvLike | None = None,
    fitted: Fitted | None = None,
    keep_logged: bool = False,
) -> PreparedDataset:
    """The one place that prepares training data; `dataset` in memory replaces the config's recipe.

    `needs` are the optional fields that the learner asks for (default: those of the config's algorithm);
    `fitted` is what an earlier part of the run found in the data; `keep_logged` keeps episodes as they were
    logged beside what is trained on.
    """
    settings = data_settings(config)
    limits: list[int | None] | None
    if dataset is not None:
        _check_given(dataset)
        fill = () if fitted is None or fitted.signals is None else fitted.signals.first_action
        dataset = dataset.with_costs(settings.costs).with_history(settings.history, settings.rate, fill)
        parts, limits, by_time = [dataset], None, [settings.discount_by_time]
    else:
        sources = data_sources(settings)
        parts = load_parts(config, env, None if fitted is None else fitted.signals)
        limits = [source.dataset_size for _, source in sources]
        by_time = discounted_by_time(settings)
    info, recipe = parts[0].info, get_recipe(config.algo)
    needs = recipe.needs(settings) if needs is None else needs
    if recipe.learner.follows_signals and info.signals is not None and info.signals.program.plain_places:
        needs |= {"signal_states"}
    logged = _logged(parts, settings, by_time) if keep_logged else None
    prepared = process_offline_dataset(
        parts,
        settings,
        infer_env_spaces(config, dataset=parts[0], env=env) if fitted is None else fitted.spaces,
        gamma=getattr(settings, "gamma", DEFAULT_GAMMA),
        needs=needs,
        limits=limits,
        by_time=by_time,
        reference=reference_returns(
            config.env_id,
            configured=(settings.reference_min_return, settings.reference_max_return),
            carried=info.reference,
            carried_env_id=info.env_id,
        ),
        owned=dataset is None,
        wanted_by=config.algo,
        uses_rewards=recipe.learner.uses_rewards,
        fitted=fitted,
    )
    return replace(prepared, logged=logged)


def load_parts(
    config: TrainConfig, env: EnvLike | None = None, signals: Signals | None = None
) -> list[TransitionDataset]:
    """The rows of a config's recipe as they were logged, one dataset per part.

    Where observations are signals, the past of an episode that begins is filled alike in all parts: as in
    those `signals`, or with the mean action of all rows.
    """
    settings, environment = data_settings(config), config.env_id if env is None else env
    kept = settings.dataset_in_memory
    logs = [_load(kind, source, config, environment, kept) for kind, source in data_sources(settings)]
    fill = () if signals is None else signals.first_action
    if not fill and any(log.info.signals is not None for log in logs):
        fill = mean_action(logs)
    return [transitions_of(log, in_memory=kept, first_action=fill) for log in logs]


def discounted_by_time(settings: OfflineDataFields) -> list[bool]:
    """For each part of the data, whether its steps are discounted by their duration."""
    return [source.discount_by_time for _, source in data_sources(settings)]


def _logged(
    parts: Sequence[TransitionDataset], settings: OfflineDataFields, by_time: Sequence[bool]
) -> LoggedEpisodes | str | None:
    if not isinstance(settings, OfflineFields):
        return None
    try:
        return logged_episodes(parts, settings, by_time)
    except DataError as problem:
        return str(problem)


def infer_env_spaces(
    config: TrainConfig, *, dataset: TransitionDataset | None = None, env: EnvLike | None = None
) -> Spaces:
    """Sizes and bounds: of the environment, else of the config, else those that the data carries."""
    environment = config.env_id if env is None else env
    if environment is not None:
        found = spaces_of(environment, config.env_kwargs)
        return found if dataset is None else _agreed(found, dataset.info)
    settings = data_settings(config)
    if dataset is None:
        kind, source = data_sources(settings)[0]
        log = _load(kind, source, config, None, settings.dataset_in_memory)
        dataset = transitions_of(log, in_memory=settings.dataset_in_memory)
    return _spaces_without_env(dataset, settings)


def _agreed(spaces: Spaces, info: DataInfo) -> Spaces:
    """The spaces of an environment, whose choices are those of the data where it says what they are."""
    if info.choices and tuple(info.choices) != spaces.choices:
        parts = "; ".join(map(str, spaces.parts))
        raise ConfigError(
            f"columns.levels of {info.source} do not fit the environment, whose action is {parts}; leave "
            "them out"
        )
    if info.masked != spaces.masked:
        told, silent = ("the environment", info.source) if spaces.masked else (info.source, "the environment")
        raise ConfigError(
            f"action_mask must be known to both: {told} has one, {silent} does not; leave it out, or the "
            "environment (env_id)"
        )
    return spaces


def _spaces_without_env(dataset: TransitionDataset, settings: OfflineDataFields) -> Spaces:
    shape = dataset.store.columns["actions"].shape
    obs_dim, columns = dataset.seen_dim, shape[1] if len(shape) > 1 else 1
    choices = dataset.info.choices or (None,) * columns
    if len(choices) != columns:
        raise DataError(f"{dataset.info.source}: says of {len(choices)} actions what they are, has {columns}")
    numbers = choices.count(None)
    if settings.action_low is not None and settings.action_high is not None:
        given = {f"algo_kwargs.{name}": getattr(settings, name) for name in ("action_low", "action_high")}
        tell_few_levels(dataset)
        return stated_spaces(obs_dim, choices, given, masked=dataset.info.masked)
    if not numbers:
        return Spaces.of(obs_dim, [each for each in choices if each is not None], masked=dataset.info.masked)
    tell_few_levels(dataset)
    if settings.action_bounds == "data":
        bounds = _range_of_data(dataset, choices)
        return stated_spaces(obs_dim, choices, bounds, masked=dataset.info.masked)
    if dataset.info.spaces is not None:
        return dataset.info.spaces
    if dataset.info.env_id is not None:
        return _agreed(spaces_of_named(dataset.info.env_id, dataset.info.source), dataset.info)
    low, high = _of_numbers(action_range(as_array(dataset.store.columns["actions"])), choices)
    raise ConfigError(
        f"env_id is required: {dataset.info.source} does not carry its action bounds; give env_id, or "
        "algo_kwargs.action_low and algo_kwargs.action_high (--action-low, --action-high; the data spans "
        f"{_listed(low)} to {_listed(high)}), or take that range with algo_kwargs.action_bounds: data"
    )


def stated_spaces(
    obs_dim: int, choices: Sequence[Choice | None], bounds: Mapping[str, Sequence[float]], *, masked: bool
) -> Spaces:
    """Spaces of choices, and of numbers between the two `bounds` (by name), one of each or one for all."""
    numbers = list(choices).count(None)
    for name, given in bounds.items():
        if not numbers:
            raise ConfigError(f"{name} must be null, where every action is a choice")
        if len(given) not in (1, numbers):
            raise ConfigError(f"{name} must have 1 or {numbers} numbers, got {len(given)}")
    sides = [iter(given if len(given) > 1 else [given[0]] * numbers) for given in bounds.values()]
    parts = [Box(*map(next, sides)) if each is None else each for each in choices]
    return Spaces.of(obs_dim, parts, masked=masked)


def spaces_of_log(log: EpisodeLog, bounds: Mapping[str, Sequence[float]]) -> Spaces:
    """The same for a log whose numbers lie between stated `bounds`; one of choices alone needs none."""
    obs_dim, columns = (values.shape[1] if values.ndim > 1 else 1 for values in (log.obs, log.actions))
    return stated_spaces(obs_dim, log.info.choices or (None,) * columns, bounds, masked=log.info.masked)


def tell_few_levels(dataset: TransitionDataset) -> None:
    """What is learned as a number although it may be a choice is said, and not decided."""
    actions = as_array(dataset.store.columns["actions"])
    for index, levels in few_levels(actions, dataset.info.choices).items():
        name = dataset.info.name_of("action", index)
        warnings.warn(few_levels_words(name, levels), DataWarning, stacklevel=2)


def spaces_of_named(env_id: str, source: str) -> Spaces:
    """The spaces of an environment that a data file names: one that is known here, imported for no file."""
    import gymnasium

    if ":" in env_id or env_id not in gymnasium.registry:
        raise ConfigError(
            f"env_id is required: {source} names the environment {env_id!r}, which is not registered here "
            "and is "
            "not imported because a file says so; give env_id (--env-id) yourself, or action_low and "
            "action_high"
        )
    return spaces_of(env_id)


def _range_of_data(dataset: TransitionDataset, choices: Sequence[Choice | None]) -> dict[str, list[float]]:
    """Bounds that the data itself reaches, of the actions that are numbers."""
    actions = as_array(dataset.store.columns["actions"])
    low, high = action_range(actions if actions.ndim > 1 else actions[:, None])
    constant = [index for index, each in enumerate(choices) if each is None and low[index] >= high[index]]
    if constant:
        index = constant[0]
        raise DataError(
            f"{dataset.info.source}: {dataset.info.name_of('action', index)} is {low[index]:g} in every "
            "row, so its bounds cannot come from the data; leave it out or give action_low and action_high"
        )
    low, high = _of_numbers((low, high), choices)
    return {"low": low.tolist(), "high": high.tolist()}


def _of_numbers(
    bounds: tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]], choices: Sequence[Choice | None]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Bounds without those of choices."""
    kept = np.array([each is None for each in choices])
    low, high = (np.atleast_1d(bound)[kept] for bound in bounds)
    return low, high


def _listed(values: npt.NDArray[np.float64]) -> str:
    shown = ", ".join(f"{value:g}" for value in values[:6])
    return f"[{shown}{', …' if len(values) > 6 else ''}]"


def data_settings(config: TrainConfig) -> OfflineDataFields:
    """The dataset fields of a config."""
    settings = config.run_config()
    if not isinstance(settings, OfflineDataFields):
        raise ConfigError(f"algo must learn from data to have a dataset, got {config.algo!r}")
    return settings


def data_sources(settings: OfflineDataFields) -> list[tuple[str, DatasetSource]]:
    """The kind and the fields of every part of the data."""
    if settings.dataset_kind == MIX:
        asked = {name: getattr(settings, name) for name in ASKED_FIELDS}
        return [(part.dataset_kind, part.model_copy(update=asked)) for part in settings.dataset_parts]
    return [(settings.dataset_kind, settings)]


def _load(
    kind: str, source: DatasetSource, config: TrainConfig, env: EnvLike | None, in_memory: bool
) -> EpisodeLog:
    """Carry out the recipe of one part; collected data is in memory either way."""
    if kind not in COLLECTED_KINDS:
        return load_log(kind, source, in_memory=in_memory)
    if env is None:
        raise ConfigError(f"env_id is required: dataset_kind '{kind}' collects its data in an environment")
    policy = None
    if kind != "random":
        if source.dataset_checkpoint is None:
            raise ConfigError("dataset_checkpoint is required by dataset_kind 'checkpoint'")
        # On the CPU, so that the same one gives the same rows everywhere.
        policy = load_saved_policy(source.dataset_checkpoint, device="cpu")
    rows = source.rows_to_collect
    rollout = Rollout(
        env,
        config.env_kwargs,
        source.dataset_seed,
        policy=policy,
        noise=source.dataset_noise,
        random_share=source.dataset_random_share,
    )
    with rollout:
        name = f"{kind} data of {env} ({rows} rows, seed {source.dataset_seed})"
        log = log_with_costs(collect_in_memory(rollout, rows, name), source.costs)
        return with_history(log, source.history, source.rate)


def _check_given(dataset: TransitionDataset) -> None:
    """What loaders check of a file, for a dataset that never was one."""
    if not len(dataset):
        raise DataError("the dataset is empty (0 rows)")
    for name, column in dataset.store.columns.items():
        check_finite(name, as_array(column), dataset.info.source)
