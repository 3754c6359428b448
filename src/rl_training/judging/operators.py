"""Better than whom? A log is a mixture of those who acted; where it names them, each is valued by itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rl_training.core.errors import DataError
from rl_training.data.episodes import BoolArray, IntArray
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.rows import as_array
from rl_training.judging.log import JudgedLog
from rl_training.judging.verdict import Check, Interval, Verdict, number, verdict_of

MOST_OPERATORS = 20
FEWEST_STINTS = 10
"""An operator who took over less often is not valued: a resample may hold none of it."""


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


def best_of(differences: Mapping[str, Interval]) -> str:
    """Who is hardest to beat: the one to whom the difference is smallest."""
    return min(differences, key=lambda name: differences[name].value)


def against_the_best(
    differences: Mapping[str, Interval], checks: Mapping[str, Check], seldom: Mapping[str, int]
) -> str:
    """How a policy stands to the best operator, as the rest of a sentence."""
    name = best_of(differences)
    whom = f"its best operator, {name}" if not seldom else f"the best operator that can be judged, {name}"
    difference = differences[name]
    verdict: Verdict = verdict_of(difference, checks)
    bounds = f"[{number(difference.low)}, {number(difference.high)}]"
    told = {
        "better": f"Better than {whom}, too",
        "worse": f"Worse than {whom}",
        "indistinguishable": f"Not distinguishable from {whom}",
        "refused": f"Nor can it be compared with {whom}",
    }[verdict]
    left_out = "".join(
        f" {each} took over too seldom to be judged: {count} times, {FEWEST_STINTS} are the least."
        for each, count in seldom.items()
    )
    return f"{told}: {'+' * (difference.value > 0)}{number(difference.value)} {bounds}.{left_out}"
