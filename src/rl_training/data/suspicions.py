"""What looks wrong about a dataset, in plain words."""

from __future__ import annotations

import numpy as np

from rl_training.data.inspection import EDGE, Inspection
from rl_training.data.validation import BOUND_TOLERANCE

PILE = 0.02
"""Share of rows on one extreme of an action from which it looks like a bound."""

UNEVEN_SCALES = 100.0
"""Ratio of standard deviations from which observations count as differently scaled."""


def suspicions(found: Inspection) -> list[str]:
    """Every suspicion about an inspected log."""
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
