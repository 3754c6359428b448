"""Were these trips? Episodes that end early without a mark, where hardly any other row is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rl_training.core.types import Array
from rl_training.data.episodes import BoolArray, episode_lengths

EXTREME = 0.02
"""Share of rows on either side of a column that counts as its end."""

EARLY = 0.9
"""Episodes shorter than this share of a long one end early; nine of ten are no longer than a long one."""

FEWEST, FEWEST_SHARE = 5, 0.02
"""Episodes that end early, at least, and their share of all."""

FEWEST_ROWS = 150
MOST_OF_THEM = 0.6
"""Share of the early ends that lie at the extremes of one column, at least: twice that of other ends."""

_SAMPLED = 50_000


@dataclass(frozen=True)
class EarlyEnds:
    """Episodes that end early without a mark, and the extreme at which most of them end."""

    early: int
    episodes: int
    share: float = 0.0
    """of the early ends that lie at the extreme"""
    column: int = 0
    side: str = ""
    """high, low, or both; empty where they end anywhere"""

    @property
    def are_suspect(self) -> bool:
        return bool(self.side)

    def sentence(self, name_of: Callable[[str, int], str]) -> str:
        return (
            f"{self.early} of {self.episodes} episodes end early without a mark, {self.share:.0%} of them "
            f"where {name_of('observation', self.column)} is as {self.side} as in {EXTREME:.0%} of all rows: "
            "were these trips? Mark the rows in which the task itself ended (--terminated), or values count "
            "on what never came."
        )


def early_ends(obs: Array, next_obs: Array | None, ends: BoolArray, terminated: BoolArray) -> EarlyEnds:
    """Compare where early ends lie with all other rows, by the last observation that is known of each."""
    obs = obs if obs.ndim > 1 else obs[:, None]
    lengths, last = episode_lengths(ends), np.flatnonzero(ends)
    early = ~terminated[last] & (lengths < EARLY * np.quantile(lengths, 0.9))
    found = EarlyEnds(int(early.sum()), len(lengths))
    others = np.ones(len(obs), dtype=bool)
    others[last] = others[np.maximum(last - 1, 0)] = False
    rows = np.flatnonzero(others)
    if early.sum() < FEWEST or early.mean() < FEWEST_SHARE or len(rows) < FEWEST_ROWS:
        return found
    rows = rows[np.linspace(0, len(rows) - 1, min(len(rows), _SAMPLED)).astype(int)]
    seen = np.asarray((obs if next_obs is None else next_obs.reshape(len(obs), -1))[last], dtype=np.float64)
    known = np.where(np.isnan(obs[rows]).all(axis=0), 0.0, obs[rows])
    low, high = np.nanquantile(known, (EXTREME, 1.0 - EXTREME), axis=0)
    # many rows on a bound make no extreme
    above = (seen >= high) & (np.nanmean(known >= high, axis=0) <= 3 * EXTREME)
    below = (seen <= low) & (np.nanmean(known <= low, axis=0) <= 3 * EXTREME)
    shares = (above | below)[early].mean(axis=0)
    rest = (above | below)[~early].mean(axis=0) if (~early).any() else np.zeros_like(shares)
    shares = np.where((shares >= MOST_OF_THEM) & (rest <= shares / 2.0), shares, 0.0)
    column = int(shares.argmax())
    if not shares[column]:
        return found
    sides = {"high": above[early, column].any(), "low": below[early, column].any()}
    side = " or ".join(name for name, is_one in sides.items() if is_one)
    return EarlyEnds(found.early, found.episodes, float(shares[column]), column, side)
