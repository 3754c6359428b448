"""What a run learns from: logged transitions, environments that it steps, or both together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.learner import Learner
from rl_training.config.data import (
    ASKED_FIELDS,
    NO_DATA,
    OfflineDataFields,
    OfflineFields,
    OnlineDataFields,
)
from rl_training.config.run import OnlineFields, RewardFields, Share, ShareFields, TrainConfig
from rl_training.core.errors import ConfigError, DataError, shown
from rl_training.core.schema import restoring
from rl_training.core.signals import Signals
from rl_training.core.spaces import Spaces
from rl_training.core.transforms import ObservationNormalizer, RewardTransform, Transform
from rl_training.core.types import Facts, State
from rl_training.data.formulas import TOLD, asked_signals, column_names, counted_signals, penalty_weights
from rl_training.data.info import ReferenceReturns, reference_returns
from rl_training.data.log import MASKS_ALONE
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.prepare import Fitted, PreparedDataset, failure_reward, reward_transform
from rl_training.data.splits import LoggedEpisodes
from rl_training.policies.guard import middle_action
from rl_training.policies.inputs import SignalMemory
from rl_training.policies.policy import policy_of_state
from rl_training.runtime.callbacks import Evaluator, held_out_evaluators
from rl_training.runtime.envs import EnvLike, make_env, spaces_of
from rl_training.runtime.loop import BatchSource, Collection, Phase
from rl_training.runtime.offline_data import build_offline_dataset
from rl_training.runtime.replay import (
    RETURNS,
    EpisodeRows,
    Exploration,
    OnlineCollection,
    Rows,
    RowStore,
    StepRows,
    UniformRows,
    Units,
    by_part,
    drawn,
)

HALF: Share = 0.5
"""The share of Cal-QL and RLPD, where none is given."""


class RunSource(ABC):
    """Spaces and units first, so that a learner can be built; then the phases."""

    settings: OfflineFields | OnlineFields
    spaces: Spaces
    rewards: RewardTransform
    reference: ReferenceReturns | None
    signals: Signals | None = None
    """what a policy is asked with, where that is more than what is seen"""
    observation_steps: Sequence[Transform] = ()
    action_limit: float | None = None
    exploration_noise = 0.0
    dataset: TransitionDataset | None = None
    logged: LoggedEpisodes | str | None = None
    rows: int | None = None
    """what a pass over the data is made of, where the run is counted in passes"""
    summary: Facts = MappingProxyType({})
    evaluators: Sequence[Evaluator] = ()
    """what is measured on rows that were held out of training"""
    held_out: TransitionDataset | None = None
    """these rows"""

    def __init__(
        self, configs: Sequence[TrainConfig], settings: OfflineFields | OnlineFields, env: EnvLike | None
    ) -> None:
        self.configs, self.settings, self.env = configs, settings, env

    @abstractmethod
    def phases(self, learner: Learner, state: State | None) -> list[Phase]:
        """From the beginning, or as a checkpoint's state has come to them."""

    def take_data(self, prepared: PreparedDataset) -> None:
        """Learn from these rows, in their units."""
        self.dataset, self.logged = prepared.dataset, prepared.logged
        self.take_units(prepared)
        self.reference, self.summary = prepared.reference, prepared.summary
        self.evaluators = held_out_evaluators(prepared, self.settings.batch_size)
        self.held_out = prepared.validation

    def take_units(self, found: PreparedDataset | Fitted) -> None:
        self.spaces, self.rewards, self.signals = found.spaces, found.reward_transform, found.signals
        self.observation_steps = () if found.normalizer is None else (found.normalizer,)

    @property
    def asked_spaces(self) -> Spaces:
        """The spaces as the policy is asked in them."""
        if self.signals is None:
            return self.spaces
        return replace(self.spaces, obs_dim=self.signals.program.width)

    def check_data_fits(self, data: TransitionDataset) -> None:
        if data.info.spaces is not None:
            check_env_fits(str(self.env), self.spaces, data.info.spaces, "the data")

    def data_on(self, device: torch.device) -> TransitionDataset:
        assert self.dataset is not None
        return self.dataset.to(device)

    def counted_signals(self) -> Signals | None:
        """How a policy counts the one cost of an episode, where it follows from the columns."""
        assert self.dataset is not None and isinstance(self.settings, OfflineDataFields)
        signals, info = self.signals, self.dataset.info
        if signals is not None:
            names, first = (signals.program.columns, signals.program.actions), signals.first_action
        else:
            names = column_names(info, self.spaces.obs_dim, self.spaces.action_columns)
            first = middle_action(self.spaces)
        return counted_signals(self.settings.costs, *names, first)

    def units(self) -> Units:
        return Units(self.rewards, self.observation_steps, self.action_limit, self.told_penalty())

    def told_penalty(self) -> tuple[float, ...]:
        """The weight of the one cost that environments tell, where rows are collected."""
        penalty = self.settings.penalty
        declared = tuple(self.settings.costs) if isinstance(self.settings, OfflineDataFields) else ()
        if penalty and len(declared) > 1:
            raise ConfigError(
                f"penalty must be of the one cost that the environment tells in info['cost'] where rows are "
                f"collected, got costs {', '.join(declared)}"
            )
        return penalty_weights(penalty, declared or (TOLD,), str(self.env)) if penalty else ()

    def exploration(self, device: torch.device) -> Exploration:
        return Exploration([config.seed for config in self.configs], self.exploration_noise, device)

    def collection(
        self, learner: Learner, rows: RowStore, state: State | None, *, learning_starts: int = 0
    ) -> OnlineCollection:
        """Environments that are stepped, at their beginning or where a checkpoint was written."""
        assert self.env is not None  # checked before the data is read
        collection = OnlineCollection(
            self.configs,
            self.settings,
            self.env,
            rows,
            self.units(),
            self.exploration(learner.device),
            learning_starts=learning_starts,
            memory=learner.policy.memory,
        )
        if state is not None and "collector" in state:
            collection.load_state_dict(state)
        return collection


