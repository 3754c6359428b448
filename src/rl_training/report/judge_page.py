"""A judgement as one page to send on: the verdict first, then what it rests on; and what policies cost."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rl_training.core.files import write_text_atomic
from rl_training.judging.candidates import sentence_of_dial, told_limits
from rl_training.judging.verdict import (
    BehaviourJudgement,
    Check,
    CostJudgement,
    DialCurve,
    Judgement,
    LimitOutcome,
    OperatorJudgement,
    PolicyJudgement,
)
from rl_training.report.charts import Bar, Chart, Cloud, Figure, Intervals, Level, Scatter, Series
from rl_training.report.content import (
    Cell,
    Page,
    Section,
    Table,
    plain_number,
    refuse_directory,
    render_html,
    with_interval,
    words_section,
)
from rl_training.report.explain import explained, model_table

ESTIMATORS = {
    "fqe": "fitted values",
    "model": "model of the dynamics",
    "wdr": "weighted doubly robust",
    "wpdis": "weighted per-decision IS",
    "pdis": "per-decision IS",
    "wis": "weighted IS",
    "is": "importance sampling",
}
DRAWN = {"fqe": "fitted values", "model": "model", "wdr": "doubly robust", "wpdis": "weighted IS"}
"""Short, so that a phone shows them whole."""

CHECKS = {
    "episodes": "enough episodes",
    "falsification": "values of the behaviour are right",
    "unmarked_ends": "early ends are marked",
    "episodes_alike": "episodes answer alike",
    "memory": "the past says nothing more",
    "convergence": "the value has settled",
    "draws": "judged as it draws its actions",
    "counting": "judged as it will run",
    "coverage": "the log covers what the policy does",
    "rollout_coverage": "the log covers where it leads",
    "second_opinion": "a second method agrees",
    "sample_size": "importance weights carry",
    "actions": "actions are as calm as the log's",
    "critic": "its own critic is not too hopeful",
}
ANSWERS = {"passed": "passed", "warned": "take note", "refused": "failed"}
MANY_OBSERVATIONS = 8
WORDS_HERE = ("behaviour", "coverage", "discount", "episode", "interval", "resample", "value", "verdict")


def write_judge_page(
    judgement: Judgement, out: str | Path, *, title: str = "How good is the policy?"
) -> Path:
    """Write the page; it needs nothing beside itself."""
    path = Path(out)
    refuse_directory(path, "judge.html")
    write_text_atomic(path, render_html(judge_page(judgement, title)))
    return path


def judge_page(judgement: Judgement, title: str) -> Page:
    """The whole content, in order."""
    ranked = judgement.ranking()
    parts = [Section("Verdict", (verdict_table(judgement, ranked), differences_chart(ranked)))]
    parts += costs_sections(judgement)
    parts += [dial_section(judgement, curve) for curve in judgement.dials]
    parts += detail_sections(judgement, ranked)
    if judgement.advice:
        advice = Table("Advice", ("do this",), tuple((sentence,) for sentence in judgement.advice))
        parts.append(Section("What would make the answer surer", (advice,)))
    parts.append(words_of(judgement))
    turned = tuple(sentence_of_dial(curve) for curve in judgement.dials)
    sentences = (*turned, *(f"{each.name}: {each.sentence}" for each in ranked))
    tones = (*("better" if curve.recommended else "refused" for curve in judgement.dials),)
    tones += tuple(tone_of(each) for each in ranked)
    return Page(title, sentences, (subtitle(judgement),), tuple(parts), tones)


def detail_sections(judgement: Judgement, policies: Sequence[PolicyJudgement]) -> list[Section]:
    """What some policies do and what their values rest on; whether values of this log can be trusted."""
    parts = []
    for policy in policies:
        if (told := policy.evidence.explanation) is not None:
            parts.append(explained(told, f"What does {policy.name} do?"))
        parts.append(policy_section(judgement, policy))
    parts.append(Section("Can values of this log be trusted?", trust_blocks(judgement)))
    if judgement.model:
        how = "on episodes that the networks which answer have not seen"
        table = model_table(judgement.model, "The model that gives the second opinion", how)
        parts.append(Section("How well does the judge's model know the plant?", (table,)))
    return parts


def words_of(judgement: Judgement) -> Section:
    words = [*WORDS_HERE, *(["dial"] if judgement.dials else [])]
    return words_section(*words, *(("cost", "limit") if judgement.logged_costs else ()))


def tone_of(policy: PolicyJudgement) -> str:
    """The verdict, unless limits say otherwise."""
    if policy.verdict != "refused" and policy.limits in ("breaks", "cannot tell"):
        return "worse" if policy.limits == "breaks" else "indistinguishable"
    return policy.verdict


def limits_header(judgement: Judgement) -> tuple[str, ...]:
    return ("limits",) if has_limits(judgement) else ()


def dial_section(judgement: Judgement, curve: DialCurve) -> Section:
    """Value against dial, with what the log covers at each position."""
    points = curve.positions
    levels = (Level("the logged behaviour", judgement.behaviour.value),)
    note = "The band is the interval of each position, judged as a policy of its own on the same resamples."
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (
            f"{each.dial:g}",
            each.verdict,
            *limit_cells(judgement, each.limits),
            with_interval(each),
            None if each.share_outside is None else f"{each.share_outside:.1%}",
        )
        for each in points
    )
    header = ("dial", "verdict", *limits_header(judgement), "value", "actions unlike the log")
    chart = Chart("Value against dial", "dial", "value", (dial_line(curve, curve.name),), note, levels)
    return Section(f"The dial of {curve.name}", (chart, Table(sentence_of_dial(curve), header, rows)))


def dial_line(curve: DialCurve, label: str) -> Series:
    """The judge's values with their band."""
    points = curve.positions
    band = [(each.dial, each.low, each.high) for each in points]
    return Series(label, 1, [(each.dial, each.value) for each in points], band)


