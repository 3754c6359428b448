"""A judgement as one page to send on: the verdict first, then what it rests on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rl_training.core.atomic import write_text_atomic
from rl_training.core.errors import UserError
from rl_training.judging.judgement import Interval, Judgement, PolicyJudgement
from rl_training.report.html import render_html
from rl_training.report.judge_estimates import estimates_figure, estimates_table, told
from rl_training.report.marks import Bar, Cloud, Intervals, Scatter
from rl_training.report.sections import Block, Section
from rl_training.report.summary import Head
from rl_training.report.svg import Chart, Series
from rl_training.report.tables import Cell, Table, plain_number

CHECKS = {
    "episodes": "enough episodes",
    "falsification": "values of the behaviour are right",
    "convergence": "the value has settled",
    "draws": "judged as it draws its actions",
    "coverage": "the log covers what the policy does",
    "rollout_coverage": "the log covers where it leads",
    "second_opinion": "a second method agrees",
    "sample_size": "importance weights carry",
    "actions": "actions are as calm as the log's",
    "critic": "its own critic is not too hopeful",
}
OUTCOMES = {"passed": "passed", "warned": "take note", "refused": "failed"}
MANY_OBSERVATIONS = 8


def write_judge_page(
    judgement: Judgement, out: str | Path, *, title: str = "How good is the policy?"
) -> Path:
    """Write the page; it needs nothing beside itself."""
    path = Path(out)
    if path.is_dir():
        raise UserError(f"out must name a file, got the directory {out}: write {path / 'judge.html'}")
    head = Head(
        title, tuple(f"{each.name}: {each.sentence}" for each in judgement.ranking()), (subtitle(judgement),)
    )
    write_text_atomic(path, render_html(head, judge_sections(judgement)))
    return path


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


def judge_sections(judgement: Judgement) -> list[Section]:
    """The whole content, in order."""
    ranked = judgement.ranking()
    first = (verdict_table(judgement, ranked), values_figure(judgement, ranked))
    parts = [Section("Verdict", first)]
    parts += [policy_section(judgement, policy) for policy in ranked]
    parts.append(Section("Can values of this log be trusted?", trust_blocks(judgement)))
    if judgement.advice:
        rows: tuple[tuple[Cell, ...], ...] = tuple((sentence,) for sentence in judgement.advice)
        parts.append(Section("What would make the answer surer", (Table("Advice", ("do this",), rows),)))
    return parts


def verdict_table(judgement: Judgement, ranked: list[PolicyJudgement]) -> Table:
    own = judgement.behaviour
    rows: list[tuple[Cell, ...]] = [
        (
            each.name,
            each.verdict,
            told(Interval(each.value, each.low, each.high)),
            _per_step(judgement, each.value),
            told(each.difference),
        )
        for each in ranked
    ]
    behaviour = Interval(own.value, own.low, own.high)
    rows.append(("the logged behaviour", "–", told(behaviour), _per_step(judgement, own.value), "–"))
    note = (
        "Value: expected sum of discounted rewards from the first state of an episode. Refused policies keep "
        "their numbers, but these must not be relied on."
    )
    tied = [each.name for each in judgement.ties()]
    if len(tied) > 1:
        note += f" {tied[0]} comes first, but this log cannot tell it from: {', '.join(tied[1:])}."
    header = ("policy", "verdict", "value", "per step", "difference to the log")
    return Table("Is it better than what was logged?", header, tuple(rows), note)


def values_figure(judgement: Judgement, ranked: list[PolicyJudgement]) -> Intervals:
    bars = tuple(
        Bar(each.name, each.value, each.low, each.high, 1 + index) for index, each in enumerate(ranked)
    )
    own = judgement.behaviour
    return Intervals(
        "Values with intervals",
        "value",
        bars,
        (own.low, own.high),
        "the logged behaviour",
        "A policy whose bar lies right of the band earns more than what was logged.",
    )


def policy_section(judgement: Judgement, policy: PolicyJudgement) -> Section:
    evidence = policy.evidence
    series = (
        Series("the policy", 1, [(step, value) for step, value, _ in evidence.along_time]),
        Series("the logged behaviour", 0, [(step, value) for step, _, value in evidence.along_time]),
    )
    clouds = (
        Cloud("logged", 0, evidence.map_logged),
        Cloud("the policy, covered by the log", 2, evidence.map_inside),
        Cloud("the policy, not covered", 7, evidence.map_outside),
    )
    blocks: list[Block] = [
        checks_table(policy),
        estimates_figure(judgement, policy),
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


def checks_table(policy: PolicyJudgement) -> Table:
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (CHECKS.get(name, name), OUTCOMES[check.outcome], check.reason)
        for name, check in policy.checks.items()
    )
    return Table("Checks", ("question", "answer", "why"), rows, "One failed check refuses the verdict.")


def actions_table(policy: PolicyJudgement) -> Table:
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (
            each.name,
            plain_number(each.mean_difference),
            f"{plain_number(each.mean)} / {plain_number(each.logged_mean)}",
            f"{each.on_bound:.0%} / {each.logged_on_bound:.0%}",
            f"{plain_number(each.rate)} / {plain_number(each.logged_rate)}",
        )
        for each in policy.evidence.actions
    )
    header = ("action", "mean difference", "mean", "on a bound", "change per step")
    return Table("What it does differently", header, rows, "At the logged states: the policy / the log.")


def uncovered_table(policy: PolicyJudgement) -> Table:
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (
            f"{each.distance:.2g} ×",
            _values(each.observation),
            _values(each.logged_action),
            _values(each.action),
        )
        for each in policy.evidence.uncovered
    )
    note = "Distance to the nearest logged rows, in multiples of what 99 % of the log stays below."
    header = ("distance", "state", "logged action", "the policy's")
    return Table("Where the log helps least", header, rows, note)


def trust_blocks(judgement: Judgement) -> tuple[Table | Scatter, ...]:
    own = judgement.behaviour
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (CHECKS.get(name, name), OUTCOMES[check.outcome], check.reason) for name, check in own.checks.items()
    )
    table = Table(
        "The behaviour, whose returns are known",
        ("question", "answer", "why"),
        rows,
        _RETURN_NOTE.format(plain_number(own.mean_return)),
    )
    if len(own.calibration) < 2:
        return (table,)
    note = "Each dot is a tenth of the held-out rows. On the line, values are what was really earned."
    cloud = Cloud("held-out rows", 1, own.calibration)
    return (table, Scatter("Calibration", "estimated value", "return", (cloud,), note, diagonal=True))


_RETURN_NOTE = (
    "Logged episodes returned {} on average, discounted; episodes that were cut off would have gone on, "
    "which their value includes and their return does not."
)


def _per_step(judgement: Judgement, value: float) -> str:
    return plain_number(judgement.per_step(value))


def _values(values: Mapping[str, float]) -> str:
    told = [f"{name} {plain_number(value)}" for name, value in list(values.items())[:MANY_OBSERVATIONS]]
    return ", ".join(told) + (" …" if len(values) > MANY_OBSERVATIONS else "")
