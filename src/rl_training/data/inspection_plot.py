"""The picture of an inspection: six panels, readable without a display."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rl_training.data.episode_log import EpisodeLog
from rl_training.data.episodes import Array
from rl_training.data.inspection import Inspection
from rl_training.data.writing import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BLUE, ORANGE, GREY = "#1f5fa8", "#c8553d", "#6c757d"
MANY_FEATURES = 40
MANY_ROWS = 200_000


def plot_inspection(found: Inspection, log: EpisodeLog, path: Path) -> None:
    """Histograms of returns, lengths, rewards and actions, returns in order, and observation ranges."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 7), dpi=130, layout="constrained")
    (returns, order, lengths), (rewards, actions, observations) = figure.subplots(2, 3)
    figure.suptitle(
        f"{_title(found)}: {found.rows:,} rows, {len(found.returns):,} episodes, "
        f"{found.terminations:,} terminations, {found.timeouts:,} time-outs",
        x=0.02,
        ha="left",
        fontweight="bold",
    )
    step = max(1, found.rows // MANY_ROWS)
    _histogram(returns, found.returns, "return of an episode", "episodes")
    _histogram(lengths, found.lengths, "steps of an episode", "episodes")
    _histogram(rewards, log.rewards[::step], "reward of a step", "rows")
    order.plot(found.returns, ".", color=BLUE, markersize=3, alpha=0.6)
    _label(order, "episode, in the order of the file", "return")
    _draw_actions(actions, log.actions[::step], found)
    _draw_observations(observations, found)
    for panel in (returns, order, lengths, rewards, observations):
        panel.grid(alpha=0.25)
    for panel in figure.axes:
        panel.spines[["top", "right"]].set_visible(False)
    with replacing(path) as temporary:
        figure.savefig(temporary, format="png")


def _histogram(panel: Axes, values: Array, label: str, counted: str) -> None:
    finite = np.asarray(values, dtype=np.float64)[np.isfinite(values)]
    if len(finite):
        low, high = float(finite.min()), float(finite.max())
        around = 0.0 if high > low else 0.1 * max(1.0, abs(low))
        bins = int(np.clip(2 * np.sqrt(len(finite)), 5, 41))
        panel.hist(finite, bins=bins, range=(low - around, high + around), color=BLUE)
        panel.axvline(
            float(np.mean(finite)), color=ORANGE, linewidth=1.2, label=f"mean {np.mean(finite):.4g}"
        )
        _legend(panel)
    _label(panel, label, counted)


def _draw_actions(panel: Axes, actions: Array, found: Inspection) -> None:
    """One distribution per action, as a row of shades, with the bounds where they are known."""
    values = actions if actions.ndim > 1 else actions[:, None]
    low, high = float(np.nanmin(found.action_low)), float(np.nanmax(found.action_high))
    edges = np.linspace(low, high if high > low else low + 1.0, 61)
    shares = np.stack([np.histogram(column, edges)[0] for column in values.T]) / max(1, len(values))
    mesh = panel.pcolormesh(np.arange(values.shape[1] + 1) - 0.5, edges, shares.T, cmap="Blues")
    panel.figure.colorbar(mesh, ax=panel, label="share of rows", fraction=0.05)
    if found.bounds is not None:
        for bounds in (found.bounds.action_low, found.bounds.action_high):
            panel.hlines(bounds, *_sides(len(bounds)), color=ORANGE, linewidth=1.5)
        margin = 0.04 * (edges[-1] - edges[0])
        panel.set_ylim(edges[0] - margin, edges[-1] + margin)
    _label(panel, f"action ({found.saturation.mean():.0%} of entries on a bound)", "value")
    panel.set_xticks(range(values.shape[1]) if values.shape[1] <= MANY_FEATURES // 2 else [])


def _sides(count: int) -> tuple[Array, Array]:
    """Left and right end of each action's column."""
    centres = np.arange(count)
    return centres - 0.5, centres + 0.5


def _title(found: Inspection) -> str:
    path = Path(found.source)
    return path.name if path.is_absolute() or path.suffix else found.source


def _draw_observations(panel: Axes, found: Inspection) -> None:
    features = np.arange(len(found.obs_mean))
    panel.vlines(features, found.obs_low, found.obs_high, color=GREY, linewidth=1, label="range")
    panel.errorbar(
        features,
        found.obs_mean,
        found.obs_std,
        fmt=".",
        color=BLUE,
        capsize=2,
        linewidth=2,
        label="mean ± std",
    )
    _legend(panel)
    _label(panel, "observation", "value")
    if len(features) <= MANY_FEATURES // 2:
        panel.set_xticks(features)


def _legend(panel: Axes) -> None:
    panel.legend(loc="best", fontsize=8, frameon=True, framealpha=0.85, edgecolor="none")


def _label(panel: Axes, horizontal: str, vertical: str) -> None:
    panel.set_xlabel(horizontal)
    panel.set_ylabel(vertical)