def subtitle(judgement: Judgement) -> str:
    """What was judged, on what, and how."""
    data, draws = judgement.data, judgement.settings["action_draws"]
    discount = f"{judgement.gamma:g}"
    if judgement.settings["discount_by_time"]:
        discount += " per median step of time"
    told = f"Policies are judged as they draw their actions, {draws} draws per state. " if draws else ""
    return (
        f"Judged from {data['rows']:,} logged rows in {data['episodes']:,} episodes of {data['source']}, "
        f"discount {discount}, {judgement.settings['confidence']:.0%} intervals. {told}Nothing was "
        "tried out: all values are estimates."
    )


def differences_chart(ranked: Sequence[PolicyJudgement]) -> Intervals:
    """What verdicts rest on: intervals of values are wider, as they hold what all policies share."""
    bars = tuple(
        Bar(each.name, each.difference.value, each.difference.low, each.difference.high, 1 + index)
        for index, each in enumerate(ranked)
    )
    note = "What lies right of 0 with its whole bar is better than what was logged, left of it worse."
    title = "Difference to the logged behaviour"
    return Intervals(title, "difference in value", bars, (0.0, 0.0), "the logged behaviour", note)


def beside_the_log(judgement: Judgement, title: str, bars: Sequence[Bar], note: str) -> Intervals:
    own = judgement.behaviour
    return Intervals(title, "value", tuple(bars), (own.low, own.high), "the logged behaviour", note)


def verdict_table(judgement: Judgement, ranked: Sequence[PolicyJudgement]) -> Table:
    own, per_step = judgement.behaviour, judgement.per_step
    rows: list[tuple[Cell, ...]] = [
        (
            each.name,
            each.verdict,
            *limit_cells(judgement, each.limits),
            with_interval(each),
            per_step(each.value),
            with_interval(each.difference),
            None if each is ranked[0] else with_interval(judgement.compare(each.name, ranked[0].name)),
        )
        for each in ranked
    ]
    others: list[tuple[str, BehaviourJudgement | OperatorJudgement]] = [("the logged behaviour", own)]
    others += [(f"operator {each.name}", each) for each in judgement.operators]
    rows += [
        (
            name,
            None,
            *limit_cells(judgement, each.limits),
            with_interval(each),
            per_step(each.value),
            None,
            None,
        )
        for name, each in others
    ]
    note = (
        "Value: expected sum of discounted rewards from the first state of an episode. Refused policies keep "
        "their numbers, but these must not be relied on. Differences are taken network by network, so that "
        "what all share cancels: their intervals are narrower than those of values."
    )
    tied = [each.name for each in judgement.ties()]
    if len(tied) > 1:
        note += f" {tied[0]} comes first, but this log cannot tell it from: {', '.join(tied[1:])}."
    limits = limits_header(judgement)
    header = ("policy", "verdict", *limits, "value", "per step", "difference to the log", "to the first")
    return Table("Is it better than what was logged?", header, tuple(rows), note)


