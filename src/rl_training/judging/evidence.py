"""What a reader wants to see for themselves: actions side by side, what the log covers, values along time."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from rl_training.core.spaces import Spaces
from rl_training.judging.coverage import Coverage
from rl_training.judging.judgement import ActionComparison, Check, Evidence, UncoveredState
from rl_training.judging.log import Float64Array, FloatArray, JudgedLog
from rl_training.judging.values import FittedValues
from rl_training.judging.verdicts import interval

NameOf = Callable[[str, int], str]
"""("observation" or "action", index) -> what that number is called"""

TIME_POINTS = 30
MAP_POINTS = 250
UNCOVERED_STATES = 5
ON_BOUND = 1e-3
"""Share of the range within which an action counts as on its bound."""

CHATTER = 3.0
SATURATION = 0.5


def evidence_of(
    log: JudgedLog,
    actions: FloatArray,
    covered: Coverage,
    distances: Float64Array,
    fitted: FittedValues,
    index: int,
    spaces: Spaces,
    confidence: float,
    name_of: NameOf,
) -> Evidence:
    """Everything a page draws of a policy: `actions` `[rows, draws, A]`, `distances` `[rows, draws]`."""
    inside, outside = _on_the_map(log, covered, actions[:, 0], distances[:, 0])
    logged, _ = _on_the_map(log, covered, log.actions, np.zeros(len(covered.rows)))
    return Evidence(
        actions=tuple(compare_actions(log, actions, spaces, name_of)),
        along_time=along_time(log, fitted.own[index], fitted.own[-1]),
        map_logged=logged,
        map_inside=inside,
        map_outside=outside,
        uncovered=tuple(uncovered_states(log, covered, actions, distances, name_of)),
        training=tuple(
            (float(done), each.value, each.low, each.high)
            for done, values in fitted.history[1:]
            for each in [interval(values[index], confidence)]
            if each.low is not None and each.high is not None
        ),
    )


def compare_actions(
    log: JudgedLog, actions: FloatArray, spaces: Spaces, name_of: NameOf
) -> list[ActionComparison]:
    """Means over rows and over the draws of an action, `[rows, draws, A]`."""
    low, high = np.array(spaces.action_low), np.array(spaces.action_high)
    margin, width = ON_BOUND * (high - low), actions.shape[-1]
    logged = log.actions[:, None]

    def bound_share(values: FloatArray) -> FloatArray:
        on_bound = (values <= low + margin) | (values >= high - margin)
        share: FloatArray = on_bound.reshape(-1, width).mean(axis=0)
        return share

    def rate(values: FloatArray) -> FloatArray:
        inside = np.flatnonzero(~log.ends[:-1])
        changes = np.abs(values[inside + 1] - values[inside]).reshape(-1, width)
        return changes.mean(axis=0) if len(inside) else np.zeros(width, np.float32)

    columns = (
        np.abs(actions - logged).reshape(-1, width).mean(axis=0),
        actions.reshape(-1, width).mean(axis=0),
        log.actions.mean(axis=0),
        *(bound_share(each) for each in (actions, logged)),
        *(rate(each) for each in (actions, logged)),
    )
    return [
        ActionComparison(name_of("action", index), *(float(column[index]) for column in columns))
        for index in range(width)
    ]


def action_check(compared: tuple[ActionComparison, ...]) -> Check:
    """Warns of what wears out actuators; says nothing about the value."""
    chattering = [each.name for each in compared if each.rate > CHATTER * each.logged_rate > 0.0]
    saturated = [
        each.name
        for each in compared
        if each.on_bound > SATURATION and each.on_bound > 2 * each.logged_on_bound
    ]
    parts = (
        [f"{', '.join(chattering)} moves over {CHATTER:.0f} times as much as logged"] if chattering else []
    )
    parts += [f"{', '.join(saturated)} is on a bound most of the time"] if saturated else []
    if parts:
        return Check("warned", f"Look at the actions: {'; '.join(parts)}.")
    return Check("passed", "The actions move no more than the logged ones and keep off their bounds.")


def along_time(
    log: JudgedLog, values: Float64Array, behaviour: Float64Array
) -> tuple[tuple[float, float, float], ...]:
    """Mean values of the rows that are equally far into their episodes."""
    longest = int(np.percentile(log.lengths, 90))
    edges = np.unique(np.linspace(0, max(1, longest), TIME_POINTS + 1).astype(int))
    known = np.isfinite(values) & np.isfinite(behaviour)
    points = []
    for first, stop in pairwise(edges.tolist()):
        rows = known & (log.steps >= first) & (log.steps < stop)
        if rows.any():
            points.append((float(first), float(values[rows].mean()), float(behaviour[rows].mean())))
    return tuple(points)


def uncovered_states(
    log: JudgedLog, covered: Coverage, actions: FloatArray, distances: Float64Array, name_of: NameOf
) -> list[UncoveredState]:
    """The furthest from the log, at most one per episode; of several draws any may be it."""
    found: dict[int, UncoveredState] = {}
    for furthest in np.argsort(-distances, axis=None, kind="stable"):
        place, draw = divmod(int(furthest), distances.shape[1])
        row = int(covered.rows[place])
        episode = int(log.numbers[row])
        if len(found) == UNCOVERED_STATES:
            break
        if episode not in found:
            found[episode] = UncoveredState(
                float(distances[place, draw] / covered.limit),
                _named("observation", log.obs[row], name_of),
                _named("action", log.actions[row], name_of),
                _named("action", actions[row, draw], name_of),
            )
    return list(found.values())


def _named(kind: str, values: FloatArray, name_of: NameOf) -> dict[str, float]:
    return {name_of(kind, index): float(value) for index, value in enumerate(values)}


def _on_the_map(
    log: JudgedLog, covered: Coverage, actions: FloatArray, distances: Float64Array
) -> tuple[tuple[tuple[float, float], ...], tuple[tuple[float, float], ...]]:
    """States and actions along the two directions in which the log varies most: inside and outside of it."""
    reference = covered.reference.double().numpy()
    _, _, directions = np.linalg.svd(reference[:4000] - reference[:4000].mean(axis=0), full_matrices=False)
    rows = covered.rows[:: max(1, len(covered.rows) // MAP_POINTS)]
    far = distances[:: max(1, len(covered.rows) // MAP_POINTS)] > covered.limit
    points = np.concatenate([log.obs_scale.apply(log.obs[rows]), log.action_scale.apply(actions[rows])], 1)
    flat = points @ directions[:2].T
    flat = flat if flat.shape[1] == 2 else np.pad(flat, ((0, 0), (0, 2 - flat.shape[1])))
    inside, outside = (tuple((float(x), float(y)) for x, y in flat[part]) for part in (~far, far))
    return inside, outside
