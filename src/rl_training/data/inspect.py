"""What is in a dataset, and what is suspicious about it, in numbers, plain words and a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rl_training.config.limits import Limit, check_limits
from rl_training.core.errors import DataError
from rl_training.core.spaces import Spaces
from rl_training.core.types import Array, State
from rl_training.data.advice import Advice, advise
from rl_training.data.episodes import episode_lengths, episode_returns
from rl_training.data.formulas import FEWEST_COSTLY, described_costs
from rl_training.data.info import DataInfo
from rl_training.data.log import EpisodeLog, replacing
from rl_training.data.log_checks import hidden_mistakes
from rl_training.data.reading import (
    BOUND_TOLERANCE,
    few_levels,
    few_levels_words,
    level_shares,
    matrix,
    piles_up,
    row_chunks,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

UNEVEN_SCALES = 100.0
"""Ratio of standard deviations from which observations count as differently scaled."""

EDGE = 1e-3
"""An action within this share of its range from a bound counts as saturated."""


class Moments(NamedTuple):
    """Of every column, over its finite values."""

    mean: Array
    std: Array
    low: Array
    high: Array


@dataclass(frozen=True)
class Inspection:
    """Numbers about a log; arrays have one entry per episode, per observation or per action."""

    info: DataInfo
    rows: int
    usable_rows: int
    terminations: int
    timeouts: int
    returns: npt.NDArray[np.float64]
    lengths: npt.NDArray[np.int64]
    reward_range: tuple[float, float]
    actions: Moments
    obs: Moments
    bounds: Spaces | None
    saturation: Array
    on_low: Array
    on_high: Array
    """share of rows in which an action lies exactly on its smallest and on its largest logged value"""
    level_shares: dict[int, dict[str, float]]
    """of an action that is a choice, the share of rows with each level"""
    maybe_choices: dict[int, list[float]]
    """of an action that may be a choice, its few values"""
    non_finite: dict[str, int]
    duplicates: int
    advice: Advice | None = None
    """what a policy should look at besides the present row"""
    costs: Mapping[str, State] = field(default_factory=dict)
    """what every cost comes to, per step and per episode, and the share of episodes that keep its limit"""
    warnings: list[str] = field(default_factory=list)

    @property
    def source(self) -> str:
        return self.info.source

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
            "env_id": self.info.env_id,
            "transitions": self.rows,
            "usable_transitions": self.usable_rows,
            "episodes": len(self.returns),
            "terminations": self.terminations,
            "timeouts": self.timeouts,
            "return": _spread(self.returns),
            "episode_length": _spread(self.lengths),
            "reward": {"min": self.reward_range[0], "max": self.reward_range[1]},
            "actions": {
                "min": self.actions.low.tolist(),
                "max": self.actions.high.tolist(),
                "bounds": None
                if self.bounds is None
                else [list(self.bounds.action_low), list(self.bounds.action_high)],
                "saturation": self.saturation.tolist(),
                "level_shares": {self.info.name_of("action", i): s for i, s in self.level_shares.items()},
                "maybe_choices": {self.info.name_of("action", i): s for i, s in self.maybe_choices.items()},
            },
            "observation_names": self.info.observation_names and list(self.info.observation_names),
            "action_names": self.info.action_names and list(self.info.action_names),
            "units": dict(self.info.units),
            "has_rewards": self.info.rewards_known,
            "observations": {
                "mean": self.obs.mean.tolist(),
                "std": self.obs.std.tolist(),
                "min": self.obs.low.tolist(),
                "max": self.obs.high.tolist(),
            },
            "non_finite": self.non_finite,
            "duplicates": self.duplicates,
            "advice": None if self.advice is None else self.advice.to_dict(),
            "costs": dict(self.costs),
            "warnings": self.warnings,
        }


def inspect_log(log: EpisodeLog, bounds: Spaces | None = None, limits: Sequence[Limit] = ()) -> Inspection:
    """Look at every row; `bounds` are the action bounds, where they are known, `limits` those of costs."""
    obs, actions, rewards = matrix(log.obs), matrix(log.actions), _moments(matrix(log.rewards))
    known = bounds or log.info.spaces
    if known is not None and known.action_columns != actions.shape[1]:
        known = None
    spread = _moments(actions)
    if np.isnan(spread.low).any():
        name = log.info.name_of("action", int(np.flatnonzero(np.isnan(spread.low))[0]))
        raise DataError(
            f"{log.info.source}: {name} holds no number in any row, so nothing can be said about it; map the "
            "columns of commands that were logged (columns.actions, --action)"
        )
    choices = log.info.choices or (() if known is None else known.choices) or (None,) * actions.shape[1]
    numbers = np.array([each is None for each in choices])
    columns = {"obs": log.obs, "actions": log.actions, "rewards": log.rewards, "next_obs": log.next_obs}
    costs, odd = _costs_of(log, limits)
    found = Inspection(
        info=log.info,
        rows=len(log),
        usable_rows=int(log.complete.sum()),
        terminations=int(log.terminated.sum()),
        timeouts=int(log.truncated.sum()),
        returns=episode_returns(log.rewards, log.ends),
        lengths=episode_lengths(log.ends),
        reward_range=(float(rewards.low[0]), float(rewards.high[0])),
        actions=spread,
        obs=_moments(obs),
        bounds=known,
        saturation=_saturation(actions, known, spread.low, spread.high) * numbers,
        on_low=(actions == spread.low).mean(axis=0) * numbers,
        on_high=(actions == spread.high).mean(axis=0) * numbers,
        level_shares=level_shares(actions, choices),
        maybe_choices=few_levels(actions, choices),
        non_finite={name: count for name, values in columns.items() if (count := _non_finite(values))},
        duplicates=_duplicates(obs, actions),
        advice=advise(log),
        costs=costs,
    )
    found.warnings.extend([*log.notes, *odd, *data_checks(found), *hidden_mistakes(log)])
    return found


def _costs_of(log: EpisodeLog, limits: Sequence[Limit]) -> tuple[dict[str, State], list[str]]:
    """What every cost of the log comes to, and what is odd about the limits."""
    rows = log.further.get("costs")
    names = () if rows is None else log.info.named_costs(matrix(rows).shape[1])
    costs, steps = np.zeros((0, 0)) if rows is None else matrix(rows), episode_lengths(log.ends)
    odd = check_limits(limits, names, costs, steps, log.info.source)
    if rows is None:
        return {}, odd
    totals = np.stack([episode_returns(column, log.ends) for column in costs.T], axis=1)
    return described_costs(names, totals, steps, limits), odd


def data_checks(found: Inspection) -> list[str]:
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
    words += [
        f"Only {facts['costly_episodes']} of {len(found.returns)} episodes cost more of {name} than the "
        "least: with so few, it can hardly be judged whether a policy keeps a limit."
        for name, facts in found.costs.items()
        if facts["costly_episodes"] < FEWEST_COSTLY
    ]
    return [*words, *_action_warnings(found), *_observation_warnings(found)]


def _action_warnings(found: Inspection) -> list[str]:
    words = []
    words += [
        few_levels_words(found.info.name_of("action", index), levels) + "."
        for index, levels in found.maybe_choices.items()
    ]
    for index, shares in found.level_shares.items():
        never = [level for level, share in shares.items() if share == 0.0]
        if never:
            words.append(f"{found.info.name_of('action', index)} is never {' or '.join(never)} in this data.")
    if found.bounds is None and len(found.level_shares) < len(found.actions.low):
        words.append(
            "The data does not state its action bounds: training needs env_id, or action_low and action_high."
        )
    elif found.bounds is not None:
        low, high = np.array(found.bounds.action_low), np.array(found.bounds.action_high)
        slack = BOUND_TOLERANCE * (high - low)
        outside = (found.actions.low < low - slack) | (found.actions.high > high + slack)
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
    constant = found.actions.low == found.actions.high
    if constant.any():
        words.append(f"Actions {found.named('action', constant)} never change.")
    return words


def _observation_warnings(found: Inspection) -> list[str]:
    words = []
    constant = found.obs.low == found.obs.high
    if constant.any():
        words.append(f"Observations {found.named('observation', constant)} never change.")
    size = np.maximum(np.abs(found.obs.low), np.abs(found.obs.high)).astype(np.float32)
    lost = ~constant & (np.spacing(size) > found.obs.std)
    if lost.any():
        words.append(
            f"Observations {found.named('observation', lost)} vary by less than single precision can tell at "
            "their size, and training is in single precision: subtract a fixed number from them first."
        )
    spread = found.obs.std[~constant & np.isfinite(found.obs.std)]
    if len(spread) and spread.max() > UNEVEN_SCALES * spread.min():
        words.append(
            f"Observations differ in scale by a factor of {spread.max() / spread.min():.0f}: "
            "normalize_observations may help."
        )
    return words


def _pile_warnings(found: Inspection) -> list[str]:
    """Actions that pile up on a value which is not their stated bound: the bounds are the first suspects."""
    words = []
    for side, shares, extremes in (
        ("low", found.on_low, found.actions.low),
        ("high", found.on_high, found.actions.high),
    ):
        piled = np.array([piles_up(share, found.rows) for share in shares])
        for index in np.flatnonzero(piled & (found.actions.low < found.actions.high)):
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


def _spread(values: Array) -> dict[str, float]:
    with np.errstate(invalid="ignore"):  # of infinite returns
        return {
            "mean": float(values.mean()),
            "std": float(values.std()),
            "min": float(values.min()),
            "median": float(np.median(values)),
            "max": float(values.max()),
        }


def _moments(values: Array) -> Moments:
    finite = np.isfinite(values).all()
    known: Any = values if finite else np.ma.masked_invalid(values)
    moments = known.mean(axis=0, dtype=np.float64), known.std(axis=0, dtype=np.float64)
    found = (*moments, known.min(axis=0), known.max(axis=0))
    return Moments(*(found if finite else (np.ma.filled(each, np.nan) for each in found)))


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
    return int(sum((~np.isfinite(matrix(chunk)).all(axis=1)).sum() for chunk in rows))


def _duplicates(obs: Array, actions: Array) -> int:
    """Rows whose observation and action occurred before, compared by a 64-bit sum of weighted bits."""
    rng = np.random.default_rng(0)
    hashes = np.zeros(len(obs), dtype=np.uint64)
    for values in (obs, actions):
        bits = np.ascontiguousarray(values).view(np.uint32)
        for column in range(bits.shape[1]):
            factor = np.uint64(rng.integers(1, 2**63)) | np.uint64(1)
            mixed = (bits[:, column] + np.uint64(column + 1)) * factor
            hashes += mixed ^ (mixed >> np.uint64(29))
    return len(hashes) - len(np.unique(hashes))


MANY = 12
"""Features beyond this number are summed up in one row."""


def overview_rows(found: Inspection) -> list[tuple[str, str]]:
    """The dataset as a whole."""
    usable = "" if found.usable_rows == found.rows else f" ({found.usable_rows:,} usable)"
    return [
        ("environment", found.info.env_id or "not stated"),
        ("transitions", f"{found.rows:,}{usable}"),
        ("episodes", f"{len(found.returns):,}"),
        ("terminations / time-outs", f"{found.terminations:,} / {found.timeouts:,}"),
        ("return", _spread_text(found.returns)),
        ("episode length", _spread_text(found.lengths)),
        ("reward", f"{found.reward_range[0]:.4g} to {found.reward_range[1]:.4g}"),
        ("rows with NaN or infinity", f"{sum(found.non_finite.values()):,}"),
        ("repeated rows", f"{found.duplicates:,}"),
    ]


def cost_rows(found: Inspection) -> list[tuple[str, ...]]:
    """Every cost per step and per episode, its limit and who keeps it."""
    return [
        (
            name,
            _number(facts["per_step"]),
            _number(facts["per_episode"]),
            facts["limit"] or "–",
            "–" if facts["episodes_within"] is None else f"{facts['episodes_within']:.1%}",
        )
        for name, facts in found.costs.items()
    ]


def action_rows(found: Inspection) -> list[tuple[str, ...]]:
    """Smallest and largest value of every action and how often it is on a bound; one row for many."""
    low, high, shares = found.actions.low, found.actions.high, found.saturation
    if len(low) > MANY:
        name = f"actions 0 to {len(low) - 1}"
        return [(name, _number(low.min()), _number(high.max()), f"{shares.mean():.1%}")]
    return [
        (
            found.info.name_of("action", index),
            *(("", "") if index in found.level_shares else (_number(low[index]), _number(high[index]))),
            ", ".join(f"{level} {of_it:.1%}" for level, of_it in found.level_shares[index].items())
            if index in found.level_shares
            else f"{share:.1%}",
        )
        for index, share in enumerate(shares)
    ]


def observation_rows(found: Inspection) -> list[tuple[str, ...]]:
    """Range, mean and standard deviation of every observation; one row for those beyond many."""
    table = np.stack((found.obs.low, found.obs.high, found.obs.mean, found.obs.std), axis=1)
    rows: list[tuple[str, ...]] = [
        (found.info.name_of("observation", index), *map(_number, numbers))
        for index, numbers in enumerate(table[:MANY])
    ]
    if len(table) > MANY:
        rest = table[MANY:]
        summary = (rest[:, 0].min(), rest[:, 1].max(), rest[:, 2].mean(), rest[:, 3].mean())
        rows.append((f"observations {MANY} to {len(table) - 1}", *map(_number, summary)))
    return rows


def _number(value: float) -> str:
    return f"{value:.4g}"


def _spread_text(values: Array) -> str:
    numbers = {"mean": values.mean(), "min": values.min(), "median": np.median(values), "max": values.max()}
    return ", ".join(f"{name} {number:.1f}" for name, number in numbers.items())


BLUE, ORANGE, GREY = "#1f5fa8", "#c8553d", "#6c757d"
MANY_FEATURES = 40
MANY_ROWS = 200_000


def plot_inspection(found: Inspection, log: EpisodeLog, path: Path) -> None:
    """Histograms of returns, lengths, rewards and actions, returns in order, and observation ranges."""
    from matplotlib.figure import Figure

    source = Path(found.source)
    title = source.name if source.is_absolute() or source.suffix else found.source
    more = 0 if found.advice is None else 1
    figure = Figure(figsize=(12 + 4 * more, 7), dpi=130, layout="constrained")
    panels = figure.subplots(2, 3 + more)
    (returns, order, lengths), (rewards, actions, observations) = panels[:, :3]
    figure.suptitle(
        f"{title}: {found.rows:,} rows, {len(found.returns):,} episodes, "
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
    if found.advice is not None:
        _draw_past(panels[0, 3], found.advice)
        _draw_effects(panels[1, 3], found.advice)
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
    low, high = float(np.nanmin(found.actions.low)), float(np.nanmax(found.actions.high))
    edges = np.linspace(low, high if high > low else low + 1.0, 61)
    shares = np.stack([np.histogram(column, edges)[0] for column in values.T]) / max(1, len(values))
    mesh = panel.pcolormesh(np.arange(values.shape[1] + 1) - 0.5, edges, shares.T, cmap="Blues")
    panel.figure.colorbar(mesh, ax=panel, label="share of rows", fraction=0.05)
    if found.bounds is not None:
        for bounds in (found.bounds.action_low, found.bounds.action_high):
            centres = np.arange(len(bounds))
            panel.hlines(bounds, centres - 0.5, centres + 0.5, color=ORANGE, linewidth=1.5)
        margin = 0.04 * (edges[-1] - edges[0])
        panel.set_ylim(edges[0] - margin, edges[-1] + margin)
    _label(panel, f"action ({found.saturation.mean():.0%} of entries on a bound)", "value")
    panel.set_xticks(range(values.shape[1]) if values.shape[1] <= MANY_FEATURES // 2 else [])


def _draw_observations(panel: Axes, found: Inspection) -> None:
    features = np.arange(len(found.obs.mean))
    panel.vlines(features, found.obs.low, found.obs.high, color=GREY, linewidth=1, label="range")
    panel.errorbar(
        features,
        found.obs.mean,
        found.obs.std,
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


def _draw_past(panel: Axes, advice: Advice) -> None:
    """How much of the next row is not foreseen, by rows looked back."""
    panel.plot(list(advice.errors), [100 * error for error in advice.errors.values()], "o-", color=BLUE)
    panel.set_ylim(bottom=0)
    panel.set_xticks(list(advice.errors))
    panel.grid(alpha=0.25)
    _label(panel, "earlier rows looked at", "% of changes not foreseen")


def _draw_effects(panel: Axes, advice: Advice) -> None:
    """After how many rows an action shows: the effect of each of the last rows."""
    count = len(advice.effects)
    for index, (name, sizes) in enumerate(advice.effects.items()):
        places = np.arange(len(sizes)) + 0.8 * (index + 0.5) / count - 0.4
        shares = np.array(sizes) / max(max(sizes), 1e-12)
        panel.bar(places, shares, width=0.8 / count, label=name)
    panel.grid(alpha=0.25)
    if count <= MANY:
        _legend(panel)
    _label(panel, "rows since an action was set", "effect on the next row (largest: 1)")


def _legend(panel: Axes) -> None:
    panel.legend(loc="best", fontsize=8, frameon=True, framealpha=0.85, edgecolor="none")


def _label(panel: Axes, horizontal: str, vertical: str) -> None:
    panel.set_xlabel(horizontal)
    panel.set_ylabel(vertical)
