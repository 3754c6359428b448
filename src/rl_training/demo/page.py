"""The demo's page: what the judge says from the log alone, what the plant says, and all of the evidence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rl_training.core.files import write_text_atomic
from rl_training.demo.plant import Truth
from rl_training.judging.verdict import Judgement
from rl_training.report.charts import Chart, Level, Series
from rl_training.report.content import Section, Table, plain_number, with_interval
from rl_training.report.judge_page import judge_page
from rl_training.report.pages import render_html

TITLE = "From a log to a judged policy"
HEADER = ("who", "estimated from the log", "measured at the plant")
MEASURED = "Only afterwards, for “The truth”, was everybody tried out at the plant that the log is from."


def truth_rows(judgement: Judgement, truth: Truth) -> list[tuple[str, str, str]]:
    """Who, what the judge estimated, what the plant measured; from the best down."""
    (policy,), behaviour = judgement.policies, judgement.behaviour
    rows = [
        (f"the policy ({policy.verdict})", with_interval(policy), truth.policy),
        ("the log, all operators", with_interval(behaviour), truth.log),
        *((name, "–", value) for name, value in truth.operators.items()),
    ]
    return [(who, told, plain_number(value)) for who, told, value in sorted(rows, key=lambda row: -row[2])]


def truth_sentence(judgement: Judgement, truth: Truth) -> str:
    """Whether the judge was right, in one sentence."""
    (policy,), best = judgement.policies, best_operator(truth)
    inside = "inside" if policy.low <= truth.policy <= policy.high else "outside"
    ahead = {"the log": truth.log, f"the best operator, {best}": truth.operators[best]}
    told = (f"{_more(truth.policy - value)} than {name}" for name, value in ahead.items())
    return f"The truth: {plain_number(truth.policy)}, {inside} the judge's interval; {', '.join(told)}."


def write_demo_page(judgement: Judgement, truth: Truth, out: str | Path) -> Path:
    """Write the page; it needs nothing beside itself."""
    page = judge_page(judgement, TITLE)
    note = "Sums of discounted scores from the start of a run."
    table = Table("Was the judge right?", HEADER, tuple(truth_rows(judgement, truth)), note)
    page = replace(
        page,
        verdict=(*page.verdict, truth_sentence(judgement, truth)),
        facts=(*page.facts, MEASURED),
        sections=(Section("The truth", (true_curve(truth), table)), *page.sections),
    )
    write_text_atomic(Path(out), render_html(page))
    return Path(out)


def true_curve(truth: Truth) -> Chart:
    best = best_operator(truth)
    levels = {"mean of the log": truth.log, f"{best}, the best operator": truth.operators[best]}
    return Chart(
        "What the policy was worth while it learned",
        "updates",
        "value",
        (Series("the policy, measured at the plant", 0, truth.while_learning),),
        "Measured afterwards, from saved checkpoints: training and judging saw the log alone.",
        tuple(Level(f"{name}, {plain_number(value)}", value) for name, value in levels.items()),
    )


def best_operator(truth: Truth) -> str:
    return max(truth.operators, key=truth.operators.__getitem__)


def _more(difference: float) -> str:
    return f"{plain_number(abs(difference))} {'more' if difference > 0 else 'less'}"