def check_env_fits(env: str, found: Spaces, known: Spaces, what: str) -> None:
    """Collecting goes on in the sizes and bounds that were learned in, or not at all."""
    for name in ("obs_dim", "action_columns", "action_low", "action_high", "choices"):
        has, wanted = getattr(found, name), getattr(known, name)
        if has != wanted:
            raise ConfigError(
                f"env_id must fit {what}: {name} of {env!r} is {as_list(has)}, {what} has {as_list(wanted)}; "
                "name the environment that it belongs to, or wrap this one"
            )


def as_list(value: object) -> object:
    """As YAML writes it."""
    return list(value) if isinstance(value, tuple) else value


def fitted_of_state(saved: Facts) -> Fitted | None:
    """What a checkpoint knows of its data; one of a version that did not write it down knows nothing."""
    rewards = saved["dataset"].get("reward_transform")
    if rewards is None:
        return None
    policy = policy_of_state(saved)
    steps = [step.to("cpu", torch.float32) for step in policy.observation_steps]
    normalizer = next((step for step in steps if isinstance(step, ObservationNormalizer)), None)
    with restoring():
        memory = policy.memory
        signals = memory.signals if isinstance(memory, SignalMemory) else None
        return Fitted(policy.spaces, normalizer, RewardTransform.from_dict(rewards), signals)


def share_at(share: Share, step: int) -> float:
    """The share at a step: a number, or a line from a to b over n steps that ends in b."""
    if not isinstance(share, tuple):
        return share
    start, end, steps = share
    return start + (end - start) * min(1.0, step / steps)


class MixedRows:
    """A share of every batch from the data, the rest from the collection; both hold the same fields.

    The share is exact in each batch: its rows are counted, not drawn by lot. As long as nothing collected can
    be drawn, all rows come from the data. Without a share (none), data and collected rows are one set.
    """

    def __init__(self, data: TransitionDataset, store: RowStore, share: Share | None) -> None:
        if "discounts" in data.fields:
            raise ConfigError(
                "algo_kwargs.n_step must be 1 and discount_by_time false where data and collected "
                "transitions are learned from together: what is collected is one step long"
            )
        common = [name for name in data.fields if name in store.fields]
        self.data, self.store, self.share = data.with_fields(common), store, share

    def __len__(self) -> int:
        return len(self.data)

    def draw(self, unit: Tensor, step: int) -> dict[str, Tensor]:
        return by_part(self.store.parts, unit, lambda part, unit: self._batch(unit, part, step))

    def _batch(self, unit: Tensor, collected: Rows, step: int) -> dict[str, Tensor]:
        if not len(collected):
            return drawn(self.data, unit)
        if self.share is None:
            return self._united(unit, collected)
        size = unit.shape[-1]
        count = int(share_at(self.share, step) * size + 0.5)  # the nearest whole row, halves upwards
        if count in (0, size):
            return drawn(self.data if count else collected, unit)
        data, fresh = drawn(self.data, unit[..., :count]), drawn(collected, unit[..., count:])
        axis = unit.ndim - 1
        return {name: torch.cat([values, fresh[name]], axis) for name, values in data.items()}

    def _united(self, unit: Tensor, collected: Rows) -> dict[str, Tensor]:
        """Uniform over the data and then the collected rows, as if they lay in one buffer.

        Both are read for every place of the batch: no number of rows has to come back from the device.
        """
        logged = len(self.data)
        place = (unit * (logged + len(collected))).long()
        is_fresh = place >= logged
        data = self.data.gather(place.clamp(max=logged - 1))
        fresh = collected.gather((place - logged).clamp(min=0))
        return {
            name: torch.where(is_fresh.view(*is_fresh.shape, *[1] * (old.ndim - unit.ndim)), fresh[name], old)
            for name, old in data.items()
        }


