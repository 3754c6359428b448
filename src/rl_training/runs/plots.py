"""The learning curve of a run as a picture, drawn without a display and without global state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rl_training.config.yaml import read_yaml
from rl_training.core.errors import UserError
from rl_training.core.files import reason, replace_file
from rl_training.core.types import Array, Facts
from rl_training.runs.directory import CONFIG_FILE, algorithm_title, read_summary, step_label
from rl_training.runs.tracking import read_metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CURVE_FILE = "learning_curve.png"
RETURN_COLOR = "#1f5fa8"
LOSS_COLORS = ("#c8553d", "#588157", "#7b4b94", "#b08900", "#3d7ea6", "#6c757d")
# Losses of one run can differ by orders of magnitude; beyond this ratio a linear axis shows only the largest.
LINEAR_RATIO = 20.0

Rows = Sequence[Facts]
Curve = tuple[Array, Array]


def plot_learning_curve(run_dir: str | Path, out: str | Path | None = None) -> Path:
    """Draw evaluation return and losses of a run, by default to `learning_curve.png` in its directory."""
    path = Path(out) if out is not None else Path(run_dir) / CURVE_FILE
    figure = _draw(
        read_metrics(run_dir),
        _read_config(Path(run_dir)),
        fallback_title=Path(run_dir).name,
        data_return=_data_return(Path(run_dir)),
    )
    try:
        with replace_file(path) as file:
            figure.savefig(file, format="png")
    except OSError as problem:
        raise UserError(
            f"cannot write {path}: {reason(problem)}; free space or name another file"
        ) from problem
    return path


def _read_config(run_dir: Path) -> Facts:
    """What the run was, for the title; a directory with metrics alone can be drawn too."""
    try:
        config = read_yaml(run_dir / CONFIG_FILE)
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}


def _data_return(run_dir: Path) -> float | None:
    """Mean episode return of the logged data, where the run learned from data and has finished."""
    try:
        value = (read_summary(run_dir) or {})["metrics"]["data_return_mean"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return float(value) if isinstance(value, int | float) else None


def _draw(rows: Rows, config: Facts, *, fallback_title: str, data_return: float | None) -> Figure:
    from matplotlib.figure import Figure

    returns = _curve(rows, "eval", "eval_return_mean")
    losses = _losses(rows)
    values = _curve(rows, "eval", "judge_value")
    measured, estimated = bool(len(returns[0])), bool(len(values[0]))
    panels = max(1, measured + estimated + bool(losses))
    figure = Figure(figsize=(8, 2.2 + 2.2 * panels), dpi=150, layout="constrained")
    axes = figure.subplots(panels, 1, sharex=True, squeeze=False, height_ratios=[3, 2, 2][:panels])[:, 0]
    for panel in axes:
        _style(panel)
    if len(returns[0]):
        _draw_returns(axes[0], rows, returns)
        if data_return is not None:
            axes[0].axhline(data_return, color="#9aa5b1", linestyle="--", label="logged data", zorder=1)
        _legend(axes[0])
    if estimated:
        _draw_estimates(axes[int(measured)], rows, values)
    if losses:
        _draw_losses(axes[-1], losses)
    if not measured and not estimated and not losses:
        axes[0].text(0.5, 0.5, "no metrics logged yet", ha="center", va="center", transform=axes[0].transAxes)
    for panel in axes:
        _mark_phases(panel, config)
    figure.suptitle(_title(config) or fallback_title, x=0.02, ha="left", fontweight="bold", fontsize=13)
    steps = step_label(str(config.get("algo", "")), goes_online=bool(config.get("online_timesteps")))
    axes[-1].set_xlabel(steps)
    return figure


def _mark_phases(panel: Axes, config: Facts) -> None:
    """Where the offline phase ends, and the steps of warm-up after it."""
    start = config.get("total_timesteps")
    if not config.get("online_timesteps") or not isinstance(start, int):
        return
    panel.axvline(start, color="#3c4650", linewidth=1.0, linestyle=":", zorder=2)
    panel.annotate(
        "online →",
        (start, 1.0),
        (4, -4),
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
        va="top",
        fontsize=9,
        color="#3c4650",
    )
    warmup = config.get("algo_kwargs", {}).get("warmup_steps_online", 0)
    if warmup:
        panel.axvspan(start, start + warmup, color="#9aa5b1", alpha=0.2, linewidth=0, zorder=0)


def _draw_returns(panel: Axes, rows: Rows, returns: Curve) -> None:
    training = _curve(rows, "collect", "rollout_return_mean")
    if len(training[0]):
        panel.plot(*training, color="#9aa5b1", linewidth=1.0, label="training episodes", zorder=1)
    steps, mean = returns
    spread = dict(zip(*_curve(rows, "eval", "eval_return_std"), strict=True))
    std = np.array([spread.get(step, 0.0) for step in steps])
    panel.fill_between(
        steps, mean - std, mean + std, color=RETURN_COLOR, alpha=0.18, linewidth=0, label="±1 std"
    )
    panel.plot(steps, mean, color=RETURN_COLOR, marker="o", markersize=4, label="evaluation mean")
    panel.set_ylabel("return per episode")


def _draw_estimates(panel: Axes, rows: Rows, values: Curve) -> None:
    """What the judge says of the final policy: open diamonds with bars, unlike anything that was measured."""
    low, high = (dict(zip(*_curve(rows, "eval", f"judge_{name}"), strict=True)) for name in ("low", "high"))
    for step, value in zip(*values, strict=True):
        if step in low and step in high:
            panel.plot([step, step], [low[step], high[step]], color=RETURN_COLOR, linewidth=1.2, zorder=2)
        panel.plot(step, value, "D", markersize=7, markerfacecolor="white", color=RETURN_COLOR, zorder=3)
    panel.plot([], [], "D", markerfacecolor="white", color=RETURN_COLOR, label="estimated value [90 %]")
    behaviour = _curve(rows, "eval", "judge_behaviour")[1]
    if len(behaviour):
        panel.axhline(behaviour[-1], color="#9aa5b1", linestyle="--", label="logged behaviour, estimated")
    panel.set_ylabel("value, estimated")
    _legend(panel)


def _draw_losses(panel: Axes, losses: Mapping[str, Curve]) -> None:
    for index, (name, curve) in enumerate(losses.items()):
        label = name.replace("_", " ")
        panel.plot(*curve, color=LOSS_COLORS[index % len(LOSS_COLORS)], linewidth=1.3, label=label)
    panel.set_ylabel("training loss")
    sizes = [float(np.median(np.abs(values))) for _, values in losses.values()]
    if max(sizes) > LINEAR_RATIO * min(sizes):
        panel.set_yscale("symlog", linthresh=max(sizes) / LINEAR_RATIO)
        panel.set_ylabel("training loss (log scale)")
    _legend(panel)


def _losses(rows: Rows) -> dict[str, Curve]:
    names = {
        name: None for row in rows if row.get("kind") == "train" for name in row if name.endswith("_loss")
    }
    curves = {name: _curve(rows, "train", name) for name in names}
    return {name: curve for name, curve in curves.items() if len(curve[0])}


def _curve(rows: Rows, kind: str, name: str) -> Curve:
    """Steps and values of one metric; rows where it is missing or was not finite are left out."""
    points = [
        (row["step"], row[name]) for row in rows if row.get("kind") == kind and row.get(name) is not None
    ]
    steps, values = np.array(points, dtype=float).reshape(-1, 2).T
    return steps, values


def _style(panel: Axes) -> None:
    from matplotlib.ticker import FuncFormatter

    panel.grid(color="#e3e6ea", linewidth=0.8)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)
    panel.spines[["left", "bottom"]].set_color("#8a929b")
    panel.tick_params(color="#8a929b")
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def _legend(panel: Axes) -> None:
    panel.legend(
        loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=4, frameon=False, fontsize=9, borderaxespad=0.2
    )


def _title(config: Facts) -> str:
    if "algo" not in config:
        return ""
    where = f" on {config['env_id']}" if config.get("env_id") else ""
    return f"{algorithm_title(str(config['algo']))}{where}, seed {config.get('seed', 0)}"
