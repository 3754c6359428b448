"""Whole episodes: chosen, held out, joined, kept as they were logged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from rl_training.config.data import OfflineFields
from rl_training.config.limits import Limit
from rl_training.core.errors import DataError
from rl_training.core.streams import derive_seed
from rl_training.data.episodes import (
    BoolArray,
    Float64Array,
    IntArray,
    episode_lengths,
    episode_starts,
    n_step_returns,
)
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.rows import as_array


def with_n_step(
    dataset: TransitionDataset, n_step: int, gamma: float, *, by_time: bool = False
) -> TransitionDataset:
    """n-step transitions: summed rewards, the state n steps on, and the factor that bootstraps from it.

    The factor is the new field `discounts` (gamma**k, k steps being left in the episode): a target is
    rewards + discounts * (1 - dones) * value(next_obs). Returns-to-go stay those of the single steps.
    """
    ends = dataset.episode_ends("n-step returns")
    discounts = dataset.step_discounts(gamma, by_time=by_time)
    totals, last, factors = n_step_returns(as_array(dataset.rewards), ends, discounts, n_step)
    last_rows = torch.from_numpy(last).to(dataset.device)
    columns = {
        name: torch.from_numpy(values.astype(np.float32)).to(dataset.device)
        for name, values in (("rewards", totals), ("discounts", factors))
    }
    flags = [name for name in ("dones", "truncations") if name in dataset.fields]
    columns |= {name: dataset.store.whole(name).index_select(0, last_rows) for name in flags}
    ahead = [name for name in ("next_obs", "next_actions") if name in dataset.fields]
    store = dataset.with_columns(columns).store.looked_up_through(last_rows, ahead)
    return TransitionDataset.from_store(store, ordered=False, info=dataset.info)


def best_episodes(
    dataset: TransitionDataset, fraction: float, returns: Float64Array | None = None
) -> TransitionDataset:
    """The `fraction` of episodes (at least one) with the highest return, as in 10 %-BC.

    `returns` ranks the episodes; by default their undiscounted sums of rewards.
    """
    if not 0.0 < fraction <= 1.0:
        raise ValueError(f"top_fraction must be > 0 and <= 1, got {fraction}")
    ends = dataset.episode_ends("top_fraction")
    returns = dataset.episode_returns() if returns is None else returns
    chosen = np.zeros(len(returns), dtype=bool)
    chosen[np.argsort(-returns, kind="stable")[: max(1, int(fraction * len(returns)))]] = True
    return keep_episodes(dataset, chosen, ends)


def episodes_within(dataset: TransitionDataset, limits: Sequence[Limit]) -> TransitionDataset:
    """The episodes that kept every limit."""
    ends, (totals, steps) = dataset.episode_ends("episodes_within_limits"), dataset.episode_costs()
    kept = np.ones(len(steps), dtype=bool)
    for limit in limits:
        found = limit.of_episodes(totals[:, dataset.cost_names.index(limit.name)], steps)
        if not (found <= limit.bound).any():
            raise DataError(
                f"{dataset.info.source}: no episode kept the limit of {limit.name}, {limit}: the least was "
                f"{found.min():g}; choose a larger limit, or leave out episodes_within_limits"
            )
        kept &= found <= limit.bound
    if not kept.any():
        raise DataError(
            f"{dataset.info.source}: no episode kept all limits at once; choose larger ones, or leave out "
            "episodes_within_limits"
        )
    return keep_episodes(dataset, kept, ends)


USUAL_SHARE = 0.2
"""What is held out where the log is large enough for it."""


def held_out_share(share: HeldOutShare, dataset: TransitionDataset, episodes: int) -> float:
    """The share of so many episodes; "auto" is a fifth, or what a judgement needs where that is more.

    With fewer episodes than twice what a judgement needs, a fifth is held out too: what is left to learn
    from would be less than what is judged by.
    """
    if share != "auto":
        return share
    if episodes < 2 * FEWEST_EPISODES:
        return USUAL_SHARE
    who = episode_values(dataset, "operators")
    rounded = 0.5 * (1 if who is None else len(np.unique(who)))  # each operator's part is rounded by itself
    return max(USUAL_SHARE, (FEWEST_EPISODES + rounded) / episodes)


def split_episodes(
    dataset: TransitionDataset, share: HeldOutShare, seed: int
) -> tuple[TransitionDataset, TransitionDataset]:
    """Two datasets of whole episodes, the second with `share` of them (at least one), drawn with `seed`.

    Days that the log names are held out whole: what happens on a day has much in common. Of operators that
    it names each has its share in both parts: without the best of them little could be learned, and an
    operator who is missing in the second could not be compared with.
    """
    ends = dataset.episode_ends("validation_share")
    count = int(ends.sum())
    if count < 2:
        raise DataError(
            f"{dataset.info.source}: validation_share needs at least 2 episodes to hold one out, got {count}"
        )
    share = held_out_share(share, dataset, count)
    draws = np.random.default_rng(derive_seed(seed, "validation"))
    held = _held_days(dataset, share, draws)
    if held is None:
        drawn, who = draws.permutation(count), episode_values(dataset, "operators")
        held = np.zeros(count, dtype=bool)
        for each in [None] if who is None else np.unique(who):
            own = drawn if who is None else drawn[who[drawn] == each]
            held[own[: round(share * len(own))]] = True
        if not held.any():
            held[drawn[0]] = True
        if held.all():
            held[drawn[-1]] = False
    return keep_episodes(dataset, ~held, ends), keep_episodes(dataset, held, ends)


def _held_days(dataset: TransitionDataset, share: float, draws: np.random.Generator) -> BoolArray | None:
    """Episodes of whole days, about `share` of all; none where the log does not name enough days for that."""
    days = episode_values(dataset, "days")
    if days is None or len(named := np.unique(days)) < FEWEST_DAYS or len(named) == len(days):
        return None
    wanted, held = max(1, round(share * len(days))), np.zeros(len(days), dtype=bool)
    for day in draws.permutation(named):
        if held.sum() < wanted and held.sum() + (days == day).sum() <= 1.5 * wanted:
            held |= days == day
    return held if wanted <= held.sum() < len(days) else None


def episode_values(dataset: TransitionDataset, name: str) -> IntArray | None:
    """What a field of whole numbers says in the first row of every episode, where there is such a field."""
    column = dataset.optional(name)
    if column is None:
        return None
    values: IntArray = as_array(column)[episode_starts(dataset.episode_ends(name))].astype(np.int64)
    return values


def keep_episodes(dataset: TransitionDataset, chosen: BoolArray, ends: BoolArray) -> TransitionDataset:
    """The rows of some episodes, still in time order."""
    rows = np.flatnonzero(np.repeat(chosen, episode_lengths(ends)))
    # an end that only its position marked (the last row) must stay an end among other rows
    timeouts = torch.from_numpy(ends).to(dataset.device) & (dataset.dones == 0)
    kept = dataset.with_columns({"truncations": timeouts.float()}).select_rows(torch.from_numpy(rows))
    return TransitionDataset.from_store(
        kept.store,
        last_rewards=None if dataset.last_rewards is None else dataset.last_rewards.within(rows),
        returns_gamma=dataset.returns_gamma,
        info=dataset.info,
    )


HeldOutShare = float | Literal["auto"]
FEWEST_DAYS = 5
"""With fewer, a day is too large a part of the log to be held out whole."""

FEWEST_EPISODES = 20
"""What a judgement needs at least; with fewer held-out ones it takes those of the training too."""


@dataclass(frozen=True)
class LoggedEpisodes:
    """Rows in time order with units and names as logged; `held_out` if none of them was learned from."""

    dataset: TransitionDataset
    held_out: bool
    by_time: bool
    """whether a step is discounted by its duration"""


def logged_episodes(
    parts: Sequence[TransitionDataset], settings: OfflineFields, by_time: Sequence[bool]
) -> LoggedEpisodes:
    """Held-out episodes where there are enough of them, else any; at most `judge_rows` rows of them.

    What is returned holds copies: preparing the parts for training may change them in place.
    """
    for part in parts:
        if not part.info.rewards_known:
            raise DataError(f"{part.info.source} has no rewards")
        if any(by_time):
            part.step_discounts(settings.judge_gamma, by_time=True)  # says so where no times were logged
    if any(by_time) and not all(by_time):
        raise DataError("discount_by_time must be the same in all of dataset_parts for a judgement")
    chosen, held_out = list(parts), False
    if settings.validation_share:
        held = [split_episodes(each, settings.validation_share, settings.dataset_seed)[1] for each in parts]
        if sum(int(each.episode_ends().sum()) for each in held) >= FEWEST_EPISODES:
            chosen, held_out = held, True
    drawn = draw_episodes(chosen, settings.judge_rows, settings.dataset_seed)
    return LoggedEpisodes(one_after_another(drawn), held_out, any(by_time))


def draw_episodes(parts: Sequence[TransitionDataset], most_rows: int, seed: int) -> list[TransitionDataset]:
    """Whole episodes of all parts, drawn until the next one would exceed `most_rows`; at least one."""
    ends = [part.episode_ends("a judgement") for part in parts]
    lengths = [episode_lengths(each) for each in ends]
    order = np.random.default_rng(derive_seed(seed, "judged episodes")).permutation(sum(map(len, lengths)))
    fits = np.cumsum(np.concatenate(lengths)[order]) <= most_rows
    fits[0] = True
    kept = np.zeros(len(order), dtype=bool)
    kept[order[fits]] = True
    borders: IntArray = np.cumsum([len(each) for each in lengths])[:-1]
    choices = zip(parts, np.split(kept, borders), ends, strict=True)
    return [keep_episodes(part, chosen, own).compacted() for part, chosen, own in choices if chosen.any()]


def one_after_another(parts: Sequence[TransitionDataset]) -> TransitionDataset:
    """The parts as one dataset, still in time order; optional fields only where every part has them."""
    shared = [name for name in parts[0].fields if all(name in part.fields for part in parts)]
    plain = [part.with_fields(shared) for part in parts]
    if len(plain) == 1:
        return plain[0]
    columns = {name: torch.cat([part.store.whole(name) for part in plain]) for name in plain[0].fields}
    first = plain[0]
    return first.with_store(type(first.store)(columns))
