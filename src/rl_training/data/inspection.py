"""What is in a dataset, and what is suspicious about it, in numbers and plain words."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from rl_training.core.spaces import Spaces
from rl_training.data.data_info import DataInfo
from rl_training.data.episode_log import EpisodeLog
from rl_training.data.episodes import Array, episode_lengths, episode_returns
from rl_training.data.validation import BOUND_TOLERANCE, row_chunks

EDGE = 1e-3
"""An action within this share of its range from a bound counts as saturated."""

PILE = 0.02
"""Share of rows on one extreme of an action from which it looks like a bound."""

UNEVEN_SCALES = 100.0
"""Ratio of standard deviations from which observations count as differently scaled."""


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

    def to_dict(self) -> dict[str, Any]:
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
    found.warnings.extend([*log.notes, *_warnings(found)])
    return found


def _warnings(found: Inspection) -> list[str]:
    words = []
    for name, count in found.non_finite.items():
        words.append(f"{name} has {count} rows with NaN or infinity: training on this data is refused.")
    dropped = found.rows - found.usable_rows
    if dropped:
        words.append(
            f"{dropped} rows end a timed-out episode and have no recorded successor: their rewards count for "
            "returns, but they cannot be trained on."
        )
    if not found.terminations:
        words.append(
            "No row terminates. That is right for tasks without failure or goal, and wrong otherwise."
        )
    short = int((found.lengths == 1).sum())
    if short:
        words.append(
            f"{short} of {len(found.lengths)} episodes have a single step: are the ends marked rightly?"
        )
    if not found.info.rewards_known:
        words.append("The data has no reward: only behaviour cloning (bc) can learn from it.")
    elif found.reward_range[0] == found.reward_range[1]:
        words.append(f"Every reward is {found.reward_range[0]:g}: only behaviour cloning can learn from it.")
    if found.duplicates:
        share = found.duplicates / found.rows
        words.append(f"{found.duplicates} rows ({share:.1%}) repeat an earlier observation and action.")
    return [*words, *_action_warnings(found), *_observation_warnings(found)]


def _action_warnings(found: Inspection) -> list[str]:
    words = []
    if found.bounds is None:
        words.append(
            "The data does not state its action bounds: training needs env_id, or action_low and action_high."
        )
    else:
        low, high = np.array(found.bounds.action_low), np.array(found.bounds.action_high)
        slack = BOUND_TOLERANCE * (high - low)
        outside = (found.action_low < low - slack) | (found.action_high > high + slack)
        if outside.any():
            words.append(
                f"Actions {found.named('action', outside)} leave their bounds: set out_of_bounds to clip "
                "or to rescale."
            )
    share = float(found.saturation.mean())
    if share > 0.05:
        words.append(
            f"{share:.0%} of the action entries lie on a bound: set action_clip (0.99999) for algorithms "
            "that take the log-probability of data actions."
        )
    words += _pile_warnings(found)
    constant = found.action_low == found.action_high
    if constant.any():
        words.append(f"Actions {found.named('action', constant)} never change.")
    return words


def _observation_warnings(found: Inspection) -> list[str]:
    words = []
    constant = found.obs_std == 0
    if constant.any():
        words.append(f"Observations {found.named('observation', constant)} never change.")
    spread = found.obs_std[~constant]
    if len(spread) and spread.max() > UNEVEN_SCALES * spread.min():
        words.append(
            f"Observations differ in scale by a factor of {spread.max() / spread.min():.0f}: "
            "normalize_observations may help."
        )
    return words


def _pile_warnings(found: Inspection) -> list[str]:
    """Actions that pile up on a value which is not their stated bound: the bounds are the first suspects."""
    if found.on_low is None or found.on_high is None:
        return []
    words = []
    for side, shares, extremes in (
        ("low", found.on_low, found.action_low),
        ("high", found.on_high, found.action_high),
    ):
        for index in np.flatnonzero((shares > PILE) & (found.action_low < found.action_high)):
            bound = None
            if found.bounds is not None:
                bound = (found.bounds.action_low if side == "low" else found.bounds.action_high)[index]
                span = found.bounds.action_high[index] - found.bounds.action_low[index]
                if abs(bound - extremes[index]) <= EDGE * span:
                    continue
            name, value = found.info.name_of("action", int(index)), f"{extremes[index]:g}"
            stated = "no bound is stated" if bound is None else f"the stated bound is {bound:g}"
            words.append(
                f"{shares[index]:.0%} of {name} lie exactly on {value}, but {stated}: probably its {side} "
                f"bound is {value}."
            )
    return words


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