def policy_section(judgement: Judgement, policy: PolicyJudgement) -> Section:
    evidence, estimates = policy.evidence, policy.estimates
    shown = [(label, estimates[name]) for name, label in DRAWN.items() if name in estimates]
    bars = [Bar(label, each.value, each.low, each.high, 1 + i) for i, (label, each) in enumerate(shown)]
    agree = "Methods that agree are worth more than a narrow bar."
    series = (
        Series("the policy", 1, [(step, value) for step, value, _ in evidence.along_time]),
        Series("the logged behaviour", 0, [(step, value) for step, _, value in evidence.along_time]),
    )
    clouds = (
        Cloud("logged", 0, evidence.map_logged),
        Cloud("the policy, covered by the log", 2, evidence.map_inside),
        Cloud("the policy, not covered", 7, evidence.map_outside),
    )
    blocks: list[Table | Figure] = [
        checks_table("Checks", policy.checks, "One failed check refuses the verdict."),
        beside_the_log(judgement, "The value by different methods", bars, agree),
        estimates_table(policy),
        actions_table(policy),
        Chart("Value along the logged episodes", "step of the episode", "value from there", series),
        Scatter(
            "What the log covers",
            "first direction",
            "second direction",
            tuple(cloud for cloud in clouds if cloud.points),
            "States with the actions taken in them, along the two directions in which the log varies most.",
        ),
        uncovered_table(policy),
    ]
    if policy.operators:
        blocks.insert(1, operators_table(policy))
    if len(evidence.critic) > 1:
        note = "Each dot is a tenth of the rows. Below the line the critic promises more than the log earned."
        cloud = Cloud("logged rows", 1, evidence.critic)
        title = "The critic it was trained with"
        blocks.append(Scatter(title, "its value", "return", (cloud,), note, diagonal=True))
    if len(evidence.training) > 1:
        line = [(done, value) for done, value, _, _ in evidence.training]
        band = [(done, low, high) for done, _, low, high in evidence.training]
        fitted = Series("value", 1, line, band)
        blocks.append(Chart("The value while it was fitted", "updates", "value", (fitted,)))
    return Section(policy.name, tuple(blocks))


def checks_table(title: str, checks: Mapping[str, Check], note: str) -> Table:
    rows = tuple(
        (CHECKS.get(name, name), ANSWERS[check.outcome], check.reason) for name, check in checks.items()
    )
    return Table(title, ("question", "answer", "why"), rows, note)


def operators_table(policy: PolicyJudgement) -> Table:
    rows = tuple((name, with_interval(each)) for name, each in policy.operators.items())
    note = "What the policy earns more than each, from the states in which it took over."
    return Table("Against the operators", ("operator", "difference"), rows, note)


def estimates_table(policy: PolicyJudgement) -> Table:
    rows = tuple((ESTIMATORS.get(name, name), with_interval(each)) for name, each in policy.estimates.items())
    notes = dict.fromkeys(each.note for each in policy.estimates.values() if each.note)
    note = "Weighted sums count logged steps only, and say little once their weights rest on a few episodes"
    return Table("All estimates", ("method", "value"), rows, "; ".join((note, *notes)) + ".")


def actions_table(policy: PolicyJudgement) -> Table:
    rows = tuple(
        (
            each.name,
            each.mean_difference,
            f"{plain_number(each.mean)} / {plain_number(each.logged_mean)}",
            f"{each.on_bound:.0%} / {each.logged_on_bound:.0%}",
            f"{plain_number(each.rate)} / {plain_number(each.logged_rate)}",
        )
        for each in policy.evidence.actions
    )
    header = ("action", "mean difference", "mean", "on a bound", "change per step")
    note = "At the logged states: the policy / the log. The mean of a level, such as pump = on, is its share."
    return Table("What it does differently", header, rows, note)


def uncovered_table(policy: PolicyJudgement) -> Table:
    rows = tuple(
        (
            f"{each.distance:.2g} ×" if math.isfinite(each.distance) else "level not taken around",
            *map(_listed, (each.observation, each.logged_action, each.action)),
        )
        for each in policy.evidence.uncovered
    )
    note = "Distance to the nearest logged rows, in multiples of what 99 % of the log stays below."
    header = ("distance", "state", "logged action", "the policy's")
    return Table("Where the log helps least", header, rows, note)


def trust_blocks(judgement: Judgement) -> tuple[Table | Figure, ...]:
    own = judgement.behaviour
    note = (
        f"Logged episodes returned {plain_number(own.mean_return)} on average, discounted; episodes that "
        "were cut off would have gone on, which their value includes and their return does not."
    )
    table = checks_table("The behaviour, whose returns are known", own.checks, note)
    if len(own.calibration) < 2:
        return (table,)
    note = "Each dot is a tenth of the held-out rows. On the line, values are what was really earned."
    cloud = Cloud("held-out rows", 1, own.calibration)
    return (table, Scatter("Calibration", "estimated value", "return", (cloud,), note, diagonal=True))


def _listed(values: Mapping[str, float]) -> str:
    told = [f"{name} {plain_number(value)}" for name, value in list(values.items())[:MANY_OBSERVATIONS]]
    return ", ".join(told) + (" …" if len(values) > MANY_OBSERVATIONS else "")


# ---- what policies cost and whether they keep their limits, on pages and in a terminal


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
