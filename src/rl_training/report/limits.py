"""What policies cost and whether they keep their limits, on pages and in a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rl_training.judging.candidates import told_limits
from rl_training.judging.verdict import CostJudgement, Judgement, LimitOutcome, PolicyJudgement
from rl_training.report.charts import Bar, Figure, Intervals
from rl_training.report.content import Cell, Section, Table, plain_number, with_interval

OUTCOMES: dict[LimitOutcome | None, str] = {
    "keeps": "keeps it",
    "breaks": "breaks it",
    "cannot tell": "cannot tell",
    None: "–",
}
COST_HEADER = ("cost", "of", "limit", "estimated", "outcome")


def cost_rows(judgement: Judgement) -> Iterator[tuple[str, str, str, str, str]]:
    """Cost by cost: every policy in the judge's order, behaviour, operators, and what was logged."""
    whose = [(each.name, each.costs) for each in judgement.ranking()]
    whose.append(("the logged behaviour", judgement.behaviour.costs))
    whose += [(f"operator {each.name}", each.costs) for each in judgement.operators]
    for place, logged in enumerate(judgement.logged_costs):
        for name, costs in whose:
            each = costs[place]
            yield each.name, name, told_bound(each), with_interval(each), OUTCOMES[each.outcome]
        measured = f"{plain_number(logged.per_step)} per step, {plain_number(logged.per_episode)} per episode"
        within = "–"
        if logged.episodes_within is not None:
            within = f"{logged.episodes_within:.0%} of episodes kept it"
        yield logged.name, "as logged", logged.limit or "–", measured, within


def told_bound(cost: CostJudgement) -> str:
    return f"per {cost.per}" if cost.limit is None else f"{plain_number(cost.limit)} per {cost.per}"


def limit_cells(judgement: Judgement, of: LimitOutcome | None) -> tuple[Cell, ...]:
    """A further cell of tables of verdicts, where the judgement has limits."""
    return ((None if of is None else told_limits(of)),) if has_limits(judgement) else ()


def has_limits(judgement: Judgement) -> bool:
    return judgement.behaviour.limits is not None


def costs_sections(judgement: Judgement, title: str = "What does it cost?") -> list[Section]:
    """Table and pictures of all costs; nothing where the log has none."""
    if not judgement.logged_costs:
        return []
    note = (
        "Per step: the mean over steps, those that come later counting less, as with rewards. Per episode: "
        "the sum until its end. A limit is kept where the whole interval lies below it, broken where it lies "
        "above. As logged: nothing is estimated, all steps count alike."
    )
    blocks: list[Table | Figure] = []
    for place, each in enumerate(judgement.behaviour.costs):
        rows = [row for row in cost_rows(judgement) if row[0] == each.name]
        # what decides comes first: a phone shows the left of a table
        told = tuple((whose, outcome, estimated) for _, whose, _, estimated, outcome in rows)
        bound = f"per {each.per}" if each.limit is None else f"limit {rows[0][2]}"
        blocks.append(
            Table(f"{each.name}, {bound}", ("of", "outcome", "estimated"), told, "" if place else note)
        )
        if each.limit is not None:
            blocks.append(limit_figure(judgement, judgement.ranking(), place))
    return [Section(title, tuple(blocks))]


def limit_figure(judgement: Judgement, ranked: Sequence[PolicyJudgement], place: int) -> Intervals:
    """One cost of everybody, over the band that its limit allows."""
    own = judgement.behaviour.costs[place]
    whose = [("the log", own), *((each.name, each.costs[place]) for each in ranked)]
    bars = [
        Bar(name, cost.value, cost.low, cost.high if math.isfinite(cost.high) else None, color)
        for color, (name, cost) in enumerate(whose)
    ]
    bound = own.limit or 0.0
    title, note = f"{own.name} per {own.per}", "A bar that lies wholly within the band keeps the limit."
    return Intervals(title, own.name, tuple(bars), (min(0.0, bound), bound), "within the limit", note)
