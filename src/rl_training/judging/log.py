"""The log as a judgement sees it: episodes, normalised units, the behaviour's next actions, who acted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rl_training.core.errors import DataError
from rl_training.core.spaces import Spaces
from rl_training.data.episodes import BoolArray, IntArray, episode_lengths, episode_starts, returns_to_go
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.rows import as_array

FloatArray = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]

NameOf = Callable[[str, int], str]
"""("observation" or "action", index) -> what that number is called"""

SMALLEST_SPREAD = 1e-6
MOST_OPERATORS = 20
FEWEST_STINTS = 10
"""An operator who took over less often is not valued: a resample may hold none of it."""


@dataclass(frozen=True)
class Scale:
    """value -> (value - center) / spread, column by column."""

    center: FloatArray
    spread: FloatArray

    @classmethod
    def of(cls, values: FloatArray) -> Scale:
        spread = values.std(axis=0, dtype=np.float64)
        center = values.mean(axis=0, dtype=np.float64)
        return cls(
            center.astype(np.float32), np.where(spread > SMALLEST_SPREAD, spread, 1).astype(np.float32)
        )

    def apply(self, values: npt.ArrayLike) -> FloatArray:
        scaled: FloatArray = ((np.asarray(values, np.float32) - self.center) / self.spread).astype(np.float32)
        return scaled

    def undo(self, values: FloatArray) -> FloatArray:
        plain: FloatArray = (values * self.spread + self.center).astype(np.float32)
        return plain


@dataclass(frozen=True)
class RewardScale:
    """Rewards centred and divided by the spread of returns; values undo it.

    Centring takes the level out of what the networks have to learn. After a termination nothing is earned,
    which in centred rewards is a value of its own. Where discounts d differ from row to row, a level L of all
    values is taken out by r - L (1 - d): from Q = r + d Q' follows Q - L = r - L (1 - d) + d (Q' - L).
    """

    center: float
    spread: float
    horizon: float

    def rewards(self, values: FloatArray, discounts: Float64Array | None = None) -> FloatArray:
        center = self.center if discounts is None else self.level * (1.0 - discounts)
        scaled: FloatArray = ((values.astype(np.float64) - center) / self.spread).astype(np.float32)
        return scaled

    @property
    def terminal(self) -> float:
        """The scaled value of earning nothing any more."""
        return -self.level / self.spread

    @property
    def level(self) -> float:
        """What the centre of the rewards adds to every value."""
        return self.center * self.horizon if self.center else 0.0

    def values(self, scaled: npt.ArrayLike) -> Float64Array:
        return np.asarray(scaled, dtype=np.float64) * self.spread + self.level


@dataclass(frozen=True)
class JudgedLog:
    """Rows in time order, in the user's units, and how they are scaled for the networks."""

    obs: FloatArray
    actions: FloatArray
    next_obs: FloatArray
    rewards: FloatArray
    dones: BoolArray
    ends: BoolArray
    gamma: float
    discounts: Float64Array | None = None
    """the factor of what follows each row, where it is not gamma everywhere"""
    mask_size: int = 0
    """how many of the last numbers observed say which levels of choices may be taken"""

    @classmethod
    def from_dataset(
        cls, data: TransitionDataset, gamma: float, *, by_time: bool = False, parts: Spaces | None = None
    ) -> JudgedLog:
        """`parts` say what the actions are, where there are choices among them: these become shares."""
        if not len(data):
            raise DataError(f"{data.info.source}: the dataset is empty (no complete transition)")
        if data.discounts is not None:
            raise DataError(
                f"{data.info.source}: rows with discounts of their own cannot be judged; judge them as they "
                "were logged (discount_by_time: true discounts by logged times)"
            )
        discounts = data.step_discounts(gamma, by_time=True) if by_time else None
        durations = as_array(data.store.whole("durations")) if by_time else np.ones(1)
        if not (durations.min() >= 0.0 and durations.max() > 0.0):
            raise DataError(f"{data.info.source}: durations must be >= 0 and not all 0 to discount by them")
        columns = [as_array(values) for values in (data.obs, data.actions, data.next_obs, data.rewards)]
        obs, actions, next_obs = (c.reshape(len(data), -1).astype(np.float32) for c in columns[:3])
        for name, values in zip(("obs", "actions", "next_obs", "rewards"), columns, strict=True):
            if not np.isfinite(values).all():
                raise DataError(f"{data.info.source}: {name} must be finite numbers to be judged")
        mask_size = 0
        if parts is not None:
            actions, mask_size = parts.in_shares(actions), parts.mask_size if data.info.masked else 0
        dones, ends = as_array(data.dones) != 0, data.episode_ends("a judgement")
        rewards = columns[3].astype(np.float32)
        log = cls(obs, actions, next_obs, rewards, dones, ends, gamma, discounts, mask_size)
        if gamma == 1.0 and not dones[ends].all():
            raise DataError(
                f"gamma must be < 1: {int((~dones[ends]).sum())} of {log.episodes} episodes do not "
                "terminate, and what never ends has no finite undiscounted value"
            )
        return log

    def __len__(self) -> int:
        return len(self.rewards)

    @property
    def episodes(self) -> int:
        return len(self.starts)

    @cached_property
    def starts(self) -> IntArray:
        return episode_starts(self.ends)

    @cached_property
    def lengths(self) -> IntArray:
        return episode_lengths(self.ends)

    @cached_property
    def numbers(self) -> IntArray:
        """The episode of each row."""
        return np.cumsum(self.ends, dtype=np.int64) - self.ends

    @cached_property
    def steps(self) -> IntArray:
        """How far into its episode each row is."""
        steps: IntArray = np.arange(len(self)) - np.repeat(self.starts, self.lengths)
        return steps

    def per_episode(self, values: npt.ArrayLike) -> list[npt.NDArray[np.float64]]:
        """One array per episode."""
        return np.split(np.asarray(values, dtype=np.float64), self.starts[1:])

    @cached_property
    def next_actions(self) -> FloatArray:
        """The action logged one row later; meaningless at the end of an episode."""
        return np.concatenate([self.actions[1:], self.actions[-1:]])

    @property
    def has_successor(self) -> BoolArray:
        """Rows whose value can be followed on: the next action is logged, or nothing comes after."""
        return ~self.ends | self.dones

    @cached_property
    def step_discount(self) -> float:
        """gamma, or its mean over rows: what a step keeps of the future if its duration is left to chance."""
        return self.gamma if self.discounts is None else float(self.discounts.mean())

    @cached_property
    def horizon(self) -> float:
        """How many steps count: 1 / (1 - gamma), or the longest episode where nothing is discounted."""
        return float(self.lengths.max()) if self.gamma == 1.0 else 1.0 / (1.0 - self.step_discount)

    @cached_property
    def discounted(self) -> Float64Array | None:
        """What each row counts at the start of its episode: the product of the factors before it."""
        if self.discounts is None:
            return None
        before = np.concatenate([[1.0], self.discounts[:-1]])
        before[self.starts] = 1.0
        return np.concatenate([np.cumprod(each) for each in self.per_episode(before)])

    def returns(self, earned: npt.NDArray[Any]) -> Float64Array:
        """Discounted sums from each row to the end of its episode."""
        returns: Float64Array = returns_to_go(earned, self.ends, self.gamma, discounts=self.discounts)
        return returns

    @cached_property
    def obs_scale(self) -> Scale:
        return Scale.of(self.obs)

    @cached_property
    def action_scale(self) -> Scale:
        return Scale.of(self.actions)

    @cached_property
    def reward_scale(self) -> RewardScale:
        center = 0.0 if self.gamma == 1.0 else float(self.rewards.mean(dtype=np.float64))
        earned = self.rewards.astype(np.float64)
        if self.discounts is None:
            earned -= center
            earned[self.dones] -= self.gamma * center * self.horizon
        else:
            level = center * self.horizon
            earned -= level * (1.0 - self.discounts * ~self.dones)
        spread = float(self.returns(earned).std())
        return RewardScale(center, spread if spread > SMALLEST_SPREAD else 1.0, self.horizon)

    @cached_property
    def value_range(self) -> tuple[float, float]:
        """The smallest and the largest value that the logged rewards can add up to."""
        low, high = float(self.rewards.min()), float(self.rewards.max())
        longest = self.horizon
        if self.discounts is not None and self.gamma < 1.0:  # the episode of the shortest steps counts most
            kept = np.add.reduceat(1.0 - self.discounts, self.starts) / self.lengths
            longest = 1.0 / max(float(kept.min()), 1e-3 / self.horizon)
        bounds = [low * longest, high * longest]
        if self.dones.any():  # an episode may also end at once
            bounds = [min(bounds[0], low), max(bounds[1], high)]
        return bounds[0], bounds[1]

    @cached_property
    def worst_value(self) -> float:
        """What the lowest hundredth of the logged rewards add up to, or nothing, if an end comes before."""
        worst = float(np.percentile(self.rewards, 1.0)) * self.horizon
        return min(worst, 0.0) if self.dones.any() else worst

    @property
    def mean_return(self) -> float:
        """Mean discounted return of the logged episodes as they are, cut off where they were."""
        return float(self.returns(self.rewards)[self.starts].mean())

    @cached_property
    def columns(self) -> dict[str, Tensor]:
        """What the networks see, row by row."""
        discounts = self.discounts
        more = {} if discounts is None else {"discounts": torch.from_numpy(discounts.astype(np.float32))}
        return {
            **more,
            "obs": torch.from_numpy(self.obs_scale.apply(self.obs)),
            "actions": torch.from_numpy(self.action_scale.apply(self.actions)),
            "next_obs": torch.from_numpy(self.obs_scale.apply(self.next_obs)),
            "rewards": torch.from_numpy(self.reward_scale.rewards(self.rewards, discounts)),
            "dones": torch.from_numpy(self.dones.astype(np.float32)),
            "episodes": torch.from_numpy(self.numbers),
        }


