"""The one way from loaded rows to training batches, for every algorithm and every source."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from rl_training.config.data import OfflineDataFields
from rl_training.config.limits import Limit
from rl_training.config.run import RewardFields
from rl_training.core.drift import describe_columns
from rl_training.core.errors import ConfigError, DataError
from rl_training.core.signals import Signals
from rl_training.core.spaces import Spaces
from rl_training.core.transforms import (
    OBSERVATION_EPSILON,
    ActionEncoding,
    ActionScaling,
    ObservationNormalizer,
    RewardTransform,
    Transform,
    clip_bounds,
    return_range_scale,
)
from rl_training.core.types import PENALTIES, Array, State
from rl_training.data.disk import disk_concatenation
from rl_training.data.fields import FIELDS, SPACE_FIELDS, Discounting, all_fields
from rl_training.data.formulas import described_costs, penalty_weights
from rl_training.data.info import ReferenceReturns
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.offline_mixers import check_same_dimensions, mix_transition_datasets
from rl_training.data.reading import (
    CHUNK_ROWS,
    DataWarning,
    action_range,
    check_width,
    first_outside,
    level_shares,
)
from rl_training.data.rows import as_array
from rl_training.data.splits import (
    LoggedEpisodes,
    best_episodes,
    episodes_within,
    split_episodes,
    with_n_step,
)


def check_dimensions(dataset: TransitionDataset, spaces: Spaces) -> TransitionDataset:
    """The dataset, with an axis for single actions and observations, if its vectors have the right sizes."""
    if not len(dataset):
        raise DataError(f"{dataset.info.source}: the dataset is empty (no complete transition)")
    source, remedy = dataset.info.source, "; give the env_id that fits the data"
    if dataset.info.signals is not None and dataset.seen_dim != spaces.obs_dim:
        raise DataError(
            f"{source}: observations are made of {dataset.seen_dim} numbers, but the environment has "
            f"{spaces.obs_dim}{remedy}"
        )
    wanted = {"actions": spaces.action_columns}
    if dataset.info.signals is None:
        wanted = {"obs": spaces.obs_dim, **wanted}
    for name, width in wanted.items():
        check_width(name, as_array(dataset.store.columns[name]), width, source, "the environment", remedy)
    thin = [name for name in SPACE_FIELDS if name in dataset.fields and dataset.store.columns[name].ndim == 1]
    return dataset.with_columns({name: dataset.store.whole(name).unsqueeze(-1) for name in thin})


def action_scaling(
    parts: Sequence[TransitionDataset], settings: OfflineDataFields, spaces: Spaces
) -> Transform | None:
    """How recorded actions become actions in [-1, 1]; None where they already are and nothing is clipped."""
    if spaces.choices:
        return ActionEncoding(spaces, settings.action_clip or 1.0)
    low, high = np.array(spaces.action_low), np.array(spaces.action_high)
    if settings.out_of_bounds == "rescale":
        ranges = [action_range(as_array(part.store.columns["actions"])) for part in parts]
        data_low, data_high = np.min([r[0] for r in ranges], axis=0), np.max([r[1] for r in ranges], axis=0)
        varies = data_high > data_low
        low, high = np.where(varies, data_low, low), np.where(varies, data_high, high)
        return ActionScaling.between(low.tolist(), high.tolist(), settings.action_clip)
    within = True
    for part in parts:
        for name in ("actions", "next_actions"):
            if name in part.fields:
                smallest, largest = action_range(as_array(part.store.columns[name]))
                if not ((smallest >= low).all() and (largest <= high).all()):
                    within = False
                    if settings.out_of_bounds == "error":
                        _check_bounds(part, name, spaces)
    unit = bool((low == -1.0).all() and (high == 1.0).all())
    if unit and within and settings.action_clip in (None, 1.0):
        return None
    return ActionScaling.between(low.tolist(), high.tolist(), settings.action_clip)


def _check_bounds(part: TransitionDataset, name: str, spaces: Spaces) -> None:
    actions = as_array(part.store.columns[name])
    low, high = np.array(spaces.action_low), np.array(spaces.action_high)
    outside = first_outside(actions, low, high)
    if outside is None:
        return
    row, column = outside
    smallest, largest = action_range(actions)
    raise DataError(
        f"{part.info.source}: {name} row {row} has {actions[row, column]:g} for "
        f"{part.info.name_of('action', column)}, outside its "
        f"bounds [{low[column]:g}, {high[column]:g}] (the data spans [{smallest[column]:g}, "
        f"{largest[column]:g}]); set out_of_bounds: clip, or out_of_bounds: rescale to map the data's range "
        "to the bounds"
    )


SAMPLED_ROWS = 10_000
"""Rows that are read of data kept on disk, evenly spaced: all of it would take as long as a copy."""


def fingerprint(parts: Sequence[TransitionDataset], *, sampled: bool = False) -> str:
    """Sixteen hex digits over the rows, shapes and values of all parts (of some rows where `sampled`)."""
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        store = part.store
        if sampled and len(part) > SAMPLED_ROWS:
            rows = torch.linspace(0, len(part) - 1, SAMPLED_ROWS, dtype=torch.float64).long()
            store = store.select(rows)
        for name in sorted(part.fields):
            digest.update(f"{name} {len(part)} {tuple(store.columns[name].shape[1:])};".encode())
            for chunk in store.chunks(name, CHUNK_ROWS):
                digest.update(as_array(chunk).tobytes())
    return digest.hexdigest()


def describe_parts(
    parts: Sequence[TransitionDataset], transform: RewardTransform, limits: Sequence[Limit] = ()
) -> State:
    """Facts about the recorded data, as plain numbers and texts."""
    summary: State = {
        "source": " + ".join(part.info.source for part in parts),
        "transitions": sum(len(part) for part in parts),
        "terminations": int(sum(float(part.dones.sum()) for part in parts)),
        "reward_transform": transform.to_dict(),
    }
    features = next((part.info.seen_features for part in parts if part.info.features), None)
    if features is not None:
        summary["features"] = features.to_dict()
    observed = sampled_observations(parts)
    names = parts[0].info.observation_names or tuple(f"obs_{i}" for i in range(observed.shape[1]))
    summary["observed"] = describe_columns(observed, names)
    if parts[0].info.choices:
        actions = np.concatenate([as_array(part.actions) for part in parts])
        shares, name_of = level_shares(actions, parts[0].info.choices), parts[0].info.name_of
        summary["level_shares"] = {name_of("action", index): each for index, each in shares.items()}
    if all(part.ordered and len(part) for part in parts):
        returns = np.concatenate([part.episode_returns() for part in parts])
        summary["episodes"] = len(returns)
        if parts[0].cost_names and all(part.cost_names == parts[0].cost_names for part in parts):
            totals, steps = zip(*(part.episode_costs() for part in parts), strict=True)
            found = np.concatenate(totals), np.concatenate(steps)
            summary["costs"] = described_costs(parts[0].cost_names, *found, limits)
        if not all(part.info.rewards_known for part in parts):  # zeros stand in for them
            return summary
        summary |= {
            "return_mean": float(returns.mean()),
            "return_min": float(returns.min()),
            "return_max": float(returns.max()),
        }
    return summary


def sampled_observations(parts: Sequence[TransitionDataset]) -> Array:
    """What the parts observe, of at most `SAMPLED_ROWS` rows of each, evenly spaced."""
    found = []
    for part in parts:
        rows = torch.linspace(0, len(part) - 1, min(len(part), SAMPLED_ROWS), dtype=torch.float64).long()
        found.append(as_array(part.store.select(rows).whole("obs")).reshape(len(rows), -1))
    return np.concatenate(found)


def check_needs(needs: Iterable[str], parts: Iterable[TransitionDataset], wanted_by: str) -> None:
    """Every field that a learner needs can be worked out, or is in the data."""
    for part in parts:
        for need in sorted(needs):
            known = need in FIELDS
            if need not in part.fields and not (known and FIELDS.get(need).derive):
                reason = f"which {part.info.source} does not have" if known else "which is unknown"
                derived = ", ".join(field.name for field in all_fields() if field.derive)
                remedy = (
                    "declare them: --cost 'NAME: FORMULA'"
                    if need == "costs"
                    else f"worked out are: {derived}"
                )
                raise ConfigError(f"{wanted_by} needs the batch field {need!r}, {reason}; {remedy}")


def check_limits(settings: OfflineDataFields, parts: Iterable[TransitionDataset]) -> None:
    """Every limit is of a cost that all parts have, and makes sense for it."""
    told = [part.check_limits(settings.stated_limits) for part in parts]
    for sentence in told[0] if len(told) == 1 else ():
        warnings.warn(sentence, DataWarning, stacklevel=2)


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
    signals: Signals | None = None
    """what observations are made of, where that is more than what is seen"""
    logged: LoggedEpisodes | str | None = None
    """episodes in the units of the log for a judgement, or why there can be none; none: not asked for"""


@dataclass(frozen=True)
class Fitted:
    """What was found in the data of a run that is taken up again: it stays as it was found."""

    spaces: Spaces
    normalizer: ObservationNormalizer | None
    reward_transform: RewardTransform
    signals: Signals | None = None


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
    signals = same_signals(parts, fitted)
    if settings.penalty:
        check_needs({"costs"}, parts, "penalty")
    check_needs(needs - {PENALTIES}, parts, wanted_by)
    check_limits(settings, parts)
    _check_rewards(parts, wanted_by, uses_rewards)
    parts = [check_dimensions(part, spaces) for part in parts]
    _check_masks(parts, spaces)
    scaling = action_scaling(parts, settings, spaces)
    transform = _reward_transform(parts, settings) if fitted is None else fitted.reward_transform
    summary = describe_parts(parts, transform, settings.stated_limits)
    summary["fingerprint"] = fingerprint(parts, sampled=not settings.dataset_in_memory)
    steps = _PartSteps(settings, transform, gamma, needs)
    count = len(parts)
    timed = by_time or [settings.discount_by_time] * count
    held_out = None
    if settings.validation_share:
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
        normalizer = observation_statistics(dataset, spaces.mask_size if spaces.masked else 0)
    finish = _Finish(normalizer, scaling, settings, needs)
    dataset = finish.run(dataset, owned=owned)
    if held_out is not None:
        held_out = finish.run(held_out, owned=True)
        summary["validation_rows"] = len(held_out)
    summary |= {"rows": len(dataset), "fields": list(dataset.fields)}
    summary["reference"] = None if reference is None else reference.to_dict()
    return PreparedDataset(dataset, spaces, normalizer, transform, reference, summary, held_out, signals)


def same_signals(parts: Sequence[TransitionDataset], fitted: Fitted | None) -> Signals | None:
    """The signals that all parts are made of, those of a policy that is trained on."""
    first = parts[0].info.signals if fitted is None else fitted.signals
    for part in parts:
        if part.info.signals != first:
            wanted, found = (
                ", ".join(each.program.names) if each else "columns" for each in (first, part.info.signals)
            )
            raise DataError(
                f"{part.info.source}: observations must be the same in all data ({wanted}), got {found}"
            )
    return first


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
    needs: frozenset[str]

    def run(self, dataset: TransitionDataset, *, owned: bool) -> TransitionDataset:
        dataset = self._converted(dataset, ("obs", "next_obs"), self.normalizer, owned)
        dataset = self._converted(dataset, ("actions", "next_actions"), self.scaling, owned)
        return dataset.with_fields(
            name
            for name in dataset.fields
            if name in self.needs or FIELDS.get(name).in_batches in ("always", "if given")
        )

    def _converted(
        self, dataset: TransitionDataset, names: Sequence[str], transform: Transform | None, owned: bool
    ) -> TransitionDataset:
        """Change the units of fields: the stored rows where they are in memory, else every batch."""
        if transform is None:
            return dataset
        present = [name for name in names if name in dataset.fields]
        if not self.settings.dataset_in_memory:
            return dataset.with_batch_transforms(dict.fromkeys(present, transform))
        if isinstance(transform, ActionEncoding):  # which makes wider columns of those that are stored
            whole = {name: transform.apply(dataset.store.whole(name)) for name in present}
            return dataset.with_columns(whole)
        store = dataset.store.converted(present, transform, in_place=owned, rows_at_once=CHUNK_ROWS)
        return TransitionDataset.from_store(
            store,
            last_rewards=dataset.last_rewards,
            returns_gamma=dataset.returns_gamma,
            ordered=dataset.ordered,
            info=replace(dataset.info, content_key=None),
        )


def observation_statistics(dataset: TransitionDataset, mask_size: int = 0) -> ObservationNormalizer:
    """Mean and population standard deviation of the observations, in double precision; a mask, their last
    numbers, stays as it is.
    """
    store, count = dataset.store, len(dataset)
    mean = torch.zeros(store.columns["obs"].shape[1], dtype=torch.float64, device=dataset.device)
    for chunk in store.chunks("obs", CHUNK_ROWS):
        mean += chunk.double().sum(dim=0)
    mean /= count
    squares = torch.zeros_like(mean)
    for chunk in store.chunks("obs", CHUNK_ROWS):
        squares += (chunk.double() - mean).square_().sum(dim=0)
    deviation = (squares / count).sqrt()
    if mask_size:
        mean[-mask_size:], deviation[-mask_size:] = 0.0, 1.0 - OBSERVATION_EPSILON
    return ObservationNormalizer(mean.float(), deviation.float())


def _check_masks(parts: Sequence[TransitionDataset], spaces: Spaces) -> None:
    """What was done is never what the mask of its row rules out."""
    for part in parts if spaces.masked else ():
        store, first = part.store, 0
        chunks = zip(store.chunks("obs", CHUNK_ROWS), store.chunks("actions", CHUNK_ROWS), strict=True)
        for obs, actions in chunks:
            taken = spaces.encode(as_array(actions)) > 0.0
            wrong = taken & ~spaces.of_boxes & ~spaces.allowed(as_array(obs))
            if wrong.any():
                row = int(np.flatnonzero(wrong.any(axis=1))[0])
                name = spaces.share_name(int(wrong[row].argmax()), partial(part.info.name_of, "action"))
                raise DataError(
                    f"{part.info.source}: row {first + row} takes {name}, which its action_mask rules out"
                )
            first += len(obs)


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
        if choose and settings.episodes_within_limits:
            part = episodes_within(part, settings.stated_limits)
        given = part.returns_to_go
        recorded = part.episode_returns() if choose and settings.top_fraction < 1.0 else None
        changed = self._with_rewards(part)
        wanted = self.needs | ({RETURNS} if given is not None else set())
        if settings.returns_to_go == "given":
            if given is None:
                raise DataError(
                    f"{part.info.source}: returns_to_go: given needs data with returns_to_go; set it to auto"
                )
            changed = changed.with_columns({RETURNS: given})
        if by_time:  # n steps bring theirs
            wanted |= {"discounts"}
        how = Discounting(self.gamma, by_time, failure_reward(settings, self.transform))
        for need in sorted(wanted - set(changed.fields), key=lambda name: (name != RETURNS, name)):
            derive = FIELDS.get(need).derive
            if derive is not None:
                changed = derive(changed, how)
        if recorded is not None:  # the best by the rewards of the data, not by the transformed ones
            changed = best_episodes(changed, settings.top_fraction, recorded)
        if settings.n_step > 1:
            changed = with_n_step(changed, settings.n_step, self.gamma, by_time=by_time)
        if limit is not None and limit < len(changed):
            changed = changed.select_rows(torch.arange(limit))
        return changed

    def _with_rewards(self, part: TransitionDataset) -> TransitionDataset:
        """The new rewards, without what is derived from them anew."""
        anew = {field.name for field in all_fields() if field.follows_rewards and field.derive}
        plain = part.with_fields(name for name in part.fields if name not in anew)
        plain = TransitionDataset.from_store(
            plain.store, last_rewards=part.last_rewards, ordered=part.ordered, info=part.info
        )
        if self.settings.penalty:  # before the transform: a weight is in units of the reward as logged
            weights = penalty_weights(self.settings.penalty, plain.cost_names, plain.info.source)
            if PENALTIES in self.needs:
                plain = plain.with_penalties(weights, self.transform.scale)
            else:
                plain = plain.with_penalty(weights)
        if self.transform.is_identity:
            return plain
        scale, shift, clip = self.transform.scale, self.transform.shift, self.transform.clip
        return plain.with_reward_transform(scale=scale, shift=shift, clip=clip)


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


def reward_transform(settings: RewardFields, factor: float = 1.0) -> RewardTransform:
    """The settings' transform, online and offline alike; `factor` is a scale found in the data."""
    return RewardTransform(
        settings.reward_scale * factor, settings.reward_shift, clip_bounds(settings.reward_clip)
    )
