"""What does a policy do? Answers from a log and the policy alone, as plain numbers in the log's units.

Where it differs from the log as a few rules, how each action answers to each column, what each column
matters, and one logged episode with what the policy would have done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rl_training.core.schema import SchemaProblem, read_facts
from rl_training.core.spaces import Spaces
from rl_training.data.episodes import IntArray
from rl_training.judging.log import Float64Array, FloatArray, JudgedLog, NameOf

ROWS = 2_000
"""Logged rows that answers rest on, evenly spaced."""
ROWS_OF_A_CURVE = 200
POINTS = 15
BINS = 30
CURVES = 4
"""Columns whose curves are drawn, those that matter most first."""
DEPTH = 3
"""Of the tree: at most eight rules."""
FEWEST_IN_A_RULE = 0.04
"""Share of the rows that a rule must speak of."""
WORTH_SPLITTING = 0.02
"""Share of the differences' variance that a further rule must explain."""
LONGEST_EPISODE = 400

Act = Callable[[FloatArray], FloatArray]
"""Observations `[n, O]` -> actions `[n, A]`, in the log's units."""


@dataclass(frozen=True)
class Importance:
    """How far each action moves, as a share of its range, when this column is taken from another row."""

    column: str
    shares: tuple[float, ...]


@dataclass(frozen=True)
class Bound:
    """One side of a region."""

    column: str
    above: bool
    value: float


@dataclass(frozen=True)
class Rule:
    """A region of the log, and what the policy does there less what was done, action by action."""

    bounds: tuple[Bound, ...]
    share: float
    differences: tuple[float, ...]