class NoRows:
    """Stands for the data of an offline phase that is over and that nothing needs any more."""

    def __len__(self) -> int:
        return 0

    def draw(self, unit: Tensor, step: int) -> dict[str, Tensor]:
        raise DataError("the offline phase is over and its data was dropped")


class OfflineSource(RunSource):
    """Transitions come from a dataset; an environment evaluates, and is learned in afterwards."""

    settings: OfflineFields

    def __init__(
        self,
        configs: Sequence[TrainConfig],
        settings: OfflineFields,
        needs: frozenset[str],
        *,
        env: EnvLike | None = None,
        dataset: TransitionDataset | None = None,
        saved: Facts | None = None,
        keep_logged: bool = False,
    ) -> None:
        super().__init__(configs, settings, env)
        self.action_limit, self.exploration_noise = settings.action_clip, settings.exploration_noise
        fitted = None if saved is None else fitted_of_state(saved)
        if env is not None and fitted is not None:
            check_env_fits(str(env), spaces_of(env, configs[0].env_kwargs), fitted.spaces, "the policy")
        if saved is not None and fitted is not None and self._has_left_the_data(saved):
            # Everything that was found in the data is in the checkpoint.
            self.take_units(fitted)
            reference, self.summary = saved["reference"], saved["dataset"]
            self.reference = None if reference is None else ReferenceReturns.from_dict(reference)
            self.rows = self.summary.get("rows")
            return
        prepared = build_offline_dataset(
            configs[0], dataset=dataset, needs=needs, env=env, fitted=fitted, keep_logged=keep_logged
        )
        self.take_data(prepared)
        self.rows = len(prepared.dataset)
        if env is not None and configs[0].online_timesteps:
            self.check_data_fits(prepared.dataset)

    def _has_left_the_data(self, saved: Facts) -> bool:
        """Whether all that is left of the run is an online phase without the data."""
        counters, config = saved["counters"], self.configs[0]
        over = counters["phase"] > 0 or counters["phase_step"] >= config.total_timesteps
        return over and config.online_timesteps > 0 and self.settings.offline_data == "drop"

    def phases(self, learner: Learner, state: State | None) -> list[Phase]:
        offline = self.offline_phase(learner.device)
        if not self.configs[0].online_timesteps:
            return [offline]
        rows = self.row_store(learner)
        collection = self.collection(learner, rows, state)
        return [offline, *self.online_phases(learner, collection, rows, state)]

    def offline_phase(self, device: torch.device) -> Phase:
        rows = NoRows() if self.dataset is None else UniformRows(self.data_on(device))
        return Phase("offline", self.configs[0].total_timesteps, rows)

    def online_phases(
        self, learner: Learner, collection: Collection, rows: RowStore, state: State | None
    ) -> list[Phase]:
        """Steps of the trained policy without updates, then steps and updates together."""
        settings = self.settings
        warmup = settings.warmup_steps_online
        steps = self.configs[0].online_timesteps - warmup
        waits = Phase("warm-up", warmup, rows, collection, updates_per_step=0, evaluate_first=True)
        learns = Phase(
            "online",
            steps,
            self.online_batches(learner.device, rows),
            collection,
            train_frequency=settings.train_frequency,
            updates_per_step=settings.gradient_updates_per_step,
            batch_size=settings.batch_size_online,
            online_span=(state or {}).get("online_span") or steps,
            evaluate_first=not warmup,
        )
        return [waits, learns] if warmup else [learns]

    def online_batches(self, device: torch.device, rows: RowStore) -> BatchSource:
        """What the online phase learns from: collected rows, or the data beside them."""
        use, share = self.settings.offline_data, self.settings.offline_share
        if use == "drop":
            return rows
        given = None if use == "append" else HALF if share is None else share
        return MixedRows(self.data_on(device), rows, given)

    def row_store(self, learner: Learner) -> RowStore:
        """Rows with everything that online updates need; returns-to-go are those of whole episodes."""
        config, seeds = self.configs[0], len(self.configs)
        sizes = (self.settings.buffer_capacity, self.asked_spaces, seeds)
        if RETURNS not in learner.online_needs():
            return StepRows(*sizes, learner.device, learner.online_needs())
        return EpisodeRows(
            *sizes,
            config.num_envs,
            learner.device,
            gamma=learner.config.gamma,
            failure_reward=failure_reward(self.settings, self.rewards),
            needs=learner.online_needs(),
        )


