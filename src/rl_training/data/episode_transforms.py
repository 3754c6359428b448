"""Choices and sums over whole episodes; they need rows in time order."""

from __future__ import annotations

import numpy as np
import torch

from rl_training.core.errors import DataError
from rl_training.core.streams import derive_seed
from rl_training.data.episodes import BoolArray, episode_lengths
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.returns import Float64Array, n_step_returns
from rl_training.data.stored_rows import as_array


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


def split_episodes(
    dataset: TransitionDataset, share: float, seed: int
) -> tuple[TransitionDataset, TransitionDataset]:
    """Two datasets of whole episodes, the second with `share` of them (at least one), drawn with `seed`."""
    ends = dataset.episode_ends("validation_share")
    count = int(ends.sum())
    if count < 2:
        raise DataError(
            f"{dataset.info.source}: validation_share needs at least 2 episodes to hold one out, got {count}"
        )
    held = np.zeros(count, dtype=bool)
    drawn = np.random.default_rng(derive_seed(seed, "validation")).permutation(count)
    held[drawn[: min(count - 1, max(1, round(share * count)))]] = True
    return keep_episodes(dataset, ~held, ends), keep_episodes(dataset, held, ends)


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