@dataclass(frozen=True)
class Response:
    """One action against one column, all others at logged values."""

    column: str
    action: str
    places: tuple[float, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    """a tenth of the rows answer with less"""
    high: tuple[float, ...]
    density: tuple[float, ...]
    """rows of the log in equal steps from the first to the last place, as a share of the fullest step"""


@dataclass(frozen=True)
class Course:
    """A column, an action or the reward along a logged episode, as it was and with the policy."""

    name: str
    logged: tuple[float, ...]
    policy: tuple[float, ...]
    low: tuple[float, ...] = ()
    """over the networks of a model, where this is what one believes"""
    high: tuple[float, ...] = ()


@dataclass(frozen=True)
class Explanation:
    """Everything that a page shows of what a policy does."""

    actions: tuple[str, ...]
    ranges: tuple[float, ...]
    """from the lowest to the highest possible action"""
    importance: tuple[Importance, ...]
    rules: tuple[Rule, ...]
    responses: tuple[Response, ...]
    proposed: tuple[Course, ...]
    """actions of one logged episode: what was done, and what the policy would have done in these states"""
    what_if: tuple[Course, ...] = ()
    """the same episode as a model believes it would have gone under the policy: columns, then the reward"""

    @classmethod
    def read(cls, values: object) -> Explanation:
        """From the plain data that a judgement is kept as; whatever does not fit together is refused."""
        found = read_facts(cls, values)
        per_action = {len(found.actions), len(found.ranges)}
        per_action |= {len(each.shares) for each in found.importance}
        per_action |= {len(each.differences) for each in found.rules}
        lines = [(each.logged, each.policy) for each in (*found.proposed, *found.what_if)]
        lines += [(each.low, each.high) for each in (*found.proposed, *found.what_if)]
        lines += [
            (each.places, side) for each in found.responses for side in (each.mean, each.low, each.high)
        ]
        if len(per_action) > 1 or any(len(one) != len(other) for one, other in lines):
            raise SchemaProblem("lists of different lengths stand beside each other")
        if any(not each.logged or len(each.low) not in (0, len(each.logged)) for each in found.what_if):
            raise SchemaProblem("a course without steps")
        return found


def explain(log: JudgedLog, act: Act, spaces: Spaces, name_of: NameOf) -> Explanation:
    """The explanation of a policy by `act`; the model's part is left to those who have one."""
    rows = np.unique(np.linspace(0, len(log) - 1, min(ROWS, len(log))).astype(int))
    obs, ranges = log.obs[rows], np.array(spaces.action_high) - np.array(spaces.action_low)
    columns = [name_of("observation", index) for index in range(obs.shape[1])]
    actions = tuple(name_of("action", index) for index in range(log.actions.shape[1]))
    own = act(obs)
    shares = importance(act, obs, own, ranges)
    order = np.argsort(-shares.max(axis=1), kind="stable")
    episode = typical_episode(log)
    proposed = act(log.obs[episode])
    return Explanation(
        actions,
        tuple(ranges.tolist()),
        tuple(Importance(columns[column], tuple(shares[column].tolist())) for column in order),
        tuple(rules(obs, own - log.actions[rows], ranges, columns)),
        tuple(each for column in order[:CURVES] for each in responses(act, obs, column, columns, actions)),
        tuple(
            Course(name, tuple(log.actions[episode, index].tolist()), tuple(proposed[:, index].tolist()))
            for index, name in enumerate(actions)
        ),
    )


def importance(act: Act, obs: FloatArray, own: FloatArray, ranges: Float64Array) -> Float64Array:
    """Mean change of each action, as a share of its range, by shuffling a column: `[columns, actions]`."""
    generator, found = np.random.default_rng(0), []
    for column in range(obs.shape[1]):
        shuffled = obs.copy()
        shuffled[:, column] = generator.permutation(shuffled[:, column])
        found.append(np.abs(act(shuffled) - own).mean(axis=0) / ranges)
    return np.array(found)


def responses(
    act: Act, obs: FloatArray, column: int, columns: Sequence[str], actions: Sequence[str]
) -> Iterator[Response]:
    """Each action against one column: the mean over rows and the middle 80 %, where the log has been."""
    values = obs[:, column]
    first, last = np.quantile(values, [0.02, 0.98])
    if first == last:
        return
    rows = obs[:: max(1, len(obs) // ROWS_OF_A_CURVE)]
    places = np.linspace(first, last, POINTS)
    moved = np.repeat(rows[None], POINTS, axis=0)
    moved[:, :, column] = places[:, None]
    told = act(moved.reshape(-1, obs.shape[1])).reshape(POINTS, len(rows), -1)
    counts = np.histogram(values, BINS, (first, last))[0]
    density = tuple((counts / counts.max()).tolist())
    for index, action in enumerate(actions):
        answers = told[:, :, index]
        lows, highs = np.quantile(answers, [0.1, 0.9], axis=1)
        at, mean, low, high = (
            tuple(map(float, each)) for each in (places, answers.mean(axis=1), lows, highs)
        )
        yield Response(columns[column], action, at, mean, low, high, density)


def rules(obs: FloatArray, gaps: FloatArray, ranges: Float64Array, columns: Sequence[str]) -> list[Rule]:
    """A regression tree on the differences to the logged actions, the largest differences first."""
    found = list(_grow(obs, gaps / ranges, np.arange(len(gaps)), (), DEPTH))
    found.sort(key=lambda leaf: -float(np.abs(leaf[2]).max()))
    return [
        Rule(
            tuple(Bound(columns[column], above, value) for column, above, value in tightest(bounds)),
            share,
            tuple((difference * ranges).tolist()),
        )
        for bounds, share, difference in found
    ]


Split = tuple[int, bool, float]
"""(column, above, value)"""


def tightest(bounds: Sequence[Split]) -> list[Split]:
    """Of several bounds on one side of a column the one that says most."""
    inner: dict[tuple[int, bool], float] = {}
    for column, above, value in bounds:
        known = inner.get((column, above), value)
        inner[column, above] = max(known, value) if above else min(known, value)
    return [(column, above, value) for (column, above), value in inner.items()]


def _grow(
    obs: FloatArray, gaps: Float64Array, rows: IntArray, bounds: tuple[Split, ...], depth: int
) -> Iterator[tuple[tuple[Split, ...], float, Float64Array]]:
    """The leaves: their bounds, their share of the rows, and the mean gap in them."""
    split = _best_split(obs, gaps, rows, int(FEWEST_IN_A_RULE * len(obs))) if depth else None
    if split is None:
        yield bounds, len(rows) / len(obs), gaps[rows].mean(axis=0)
        return
    column, value = split
    above = obs[rows, column] > value
    yield from _grow(obs, gaps, rows[~above], (*bounds, (column, False, value)), depth - 1)
    yield from _grow(obs, gaps, rows[above], (*bounds, (column, True, value)), depth - 1)


def _best_split(obs: FloatArray, gaps: Float64Array, rows: IntArray, fewest: int) -> tuple[int, float] | None:
    """The column and value that leave the least variance in both parts; none where nothing is gained."""
    best = None
    least = gaps[rows].var(axis=0).sum() * len(rows) * (1.0 - WORTH_SPLITTING) - 1e-9
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


def typical_episode(log: JudgedLog) -> IntArray:
    """The rows of the episode whose sum of rewards is the median, or of the beginning of a long one."""
    returns = np.add.reduceat(log.rewards.astype(np.float64), log.starts)
    chosen = int(np.argsort(returns, kind="stable")[len(returns) // 2])
    rows: IntArray = log.starts[chosen] + np.arange(min(int(log.lengths[chosen]), LONGEST_EPISODE))
    return rows