class OnlineSource(RunSource):
    """Transitions come from environments that the run steps itself, and from data where there is some."""

    settings: OnlineFields

    def __init__(
        self,
        configs: Sequence[TrainConfig],
        settings: OnlineFields,
        env: EnvLike,
        *,
        dataset: TransitionDataset | None = None,
        saved: Facts | None = None,
    ) -> None:
        super().__init__(configs, settings, env)
        config = configs[0]
        self.rewards = reward_transform(settings)
        self.spaces = spaces_of(env, config.env_kwargs)
        if not isinstance(settings, OnlineDataFields):
            if dataset is not None:
                raise ConfigError(f"dataset must be none: {config.algo} learns online, from its environment")
            self.reference = reference_returns(config.env_id)
            return
        stated = (settings.reference_min_return, settings.reference_max_return)
        self.reference = reference_returns(config.env_id, configured=stated)
        if dataset is None and settings.dataset_kind == NO_DATA:
            refuse_data_settings(settings)
            self.signals = self.own_signals(settings)
            return
        fitted = None if saved is None else fitted_of_state(saved)
        prepared = build_offline_dataset(config, dataset=dataset, env=env, fitted=fitted)
        self.check_data_fits(prepared.dataset)
        self.take_data(prepared)
        self.action_limit = settings.action_clip

    def own_signals(self, settings: OnlineDataFields) -> Signals | None:
        """The history of an environment; before its first action the middle of the bounds counts as one."""
        if not settings.history and not settings.rate:
            return None
        assert self.env is not None
        if self.spaces.masked:
            raise ConfigError(f"{self.env}: {MASKS_ALONE}")
        names = column_names_of(self.env, self.configs[0].env_kwargs)
        found = asked_signals(None, names, settings.history, settings.rate)
        assert found is not None
        return replace(found, first_action=middle_action(self.spaces))

    def phases(self, learner: Learner, state: State | None) -> list[Phase]:
        settings, device = self.settings, learner.device
        sizes = (settings.buffer_capacity, self.asked_spaces, len(self.configs))
        rows = StepRows(*sizes, device, learner.online_needs())
        batches: BatchSource = rows
        if self.dataset is not None:
            share = settings.offline_share if isinstance(settings, ShareFields) else None
            batches = MixedRows(self.data_on(device), rows, HALF if share is None else share)
        return [
            Phase(
                "online",
                self.configs[0].total_timesteps,
                batches,
                self.collection(learner, rows, state, learning_starts=settings.learning_starts),
                learning_starts=settings.learning_starts,
                train_frequency=settings.train_frequency,
                updates_per_step=settings.gradient_updates_per_step,
            )
        ]


def column_names_of(
    env: EnvLike, env_kwargs: Mapping[str, object] | None = None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of what is seen and done: those of a dictionary's parts, or `obs_0 …` and `action_0 …`."""
    built = make_env(env, env_kwargs)
    try:
        known = spaces_of(built)
        flat = getattr(getattr(built, "env", None), "observation_space", None)
        inner = flat.spaces.items() if isinstance(flat, gym.spaces.Dict) else ()
        named = [
            name if size == 1 else f"{name}_{index}"
            for name, space in inner
            for size in (int(np.prod(space.shape or (1,))),)
            for index in range(size)
        ]
    finally:
        built.close()
    plain = [f"obs_{index}" for index in range(known.obs_dim)]
    actions = tuple(f"action_{index}" for index in range(known.action_columns))
    return tuple(named if len(named) == known.obs_dim else plain), actions


def refuse_data_settings(settings: OnlineDataFields) -> None:
    """Without data nobody would notice that a setting of the data does nothing."""
    elsewhere = {*RewardFields.model_fields, *ASKED_FIELDS, "reference_min_return", "reference_max_return"}
    for name in [name for name in OnlineDataFields.model_fields if name not in elsewhere]:
        value, default = getattr(settings, name), type(settings).model_fields[name].default
        if value != default:
            must = "null" if default is None else shown(as_list(default))
            raise ConfigError(
                f"algo_kwargs.{name} must be {must} without data, got {shown(as_list(value))}; name the data "
                "with algo_kwargs.dataset_kind, or give a dataset in Python"
            )
