"""What does a policy do? Answers from a log and the policy alone, in the log's columns and units.

Where it differs from the log as a few rules, how each action answers to each column, what each column
matters, and one logged episode with what the policy would have done.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rl_training.core.spaces import FloatArray, Spaces
from rl_training.core.types import Array
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.policies.acting import ActingPolicy
from rl_training.report.charts import Chart, Mark, Series
from rl_training.report.content import Section, Table, plain_number

ROWS = 2_000
"""Logged rows that answers rest on, evenly spaced."""
ROWS_OF_A_CURVE = 200
POINTS = 15
CURVES = 4
"""Columns whose curves are drawn, those that matter most first."""
DEPTH = 3
"""Of the tree: at most eight rules."""
FEWEST_IN_A_RULE = 0.04
"""Share of the rows that a rule must speak of."""
WORTH_TELLING = 0.02
"""Difference of an action, as a share of its range, below which nothing is said."""
LONGEST_EPISODE = 400


@dataclass(frozen=True)
class Asked:
    """A policy with logged rows: what it sees, what was done there, and what it would do."""

    policy: ActingPolicy
    obs: FloatArray
    logged: Array
    columns: tuple[str, ...]
    actions: tuple[str, ...]

    @classmethod
    def of(cls, policy: ActingPolicy, log: TransitionDataset, rows: Array) -> Asked:
        obs = log.obs.reshape(len(log), -1)[rows].float().cpu().numpy()
        logged = log.actions.reshape(len(log), -1)[rows].float().cpu().numpy()
        name = log.info.name_of
        columns = tuple(name("observation", index) for index in range(obs.shape[1]))
        actions = tuple(name("action", index) for index in range(logged.shape[1]))
        return cls(policy, obs, logged, columns, actions)

    def act(self, obs: FloatArray) -> Array:
        return self.policy.act(np.ascontiguousarray(obs, dtype=np.float32))

    @property
    def widths(self) -> Array:
        """How far each action can reach."""
        spaces: Spaces = self.policy.spaces
        widths: Array = np.array(spaces.action_high) - np.array(spaces.action_low)
        return widths


def explain(policy: ActingPolicy, log: TransitionDataset) -> Section:
    """Everything a page shows of what a policy does."""
    rows = np.unique(np.linspace(0, len(log) - 1, min(ROWS, len(log))).astype(int))
    asked = Asked.of(policy, log, rows)
    matter = importance(asked)
    order = np.argsort(-matter.max(axis=1))
    blocks = [rules_table(asked), importance_table(asked, matter, order)]
    curves = [each for column in order[:CURVES] for each in response_curves(asked, int(column))]
    return Section("What does it do?", (*blocks, *curves, *episode_charts(policy, log)))


# ---- what matters


def importance(asked: Asked) -> Array:
    """Mean change of each action, as a share of its range, by shuffling a column: `[columns, actions]`."""
    generator, own = np.random.default_rng(0), asked.act(asked.obs)
    found = []
    for column in range(asked.obs.shape[1]):
        shuffled = asked.obs.copy()
        shuffled[:, column] = generator.permutation(shuffled[:, column])
        found.append(np.abs(asked.act(shuffled) - own).mean(axis=0) / asked.widths)
    return np.array(found)


def importance_table(asked: Asked, matter: Array, order: Array) -> Table:
    rows = tuple(
        (asked.columns[column], *(f"{100 * share:.1f} %" for share in matter[column])) for column in order
    )
    note = "How far an action moves, as a share of its range, when the column is taken from another row."
    return Table("What each column matters", ("column", *asked.actions), rows, note)


# ---- how it answers


def response_curves(asked: Asked, column: int) -> Iterator[Chart]:
    """Each action against one column, all others at logged values: the mean and the middle 80 %."""
    values = asked.obs[:, column]
    low, high = np.quantile(values, [0.02, 0.98])
    if low == high:
        return
    rows = asked.obs[:: max(1, len(asked.obs) // ROWS_OF_A_CURVE)]
    places = np.linspace(low, high, POINTS)
    answers = []
    for place in places:
        moved = rows.copy()
        moved[:, column] = place
        answers.append(asked.act(moved))
    told = np.stack(answers)
    middle = [Mark("median of the log", float(np.median(values)))]
    for index, action in enumerate(asked.actions):
        lows, highs = np.quantile(told[:, :, index], [0.1, 0.9], axis=1)
        line = list(zip(places.tolist(), told[:, :, index].mean(axis=1).tolist(), strict=True))
        band = list(zip(places.tolist(), lows.tolist(), highs.tolist(), strict=True))
        title = f"{action} against {asked.columns[column]}"
        series = (Series(action, 1, line, band),)
        yield Chart(title, asked.columns[column], action, series, small=True, marks=tuple(middle))


# ---- where it differs


@dataclass(frozen=True)
class Rule:
    """A region of the log, by bounds of columns, and the mean difference of each action there."""

    bounds: tuple[tuple[int, bool, float], ...]
    """(column, above, value)"""
    share: float
    difference: Array


def rules(asked: Asked) -> list[Rule]:
    """A regression tree on the differences to the logged actions, the largest differences first."""
    gaps = (asked.act(asked.obs) - asked.logged) / asked.widths
    found = list(_grow(asked.obs, gaps, np.arange(len(gaps)), (), DEPTH))
    return sorted(found, key=lambda rule: -float(np.abs(rule.difference).max()))


def _grow(
    obs: Array, gaps: Array, rows: Array, bounds: tuple[tuple[int, bool, float], ...], depth: int
) -> Iterator[Rule]:
    split = _best_split(obs, gaps, rows, int(FEWEST_IN_A_RULE * len(obs))) if depth else None
    if split is None:
        yield Rule(bounds, len(rows) / len(obs), gaps[rows].mean(axis=0))
        return
    column, value = split
    above = obs[rows, column] > value
    yield from _grow(obs, gaps, rows[~above], (*bounds, (column, False, value)), depth - 1)
    yield from _grow(obs, gaps, rows[above], (*bounds, (column, True, value)), depth - 1)


def _best_split(obs: Array, gaps: Array, rows: Array, fewest: int) -> tuple[int, float] | None:
    """The column and value that leave the least variance in both parts; none where nothing is gained."""
    best, least = None, gaps[rows].var(axis=0).sum() * len(rows) * 0.98 - 1e-9
    for column in range(obs.shape[1]):
        order = rows[np.argsort(obs[rows, column], kind="stable")]
        values, sorted_gaps = obs[order, column], gaps[order]
        counts = np.arange(1, len(order))[:, None]
        sums, squares = np.cumsum(sorted_gaps, axis=0), np.cumsum(sorted_gaps**2, axis=0)
        left = squares[:-1] - sums[:-1] ** 2 / counts
        right = (squares[-1] - squares[:-1]) - (sums[-1] - sums[:-1]) ** 2 / (len(order) - counts)
        cost = (left + right).sum(axis=1)
        allowed = values[1:] > values[:-1]
        allowed[: max(0, fewest - 1)] = False
        allowed[len(order) - fewest :] = False
        if allowed.any():
            place = int(np.where(allowed, cost, np.inf).argmin())
            if cost[place] < least:
                least, best = cost[place], (column, float((values[place] + values[place + 1]) / 2.0))
    return best


def rules_table(asked: Asked) -> Table:
    """The rules in words."""
    rows = []
    for rule in rules(asked):
        told = [
            f"{name} {'+' if gap > 0 else '−'}{plain_number(abs(gap * width))}"
            for name, gap, width in zip(asked.actions, rule.difference, asked.widths, strict=True)
            if abs(gap) >= WORTH_TELLING
        ]
        where = words(rule, asked.columns)
        rows.append((where, f"{100 * rule.share:.0f} %", ", ".join(told) or "as logged"))
    note = "Mean difference of the policy's actions from the logged ones, in the log's units."
    return Table("Where it differs from the log", ("where", "share of rows", "difference"), tuple(rows), note)


def words(rule: Rule, columns: Sequence[str]) -> str:
    """`level above 1.4 and inflow below 3`, of several bounds on one side the tightest."""
    tightest: dict[tuple[int, bool], float] = {}
    for column, above, value in rule.bounds:
        known = tightest.get((column, above))
        inner = value if known is None else max(known, value) if above else min(known, value)
        tightest[column, above] = inner
    told = [
        f"{columns[column]} {'above' if above else 'below'} {plain_number(value)}"
        for (column, above), value in tightest.items()
    ]
    return " and ".join(told) or "everywhere"


# ---- one episode


def episode_charts(policy: ActingPolicy, log: TransitionDataset) -> list[Chart]:
    """The logged episode whose return is the median, with what the policy would have done in its states."""
    ends = np.flatnonzero(log.episode_ends("an episode"))
    starts = np.concatenate([[0], ends[:-1] + 1])
    returns = np.add.reduceat(log.rewards.double().cpu().numpy(), starts)
    chosen = int(np.argsort(returns)[len(returns) // 2])
    rows = np.arange(starts[chosen], ends[chosen] + 1)[:LONGEST_EPISODE]
    asked = Asked.of(policy, log, rows)
    own = asked.act(asked.obs)
    steps = range(len(rows))
    note = "In the states that were logged: what would have followed from other actions is not shown."
    return [
        Chart(
            f"{action} in one logged episode",
            "step",
            action,
            (
                Series("logged", 1, list(zip(steps, asked.logged[:, index].tolist(), strict=True))),
                Series("the policy", 2, list(zip(steps, own[:, index].tolist(), strict=True))),
            ),
            note if index == 0 else "",
        )
        for index, action in enumerate(asked.actions)
    ]
