"""What a reader wants to see for themselves: actions side by side, what the log covers, values along time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from rl_training.core.spaces import Spaces
from rl_training.data.episodes import BoolArray
from rl_training.judging.checks import Coverage, Points
from rl_training.judging.log import Float64Array, FloatArray, JudgedLog, NameOf
from rl_training.judging.verdict import ActionComparison, Check, UncoveredState

TIME_POINTS = 30
MAP_POINTS = 250
UNCOVERED_STATES = 5
ON_BOUND = 1e-3
"""Share of the range within which an action counts as on its bound."""

CHATTER = 3.0
SATURATION = 0.5


def compare_actions(
    log: JudgedLog, actions: FloatArray, spaces: Spaces, name_of: NameOf, levels: Sequence[int] = ()
) -> list[ActionComparison]:
    """Means over rows and over the draws of an action, `[rows, draws, A]`; of a level, they are shares."""
    low, high = np.array(spaces.action_low), np.array(spaces.action_high)
    margin, width = ON_BOUND * (high - low), actions.shape[-1]
    logged = log.actions[:, None]

    def bound_share(values: FloatArray) -> FloatArray:
        on_bound = (values <= low + margin) | (values >= high - margin)
        share: FloatArray = on_bound.reshape(-1, width).mean(axis=0)
        return share if not levels else np.where(np.repeat(levels, levels) > 1, np.float32(0.0), share)

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


def action_check(compared: Sequence[ActionComparison]) -> Check:
    """Warns of what wears out actuators; says nothing about the value."""
    chattering = [each.name for each in compared if each.rate > CHATTER * each.logged_rate > 0.0]
    saturated = [
        each.name
        for each in compared
        if each.on_bound > SATURATION and each.on_bound > 2 * each.logged_on_bound
    ]
    parts = []
    if chattering:
        parts.append(f"{', '.join(chattering)} moves over {CHATTER:.0f} times as much as logged")
    if saturated:
        parts.append(f"{', '.join(saturated)} is on a bound most of the time")
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

    def named(kind: str, values: FloatArray) -> dict[str, float]:
        return {name_of(kind, index): float(value) for index, value in enumerate(values)}

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
                named("observation", log.obs[row]),
                named("action", log.actions[row]),
                named("action", actions[row, draw]),
            )
    return list(found.values())


def on_the_map(
    log: JudgedLog, covered: Coverage, actions: FloatArray, far: BoolArray
) -> tuple[Points, Points]:
    """States and actions along the two directions in which the log varies most: inside and outside of it."""
    reference = covered.reference[:4000].double().numpy()
    _, _, directions = np.linalg.svd(reference - reference.mean(axis=0), full_matrices=False)
    every = max(1, len(covered.rows) // MAP_POINTS)
    rows, far = covered.rows[::every], far[::every]
    points = np.concatenate([log.obs_scale.apply(log.obs[rows]), log.action_scale.apply(actions[rows])], 1)
    flat = points @ directions[:2].T
    flat = np.pad(flat, ((0, 0), (0, 2 - flat.shape[1])))
    inside, outside = (tuple((float(x), float(y)) for x, y in flat[part]) for part in (~far, far))
    return inside, outside
