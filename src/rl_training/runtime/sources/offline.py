"""Learning from transitions that were logged before, and going on in an environment."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rl_training.algorithms.learner import Learner
from rl_training.config.data_fields import OfflineFields
from rl_training.core.errors import DataError
from rl_training.core.plain import Facts, State
from rl_training.core.train_config import TrainConfig
from rl_training.core.transforms import ObservationNormalizer, RewardTransform, Transform
from rl_training.data.data_info import ReferenceReturns
from rl_training.data.logged_episodes import LoggedEpisodes
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.processing import Fitted, failure_reward
from rl_training.policies.saved import policy_of_state
from rl_training.runtime.environments import EnvLike, spaces_of
from rl_training.runtime.loop import BatchSource, Collection, Phase
from rl_training.runtime.offline_data import build_offline_dataset
from rl_training.runtime.run import Evaluator
from rl_training.runtime.sources.base import check_env_fits
from rl_training.runtime.sources.collection import Exploration, OnlineCollection
from rl_training.runtime.sources.mixed import HALF, MixedRows
from rl_training.runtime.sources.rows import (
    RETURNS,
    CollectedRows,
    EpisodeRows,
    RowStore,
    StepRows,
    UniformRows,
    Units,
)
from rl_training.runtime.validation import held_out_evaluators


class OfflineSource:
    """Transitions come from a dataset; an environment evaluates, and is learned in afterwards."""

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
        self.configs, self.settings, self.env = configs, settings, env
        self.dataset: TransitionDataset | None = None
        self.logged: LoggedEpisodes | str | None = None
        self.evaluators: Sequence[Evaluator] = ()
        fitted = None if saved is None else fitted_of_state(saved)
        if env is not None and fitted is not None:
            found = spaces_of(env, configs[0].env_kwargs)
            check_env_fits(str(env), found, fitted.spaces, "the policy")
        if saved is not None and fitted is not None and self._has_left_the_data(saved):
            self._take_over(saved, fitted)
            return
        prepared = build_offline_dataset(
            configs[0], dataset=dataset, needs=needs, env=env, fitted=fitted, keep_logged=keep_logged
        )
        self.dataset, self.logged = prepared.dataset, prepared.logged
        self.spaces = prepared.spaces
        self.rewards = prepared.reward_transform
        self.observation_steps = steps_of(prepared.normalizer)
        self.reference = prepared.reference
        self.summary: Facts = prepared.summary
        self.rows: int | None = len(prepared.dataset)
        self.evaluators = held_out_evaluators(prepared, settings.batch_size)
        if env is not None and configs[0].online_timesteps and prepared.dataset.info.spaces is not None:
            check_env_fits(str(env), self.spaces, prepared.dataset.info.spaces, "the data")

    def _has_left_the_data(self, saved: Facts) -> bool:
        """Whether all that is left of the run is an online phase without the data."""
        counters, config = saved["counters"], self.configs[0]
        over = counters["phase"] > 0 or counters["phase_step"] >= config.total_timesteps
        return over and config.online_timesteps > 0 and self.settings.offline_data == "drop"

    def _take_over(self, saved: Facts, fitted: Fitted) -> None:
        """Everything that was found in the data, from the checkpoint."""
        reference = saved["reference"]
        self.spaces, self.rewards = fitted.spaces, fitted.reward_transform
        self.observation_steps = steps_of(fitted.normalizer)
        self.reference = None if reference is None else ReferenceReturns.from_dict(reference)
        self.summary = saved["dataset"]
        self.rows = saved["dataset"].get("rows")

    def phases(self, learner: Learner, state: State | None) -> list[Phase]:
        config, settings = self.configs[0], self.settings
        if not config.online_timesteps:
            return [self.offline_phase(learner.device)]
        assert self.env is not None  # checked before the data is read
        rows, exploration = self.row_store(learner), self.exploration(learner.device)
        collection = OnlineCollection(self.configs, settings, self.env, rows, self.units(), exploration)
        if state is not None and "collector" in state:
            collection.load_state_dict(state)
        return [self.offline_phase(learner.device), *self.online_phases(learner, collection, rows, state)]

    def offline_phase(self, device: torch.device) -> Phase:
        steps = self.configs[0].total_timesteps
        return Phase(
            "offline", steps, NoRows() if self.dataset is None else UniformRows(self.data_on(device))
        )

    def online_phases(
        self, learner: Learner, collection: Collection, rows: RowStore, state: State | None
    ) -> list[Phase]:
        """Steps of the trained policy without updates, then steps and updates together."""
        settings = self.settings
        warmup = settings.warmup_steps_online
        steps = self.configs[0].online_timesteps - warmup
        waits = Phase(
            "warm-up", warmup, CollectedRows(rows), collection, updates_per_step=0, evaluate_first=True
        )
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
        use = self.settings.offline_data
        if use == "drop":
            return CollectedRows(rows)
        share = self.settings.offline_share
        given = None if use == "append" else HALF if share is None else share
        return MixedRows(self.data_on(device), rows, given)

    def data_on(self, device: torch.device) -> TransitionDataset:
        assert self.dataset is not None
        return self.dataset.to(device)

    def units(self) -> Units:
        return Units(self.rewards, self.observation_steps, self.settings.action_clip)

    def exploration(self, device: torch.device) -> Exploration:
        return Exploration([each.seed for each in self.configs], self.settings.exploration_noise, device)

    def row_store(self, learner: Learner) -> RowStore:
        """Rows with everything that online updates need; returns-to-go are those of whole episodes."""
        config, seeds = self.configs[0], len(self.configs)
        sizes = (self.settings.buffer_capacity, self.spaces, seeds)
        if RETURNS not in learner.online_needs():
            return StepRows(*sizes, learner.device)
        return EpisodeRows(
            *sizes,
            config.num_envs,
            learner.device,
            gamma=learner.config.gamma,
            failure_reward=failure_reward(self.settings, self.rewards),
        )


class NoRows:
    """Stands for the data of an offline phase that is over and that nothing needs any more."""

    def __len__(self) -> int:
        return 0

    def draw(self, unit: Tensor, step: int) -> dict[str, Tensor]:
        raise DataError("the offline phase is over and its data was dropped")


def steps_of(normalizer: ObservationNormalizer | None) -> Sequence[Transform]:
    return () if normalizer is None else (normalizer,)


def fitted_of_state(saved: Facts) -> Fitted | None:
    """What a checkpoint knows of its data; one of a version that did not write it down knows nothing."""
    rewards = saved["dataset"].get("reward_transform")
    if rewards is None:
        return None
    policy = policy_of_state(saved)
    steps = [step.to("cpu", torch.float32) for step in policy.observation_steps]
    normalizer = next((step for step in steps if isinstance(step, ObservationNormalizer)), None)
    return Fitted(policy.spaces, normalizer, RewardTransform.from_dict(rewards))