@dataclass(frozen=True)
class Operator:
    """Somebody who acted in a part of the log."""

    name: str
    rows: BoolArray
    """rows in which it acted and whose successor is known: it acted in the next row too, or nothing came"""
    starts: IntArray
    """rows in which it took over"""


def operators_of(data: TransitionDataset, log: JudgedLog) -> tuple[list[Operator], dict[str, int]]:
    """Those of the column `operators`, if the log has one, who took over often enough to be valued.

    And those who did not, with how often they did: one of them may be the best.
    """
    if "operators" not in data.store.columns:
        return [], {}
    who = as_array(data.store.whole("operators")).astype(np.int64).reshape(-1)
    known = [int(code) for code in np.unique(who) if code >= 0]
    if len(known) > MOST_OPERATORS:
        raise DataError(
            f"{data.info.source}: the column of operators has {len(known)} values, more than "
            f"{MOST_OPERATORS}; it must name who acted, such as a shift or a controller"
        )
    again = np.append(who[1:] == who[:-1], False)
    took_over = np.concatenate([[True], log.ends[:-1] | ~again[:-1]])
    found, seldom = [], {}
    for code in known if len(known) > 1 else ():
        acted, name = who == code, data.info.operator_name(code)
        starts = np.flatnonzero(acted & took_over)
        if len(starts) >= FEWEST_STINTS:
            found.append(Operator(name, acted & (log.dones | (again & ~log.ends)), starts))
        else:
            seldom[name] = len(starts)
    return found, seldom
