"""The values of a policy by different methods, as a figure and as a table."""

from __future__ import annotations

from rl_training.judging.judgement import Interval, Judgement, PolicyJudgement
from rl_training.report.marks import Bar, Intervals
from rl_training.report.tables import Cell, Table, plain_number

ESTIMATORS = {
    "fqe": "fitted values (headline)",
    "model": "model of the dynamics",
    "wdr": "weighted doubly robust",
    "wpdis": "weighted per-decision IS",
    "pdis": "per-decision IS",
    "wis": "weighted IS",
    "is": "importance sampling",
}
DRAWN = {"fqe": "fitted values", "model": "model", "wdr": "doubly robust", "wpdis": "weighted IS"}
"""Short, so that a phone shows them whole."""

LARGE = 1e9


def estimates_figure(judgement: Judgement, policy: PolicyJudgement) -> Intervals:
    shown = {name: policy.estimates[name] for name in DRAWN if name in policy.estimates}
    bars = tuple(
        Bar(DRAWN[name], each.value, each.low, each.high, index + 1)
        for index, (name, each) in enumerate(shown.items())
    )
    own = judgement.behaviour
    title, note = "The value by different methods", "Methods that agree are worth more than a narrow bar."
    return Intervals(title, "value", bars, (own.low, own.high), "the logged behaviour", note)


def estimates_table(policy: PolicyJudgement) -> Table:
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (ESTIMATORS.get(name, name), told(each)) for name, each in policy.estimates.items()
    )
    notes = dict.fromkeys(each.note for each in policy.estimates.values() if each.note)
    note = "Weighted sums count logged steps only, and say little once their weights rest on a few episodes"
    return Table("All estimates", ("method", "value"), rows, "; ".join((note, *notes)) + ".")


def told(each: Interval) -> str:
    if each.low is None or each.high is None:
        return _number(each.value)
    return f"{_number(each.value)} [{_number(each.low)}, {_number(each.high)}]"


def _number(value: float) -> str:
    """Weights multiply: where they run away, how far is all that matters."""
    return plain_number(value) if abs(value) < LARGE else f"{value:.1e}"
