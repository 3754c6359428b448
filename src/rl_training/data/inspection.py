"""What is in a dataset, and what is suspicious about it, in numbers and plain words."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from rl_training.core.plain import State
from rl_training.core.spaces import Spaces
from rl_training.data.data_info import DataInfo
from rl_training.data.episode_log import EpisodeLog
from rl_training.data.episodes import Array, episode_lengths, episode_returns
from rl_training.data.validation import row_chunks

EDGE = 1e-3
"""An action within this share of its range from a bound counts as saturated."""


@dataclass(frozen=True)
class Inspection:
    """Numbers about a log; arrays have one entry per episode, per observation or per action."""

    source: str
    env_id: str | None
    rows: int
    usable_rows: int
    terminations: int
    timeouts: int
    returns: npt.NDArray[np.float64]
    lengths: npt.NDArray[np.int64]
    reward_range: tuple[float, float]
    action_low: Array
    action_high: Array
    bounds: Spaces | None
    saturation: Array
    obs_mean: Array
    obs_std: Array
    obs_low: Array
    obs_high: Array
    non_finite: dict[str, int]
    duplicates: int
    warnings: list[str]
    info: DataInfo = field(default_factory=DataInfo)
    """where names and units of the numbers are"""
    on_low: Array | None = None
    on_high: Array | None = None
    """share of rows in which an action lies exactly on its smallest and on its largest logged value"""

    def named(self, kind: str, mask: Array) -> str:
        """The observations or actions where `mask` is true, by name."""
        indices = np.flatnonzero(mask)
        text = ", ".join(
            self.info.name_of(kind, int(index)).removeprefix(f"{kind} ") for index in indices[:8]
        )
        return text if len(indices) <= 8 else f"{text}, ... ({len(indices)} in all)"

    def to_dict(self) -> State:
        """Plain data for JSON."""
        return {
            "source": self.source,
            "env_id": self.env_id,
            "transitions": self.rows,
            "usable_transitions": self.usable_rows,
            "episodes": len(self.returns),
            "terminations": self.terminations,
            "timeouts": self.timeouts,
            "return": _spread(self.returns),
            "episode_length": _spread(self.lengths),
            "reward": {"min": self.reward_range[0], "max": self.reward_range[1]},
            "actions": {
                "min": self.action_low.tolist(),
                "max": self.action_high.tolist(),
                "bounds": None
                if self.bounds is None
                else [list(self.bounds.action_low), list(self.bounds.action_high)],
                "saturation": self.saturation.tolist(),
            },
            "observation_names": _listed_or_none(self.info.observation_names),
            "action_names": _listed_or_none(self.info.action_names),
            "units": dict(self.info.units),
            "has_rewards": self.info.rewards_known,
            "observations": {
                "mean": self.obs_mean.tolist(),
                "std": self.obs_std.tolist(),
                "min": self.obs_low.tolist(),
                "max": self.obs_high.tolist(),
            },
            "non_finite": self.non_finite,
            "duplicates": self.duplicates,
            "warnings": self.warnings,
        }


def inspect_log(log: EpisodeLog, bounds: Spaces | None = None) -> Inspection:
    """Look at every row; `bounds` are the action bounds, where they are known."""
    from rl_training.data.suspicions import suspicions  # about inspections

    ends, actions = log.ends, _matrix(log.actions)
    known = bounds or log.info.spaces
    if known is not None and known.action_dim != actions.shape[1]:
        known = None
    mean, std, low, high = _moments(_matrix(log.obs))
    action_low, action_high = _moments(actions)[2:]
    columns = {"obs": log.obs, "actions": log.actions, "rewards": log.rewards, "next_obs": log.next_obs}
    found = Inspection(
        source=log.info.source,
        env_id=log.info.env_id,
        rows=len(log),
        usable_rows=int(log.complete.sum()),
        terminations=int(log.terminated.sum()),
        timeouts=int(log.truncated.sum()),
        returns=episode_returns(log.rewards, ends),
        lengths=episode_lengths(ends),
        reward_range=(float(np.nanmin(log.rewards)), float(np.nanmax(log.rewards))),
        action_low=action_low,
        action_high=action_high,
        bounds=known,
        saturation=_saturation(actions, known, action_low, action_high),
        obs_mean=mean,
        obs_std=std,
        obs_low=low,
        obs_high=high,
        non_finite={name: count for name, values in columns.items() if (count := _non_finite(values))},
        duplicates=_duplicates(_matrix(log.obs), actions),
        warnings=[],
        info=log.info,
        on_low=(actions == action_low).mean(axis=0),
        on_high=(actions == action_high).mean(axis=0),
    )
    found.warnings.extend([*log.notes, *suspicions(found)])
    return found


def _listed_or_none(names: tuple[str, ...] | None) -> list[str] | None:
    return None if names is None else list(names)


def _spread(values: Array) -> dict[str, float]:
    return {
        "mean": float(values.mean()),
        "std": float(values.std()),
        "min": float(values.min()),
        "median": float(np.median(values)),
        "max": float(values.max()),
    }


def _moments(values: Array) -> tuple[Array, Array, Array, Array]:
    """Mean, population standard deviation, minimum and maximum of every column, over finite rows."""
    finite = np.isfinite(values).all(axis=1)
    chosen = values if finite.all() else values[finite]
    if not len(chosen):
        nothing = np.full(values.shape[1], np.nan)
        return nothing, nothing, nothing, nothing
    return (
        chosen.mean(axis=0, dtype=np.float64),
        chosen.std(axis=0, dtype=np.float64),
        chosen.min(axis=0),
        chosen.max(axis=0),
    )


def _saturation(actions: Array, bounds: Spaces | None, low: Array, high: Array) -> Array:
    """Share of entries of every action that lie on a bound (on its extremes, where bounds are unknown)."""
    if bounds is not None:
        low, high = np.array(bounds.action_low), np.array(bounds.action_high)
    slack = EDGE * (np.asarray(high, dtype=np.float64) - low)
    on_edge = sum(
        ((actions[rows] <= low + slack) | (actions[rows] >= high - slack)).sum(axis=0)
        for rows in row_chunks(len(actions))
    )
    share: Array = np.asarray(on_edge) / len(actions)
    return share


def _non_finite(values: Array | None) -> int:
    if values is None:
        return 0
    rows = (values[rows] for rows in row_chunks(len(values)))
    return int(sum((~np.isfinite(_matrix(chunk)).all(axis=1)).sum() for chunk in rows))


def _duplicates(obs: Array, actions: Array) -> int:
    """Rows whose observation and action occurred before, compared by a 64-bit sum of weighted bits."""
    rng = np.random.default_rng(0)
    hashes = np.zeros(len(obs), dtype=np.uint64)
    for values in (obs, actions):
        bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
        for column in range(bits.shape[1]):
            factor = np.uint64(rng.integers(1, 2**63)) | np.uint64(1)
            mixed = (bits[:, column] + np.uint64(column + 1)) * factor
            hashes += mixed ^ (mixed >> np.uint64(29))
    return len(hashes) - len(np.unique(hashes))


def _matrix(values: Array) -> Array:
    return values if values.ndim > 1 else values[:, None]
