"""How far from the log is what a policy does? Distances to the nearest logged rows, in normalised units."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rl_training.core.streams import derive_seed
from rl_training.data.episodes import IntArray
from rl_training.judging.log import Float64Array, FloatArray, JudgedLog

REFERENCE_SHARE = 0.8
REFERENCE_ROWS = 20_000
QUERY_ROWS = 2000
LIMIT_PERCENTILE = 99.0
_CHUNK = 256


@dataclass(frozen=True)
class Coverage:
    """Rows of some episodes to be near to, rows of the others to compare with."""

    log: JudgedLog
    reference: Tensor
    rows: IntArray
    """held-out rows at whose states policies are asked"""
    logged: Float64Array
    """distances of those rows as they were logged"""
    neighbours: int

    @classmethod
    def of(cls, log: JudgedLog, neighbours: int, seed: int) -> Coverage:
        draws = np.random.default_rng(derive_seed(seed, "judge", "coverage"))
        order = draws.permutation(log.episodes)
        kept = max(1, min(log.episodes - 1, round(REFERENCE_SHARE * log.episodes)))
        is_reference = np.isin(log.numbers, order[:kept]) if log.episodes > 1 else np.arange(len(log)) % 5 > 0
        rows = np.flatnonzero(is_reference)
        near = draws.choice(rows, min(len(rows), REFERENCE_ROWS), replace=False)
        others = np.flatnonzero(~is_reference)
        queries = np.sort(draws.choice(others, min(len(others), QUERY_ROWS), replace=False))
        reference = _points(log, log.obs[near], log.actions[near])
        started = cls(log, reference, queries, np.zeros(0), min(neighbours, len(near)))
        logged = started.distances(log.obs[queries], log.actions[queries])
        return cls(log, reference, queries, logged, started.neighbours)

    @property
    def limit(self) -> float:
        """What all but one in a hundred of the log's own rows stay below."""
        return float(np.percentile(self.logged, LIMIT_PERCENTILE))

    def distances(self, obs: FloatArray, actions: FloatArray) -> Float64Array:
        """Mean distance to the nearest reference rows."""
        points = _points(self.log, obs, actions)
        parts = [
            torch.cdist(points[start : start + _CHUNK], self.reference)
            .topk(self.neighbours, dim=-1, largest=False)
            .values.mean(-1)
            for start in range(0, len(points), _CHUNK)
        ]
        return torch.cat(parts).double().numpy()

    def share_outside(self, distances: Float64Array) -> float:
        return float((distances > self.limit).mean())


def _points(log: JudgedLog, obs: FloatArray, actions: FloatArray) -> Tensor:
    both = np.concatenate([log.obs_scale.apply(obs), log.action_scale.apply(actions)], axis=1)
    return torch.from_numpy(both)
