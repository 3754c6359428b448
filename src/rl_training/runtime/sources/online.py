"""Learning from environments that the run steps itself, with or without logged data beside them."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

from rl_training.algorithms.learner import Learner
from rl_training.config.data_fields import OnlineDataFields
from rl_training.config.data_kinds import NO_DATA
from rl_training.config.run_fields import OnlineFields, RewardFields, ShareFields
from rl_training.config.wording import shown
from rl_training.core.errors import ConfigError
from rl_training.core.plain import Facts, State
from rl_training.core.train_config import TrainConfig
from rl_training.core.transforms import Transform, reward_transform
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.reference_scores import reference_returns
from rl_training.runtime.environments import EnvLike, spaces_of
from rl_training.runtime.loop import BatchSource, Phase
from rl_training.runtime.offline_data import build_offline_dataset
from rl_training.runtime.run import Evaluator
from rl_training.runtime.sources.base import check_env_fits
from rl_training.runtime.sources.collection import Exploration, OnlineCollection
from rl_training.runtime.sources.mixed import HALF, MixedRows
from rl_training.runtime.sources.offline import fitted_of_state, steps_of
from rl_training.runtime.sources.rows import CollectedRows, RowStore, StepRows, Units
from rl_training.runtime.validation import held_out_evaluators


class OnlineSource:
    """Transitions come from environments that the run steps itself, and from data where there is some."""

    rows: int | None = None
    observation_steps: Sequence[Transform] = ()
    summary: Facts = MappingProxyType({})

    def __init__(
        self,
        configs: Sequence[TrainConfig],
        settings: OnlineFields,
        env: EnvLike,
        *,
        dataset: TransitionDataset | None = None,
        saved: Facts | None = None,
    ) -> None:
        self.configs, self.settings, self.env = configs, settings, env
        self.data: TransitionDataset | None = None
        self.evaluators: Sequence[Evaluator] = ()
        self.rewards = reward_transform(settings)
        self.action_limit: float | None = None
        self.spaces = spaces_of(env, configs[0].env_kwargs)
        self.reference = reference_returns(configs[0].env_id, configured=stated_reference(settings))
        if dataset is not None or has_recipe(settings):
            self._add_data(dataset, saved)
        else:
            refuse_data_settings(settings)

    def _add_data(self, dataset: TransitionDataset | None, saved: Facts | None) -> None:
        config, settings = self.configs[0], self.settings
        if not isinstance(settings, OnlineDataFields):
            raise ConfigError(f"dataset must be none: {config.algo} learns online, from its environment")
        prepared = build_offline_dataset(
            config,
            dataset=dataset,
            env=self.env,
            fitted=None if saved is None else fitted_of_state(saved),
        )
        if prepared.dataset.info.spaces is not None:
            check_env_fits(str(self.env), self.spaces, prepared.dataset.info.spaces, "the data")
        self.data, self.rewards = prepared.dataset, prepared.reward_transform
        self.observation_steps = steps_of(prepared.normalizer)
        self.action_limit = settings.action_clip
        self.reference, self.summary = prepared.reference, prepared.summary
        self.evaluators = held_out_evaluators(prepared, settings.batch_size)

    def phases(self, learner: Learner, state: State | None) -> list[Phase]:
        settings, device = self.settings, learner.device
        spaces, seeds = self.spaces, [config.seed for config in self.configs]
        rows = StepRows(settings.buffer_capacity, spaces, len(seeds), device)
        collection = OnlineCollection(
            self.configs,
            settings,
            self.env,
            rows,
            Units(self.rewards, self.observation_steps, self.action_limit),
            Exploration(seeds, 0.0, device),
            learning_starts=settings.learning_starts,
        )
        if state is not None:
            collection.load_state_dict(state)
        return [
            Phase(
                "online",
                self.configs[0].total_timesteps,
                self.batches(learner, rows),
                collection,
                learning_starts=settings.learning_starts,
                train_frequency=settings.train_frequency,
                updates_per_step=settings.gradient_updates_per_step,
            )
        ]

    def batches(self, learner: Learner, rows: RowStore) -> BatchSource:
        if self.data is None:
            return CollectedRows(rows)
        share = self.settings.offline_share if isinstance(self.settings, ShareFields) else None
        return MixedRows(self.data.to(learner.device), rows, HALF if share is None else share)


def has_recipe(settings: OnlineFields) -> bool:
    return isinstance(settings, OnlineDataFields) and settings.dataset_kind != NO_DATA


def stated_reference(settings: OnlineFields) -> tuple[float | None, float | None]:
    if not isinstance(settings, OnlineDataFields):
        return (None, None)
    return (settings.reference_min_return, settings.reference_max_return)


def refuse_data_settings(settings: OnlineFields) -> None:
    """Without data nobody would notice that a setting of the data does nothing."""
    if not isinstance(settings, OnlineDataFields):
        return
    elsewhere = {*RewardFields.model_fields, "reference_min_return", "reference_max_return"}
    for name in [name for name in OnlineDataFields.model_fields if name not in elsewhere]:
        value, default = getattr(settings, name), type(settings).model_fields[name].default
        if value != default:
            must = "null" if default is None else shown(listed(default))
            raise ConfigError(
                f"algo_kwargs.{name} must be {must} without data, got {shown(listed(value))}; name the data "
                "with algo_kwargs.dataset_kind, or give a dataset in Python"
            )


def listed(value: object) -> object:
    """As YAML writes it."""
    return list(value) if isinstance(value, tuple) else value
