"""Batch fields that are worked out from a log where a learner needs them and the log does not have them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
import torch

from rl_training.core.errors import ConfigError
from rl_training.data.offline_dataset import OPTIONAL_FIELDS, TransitionDataset


@dataclass(frozen=True)
class Discounting:
    """How the future counts: gamma per step, or per median step of time; and what failing for ever costs."""

    gamma: float
    by_time: bool = False
    failure_reward: float | None = None


def with_returns_to_go(dataset: TransitionDataset, how: Discounting) -> TransitionDataset:
    """Monte-Carlo returns-to-go, which stop at the end of an episode."""
    return dataset.with_discounted_returns_to_go(
        how.gamma, failure_reward=how.failure_reward, by_time=how.by_time
    )


def with_next_actions(dataset: TransitionDataset, how: Discounting) -> TransitionDataset:
    """The logged action of the row that holds the next observation; a row without one repeats its own.

    After a termination the next action does not matter. At a time-out whose successor was recorded as an
    observation alone, none was logged, and the row's own action is the nearest guess.
    """
    store = dataset.store
    shares_rows = store.columns["next_obs"] is store.columns["obs"] and "next_obs" in store.row_maps
    actions = store.columns["actions"]
    if shares_rows and len(actions) == len(store.columns["obs"]):
        maps = {**store.row_maps, "next_actions": store.row_maps["next_obs"]}
        return dataset.with_store(
            replace(store, columns={**store.columns, "next_actions": actions}, row_maps=maps)
        )
    ends = dataset.episode_ends("next_actions")
    following = torch.from_numpy(np.arange(len(ends)) + ~ends).to(dataset.device)
    maps = dict(store.row_maps)
    if "actions" in maps:
        maps["next_actions"] = maps["actions"]
    added = replace(store, columns={**store.columns, "next_actions": actions}, row_maps=maps)
    return dataset.with_store(added.looked_up_through(following, ["next_actions"]))


def with_discounts(dataset: TransitionDataset, how: Discounting) -> TransitionDataset:
    """The factor of the successor's value: gamma, or gamma to the power of the step's duration."""
    factors = dataset.step_discounts(how.gamma, by_time=how.by_time).astype(np.float32)
    return dataset.with_columns({"discounts": torch.from_numpy(factors).to(dataset.device)})


DERIVATIONS: dict[str, Callable[[TransitionDataset, Discounting], TransitionDataset]] = {
    "returns_to_go": with_returns_to_go,
    "next_actions": with_next_actions,
    "discounts": with_discounts,
}
"""Field -> how it is worked out, from rows in time order."""


def check_needs(needs: Iterable[str], parts: Iterable[TransitionDataset], wanted_by: str) -> None:
    """Every field that a learner needs can be worked out, or is in the data."""
    for part in parts:
        for need in sorted(needs):
            if need not in DERIVATIONS and need not in part.fields:
                known = ", ".join(DERIVATIONS)
                logged = need in OPTIONAL_FIELDS
                reason = f"which {part.info.source} does not have" if logged else "which is unknown"
                raise ConfigError(
                    f"{wanted_by} needs the batch field {need!r}, {reason}; worked out are: {known}"
                )
