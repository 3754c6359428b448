"""The one way from loaded rows to training batches, for every algorithm and every source.

Per part: reward transform -> returns-to-go -> choice of rows. Then the union: mix -> observation
normalisation -> action scaling. Later steps need the results of earlier ones, so the order is fixed here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from rl_training.config.data_fields import OfflineDataFields
from rl_training.core.errors import DataError
from rl_training.core.plain import State
from rl_training.core.spaces import Spaces
from rl_training.core.transforms import (
    ObservationNormalizer,
    RewardTransform,
    Transform,
    return_range_scale,
    reward_transform,
)
from rl_training.data.action_units import action_scaling, check_dimensions
from rl_training.data.data_info import ReferenceReturns
from rl_training.data.data_summary import describe_parts
from rl_training.data.derived_fields import DERIVATIONS, Discounting, check_needs, with_discounts
from rl_training.data.disk_mix import disk_concatenation
from rl_training.data.episode_transforms import best_episodes, split_episodes, with_n_step
from rl_training.data.fingerprint import fingerprint
from rl_training.data.logged_episodes import LoggedEpisodes
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.offline_mixers import check_same_dimensions, mix_transition_datasets
from rl_training.data.validation import CHUNK_ROWS

RETURNS = "returns_to_go"


@dataclass(frozen=True)
class PreparedDataset:
    """Training data, and everything that must be known to use a policy learned from it."""

    dataset: TransitionDataset
    spaces: Spaces
    normalizer: ObservationNormalizer | None
    reward_transform: RewardTransform
    reference: ReferenceReturns | None
    summary: State
    validation: TransitionDataset | None = None
    """whole episodes held out of training (`validation_share`), in the same units as `dataset`"""
    logged: LoggedEpisodes | str | None = None
    """episodes in the units of the log for a judgement, or why there can be none; none: not asked for"""


@dataclass(frozen=True)
class Fitted:
    """What was found in the data of a run that is taken up again: it stays as it was found."""

    spaces: Spaces
    normalizer: ObservationNormalizer | None
    reward_transform: RewardTransform


def process_offline_dataset(
    parts: Sequence[TransitionDataset],
    settings: OfflineDataFields,
    spaces: Spaces,
    *,
    gamma: float,
    needs: frozenset[str] = frozenset(),
    limits: Sequence[int | None] | None = None,
    by_time: Sequence[bool] | None = None,
    reference: ReferenceReturns | None = None,
    owned: bool = True,
    wanted_by: str = "the learner",
    uses_rewards: bool = True,
    fitted: Fitted | None = None,
) -> PreparedDataset:
    """Prepare loaded parts for training.

    `needs` names optional fields the learner asks for, `limits` the rows kept of each part, `by_time` which
    parts discount by duration, and `owned` says that the parts' tensors may be changed in place. `wanted_by`
    is the learner's name in messages, `uses_rewards` whether it learns from rewards. What is `fitted` already
    is not fitted again.
    """
    check_same_dimensions(parts)
    check_needs(needs, parts, wanted_by)
    _check_rewards(parts, wanted_by, uses_rewards)
    parts = [check_dimensions(part, spaces) for part in parts]
    scaling = action_scaling(parts, settings, spaces)
    transform = _reward_transform(parts, settings) if fitted is None else fitted.reward_transform
    summary = describe_parts(parts, transform)
    summary["fingerprint"] = fingerprint(parts, sampled=not settings.dataset_in_memory)
    steps = _PartSteps(settings, transform, gamma, needs)
    count = len(parts)
    timed = by_time or [settings.discount_by_time] * count
    held_out = None
    if settings.validation_share > 0.0:
        parts, held_out = _split(parts, settings, steps, timed)
    plans = zip(parts, limits or [None] * count, timed, strict=True)
    ready = [steps.run(*plan) for plan in plans]
    if len(ready) > 1:
        dataset, owned = _mixed(ready, settings), True
    else:
        dataset = ready[0]
    if settings.dataset_in_memory and 2 * len(dataset) < len(dataset.store.columns["obs"]):
        dataset, owned = dataset.compacted(), True
    normalizer = None if fitted is None else fitted.normalizer
    if settings.normalize_observations and fitted is None:
        normalizer = observation_statistics(dataset)
    finish = _Finish(normalizer, scaling, settings, frozenset({"durations", "behavior_logprobs"}) - needs)
    dataset = finish.run(dataset, owned=owned)
    if held_out is not None:
        held_out = finish.run(held_out, owned=True)
        summary["validation_rows"] = len(held_out)
    summary |= {"rows": len(dataset), "fields": list(dataset.fields)}
    summary["reference"] = None if reference is None else reference.to_dict()
    return PreparedDataset(dataset, spaces, normalizer, transform, reference, summary, held_out)


def _split(
    parts: Sequence[TransitionDataset],
    settings: OfflineDataFields,
    steps: _PartSteps,
    by_time: Sequence[bool],
) -> tuple[list[TransitionDataset], TransitionDataset]:
    """Parts to train on, and the held-out episodes of all of them, with rows of their own."""
    pairs = [split_episodes(part, settings.validation_share, settings.dataset_seed) for part in parts]
    held = [
        steps.run(part, None, timed, choose=False) for (_, part), timed in zip(pairs, by_time, strict=True)
    ]
    if settings.dataset_in_memory:
        held = [part.compacted() for part in held]
    concatenate = None if settings.dataset_in_memory else disk_concatenation(held)
    together = held[0] if len(held) == 1 else mix_transition_datasets(held, concatenate=concatenate)
    return [pair[0] for pair in pairs], together


@dataclass(frozen=True)
class _Finish:
    """Changes of units of the rows that are left, and the fields that a batch holds."""

    normalizer: ObservationNormalizer | None
    scaling: Transform | None
    settings: OfflineDataFields
    unused: frozenset[str]

    def run(self, dataset: TransitionDataset, *, owned: bool) -> TransitionDataset:
        if self.normalizer is not None:
            dataset = _converted(dataset, ("obs", "next_obs"), self.normalizer, self.settings, owned)
        if self.scaling is not None:
            dataset = _converted(dataset, ("actions", "next_actions"), self.scaling, self.settings, owned)
        return dataset.with_fields(name for name in dataset.fields if name not in self.unused)


def observation_statistics(dataset: TransitionDataset) -> ObservationNormalizer:
    """Mean and population standard deviation of the observations, in double precision."""
    store, count = dataset.store, len(dataset)
    mean = torch.zeros(store.columns["obs"].shape[1], dtype=torch.float64, device=dataset.device)
    for chunk in store.chunks("obs", CHUNK_ROWS):
        mean += chunk.double().sum(dim=0)
    mean /= count
    squares = torch.zeros_like(mean)
    for chunk in store.chunks("obs", CHUNK_ROWS):
        squares += (chunk.double() - mean).square_().sum(dim=0)
    return ObservationNormalizer(mean.float(), (squares / count).sqrt().float())


@dataclass(frozen=True)
class _PartSteps:
    """What happens to one part while its rows are in time order."""

    settings: OfflineDataFields
    transform: RewardTransform
    gamma: float
    needs: frozenset[str]

    def run(
        self, part: TransitionDataset, limit: int | None, by_time: bool, *, choose: bool = True
    ) -> TransitionDataset:
        settings = self.settings
        how = Discounting(self.gamma, by_time, failure_reward(self.settings, self.transform))
        recorded = part.episode_returns() if choose and settings.top_fraction < 1.0 else None
        changed = self._with_returns(self._with_rewards(part), part, how)
        for need in sorted(self.needs & DERIVATIONS.keys() - set(changed.fields)):
            if not (need == "discounts" and settings.n_step > 1):  # which brings its own
                changed = DERIVATIONS[need](changed, how)
        if recorded is not None:  # the best by the rewards of the data, not by the transformed ones
            changed = best_episodes(changed, settings.top_fraction, recorded)
        if settings.n_step > 1:
            changed = with_n_step(changed, settings.n_step, self.gamma, by_time=by_time)
        elif by_time and "discounts" not in changed.fields:
            changed = with_discounts(changed, how)
        if limit is not None and limit < len(changed):
            changed = changed.select_rows(torch.arange(limit))
        return changed

    def _with_rewards(self, part: TransitionDataset) -> TransitionDataset:
        plain = part.with_fields(name for name in part.fields if name != RETURNS)
        plain = TransitionDataset.from_store(
            plain.store, last_rewards=part.last_rewards, ordered=part.ordered, info=part.info
        )
        if self.transform.is_identity:
            return plain
        scale, shift, clip = self.transform.scale, self.transform.shift, self.transform.clip
        return plain.with_reward_transform(scale=scale, shift=shift, clip=clip)

    def _with_returns(
        self, changed: TransitionDataset, part: TransitionDataset, how: Discounting
    ) -> TransitionDataset:
        given = part.returns_to_go
        if self.settings.returns_to_go == "given":
            if given is None:
                raise DataError(
                    f"{part.info.source}: returns_to_go: given needs data with returns_to_go; set it to auto"
                )
            return changed.with_columns({RETURNS: given})
        if given is None and RETURNS not in self.needs:
            return changed
        return DERIVATIONS[RETURNS](changed, how)


def _check_rewards(parts: Sequence[TransitionDataset], wanted_by: str, uses_rewards: bool) -> None:
    """A log without rewards is good for imitation alone."""
    bare = next((part.info.source for part in parts if not part.info.rewards_known), None)
    if bare is not None and uses_rewards:
        raise DataError(
            f"{bare}: has no reward, which {wanted_by} learns from; map one (columns.reward, --reward), or "
            "train bc"
        )


def _reward_transform(parts: Sequence[TransitionDataset], settings: OfflineDataFields) -> RewardTransform:
    """One transform for all parts, so that equal rewards stay equal."""
    if not settings.normalize_reward:
        return reward_transform(settings)
    returns = np.concatenate([part.episode_returns() for part in parts])
    return reward_transform(settings, return_range_scale(returns))


def failure_reward(settings: OfflineDataFields, transform: RewardTransform) -> float | None:
    """The reward of failing as the learner sees it."""
    raw = settings.failure_reward
    return None if raw is None else float(transform.apply_to_array(np.array([raw]))[0])


def _mixed(parts: Sequence[TransitionDataset], settings: OfflineDataFields) -> TransitionDataset:
    weights = [part.weight for part in settings.dataset_parts if part.weight is not None]
    rows = [part.rows for part in settings.dataset_parts if part.rows is not None]
    return mix_transition_datasets(
        parts,
        weights=weights or None,
        rows=rows or None,
        total_size=settings.dataset_size,
        seed=settings.dataset_seed,
        concatenate=None if settings.dataset_in_memory else disk_concatenation(parts),
    )


def _converted(
    dataset: TransitionDataset,
    names: Sequence[str],
    transform: Transform,
    settings: OfflineDataFields,
    owned: bool,
) -> TransitionDataset:
    """Change the units of fields: the stored rows where they are in memory, else every batch."""
    present = [name for name in names if name in dataset.fields]
    if not settings.dataset_in_memory:
        return dataset.with_batch_transforms({name: transform for name in present})
    store = dataset.store.converted(present, transform, in_place=owned, rows_at_once=CHUNK_ROWS)
    return TransitionDataset.from_store(
        store,
        last_rewards=dataset.last_rewards,
        returns_gamma=dataset.returns_gamma,
        ordered=dataset.ordered,
        info=replace(dataset.info, content_key=None),
    )
