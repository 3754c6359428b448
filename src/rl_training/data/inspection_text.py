"""An inspection as rows of text for a table."""

from __future__ import annotations

import numpy as np

from rl_training.data.episodes import Array
from rl_training.data.inspection import Inspection

MANY = 12
"""Features beyond this number are summed up in one row."""


def overview_rows(found: Inspection) -> list[tuple[str, str]]:
    """The dataset as a whole."""
    usable = "" if found.usable_rows == found.rows else f" ({found.usable_rows:,} usable)"
    return [
        ("environment", found.env_id or "not stated"),
        ("transitions", f"{found.rows:,}{usable}"),
        ("episodes", f"{len(found.returns):,}"),
        ("terminations / time-outs", f"{found.terminations:,} / {found.timeouts:,}"),
        ("return", _spread(found.returns)),
        ("episode length", _spread(found.lengths)),
        ("reward", f"{found.reward_range[0]:.4g} to {found.reward_range[1]:.4g}"),
        ("rows with NaN or infinity", f"{sum(found.non_finite.values()):,}"),
        ("repeated rows", f"{found.duplicates:,}"),
    ]


def feature_rows(found: Inspection) -> list[tuple[str, ...]]:
    """One row per action and observation, or one for all where there are many."""
    actions = np.stack([found.action_low, found.action_high], axis=1)
    shares = [f"{share:.1%}" for share in found.saturation]
    rows: list[tuple[str, ...]]
    if len(actions) > MANY:
        low, high = actions[:, 0].min(), actions[:, 1].max()
        rows = [
            (
                f"actions 0 to {len(actions) - 1}",
                _number(low),
                _number(high),
                "",
                "",
                f"{found.saturation.mean():.1%}",
            )
        ]
    else:
        rows = [
            (found.info.name_of("action", index), _number(low), _number(high), "", "", share)
            for index, ((low, high), share) in enumerate(zip(actions, shares, strict=True))
        ]
    columns = (found.obs_low, found.obs_high, found.obs_mean, found.obs_std)
    table = np.stack(columns, axis=1)
    shown = range(min(len(table), MANY))
    rows += [
        (found.info.name_of("observation", index), *(_number(value) for value in table[index]), "")
        for index in shown
    ]
    if len(table) > MANY:
        rest = table[MANY:]
        summary = (rest[:, 0].min(), rest[:, 1].max(), rest[:, 2].mean(), rest[:, 3].mean())
        name = f"observations {MANY} to {len(table) - 1}"
        rows.append((name, *(_number(value) for value in summary), ""))
    return rows


def _number(value: float) -> str:
    return f"{value:.4g}"


def _spread(values: Array) -> str:
    numbers = {"mean": values.mean(), "min": values.min(), "median": np.median(values), "max": values.max()}
    return ", ".join(f"{name} {number:.1f}" for name, number in numbers.items())
