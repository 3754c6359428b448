"""Episodes of a run's data as they were logged, in the user's units: what its policy is judged by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from rl_training.config.data_fields import OfflineFields
from rl_training.core.errors import DataError
from rl_training.core.streams import derive_seed
from rl_training.data.episode_transforms import keep_episodes, split_episodes
from rl_training.data.episodes import IntArray, episode_lengths
from rl_training.data.offline_dataset import TransitionDataset

FEWEST_EPISODES = 20
"""What a judgement needs at least; with fewer held-out ones it takes those of the training too."""

KEPT_FIELDS = ("truncations", "behavior_logprobs", "discounts", "durations")


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
    if settings.validation_share > 0.0:
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
    shared = [name for name in KEPT_FIELDS if all(name in part.fields for part in parts)]
    plain = [part.with_fields(shared) for part in parts]
    if len(plain) == 1:
        return plain[0]
    columns = {name: torch.cat([part.store.whole(name) for part in plain]) for name in plain[0].fields}
    first = plain[0]
    return first.with_store(type(first.store)(columns))
