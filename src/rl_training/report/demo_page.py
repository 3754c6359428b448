"""The demo's page: what the judge says from the log alone, what the plant says, and all of the evidence."""

from __future__ import annotations

from pathlib import Path

from rl_training.core.atomic import write_text_atomic
from rl_training.experiment.demo_plant import Truth
from rl_training.judging.judgement import Judgement
from rl_training.report.html import render_html
from rl_training.report.judge_page import judge_sections, subtitle
from rl_training.report.sections import Section
from rl_training.report.summary import Head
from rl_training.report.svg import Chart, Level, Series
from rl_training.report.tables import Cell, Table, plain_number

TITLE = "From a log to a judged policy"
MEASURED = "Only afterwards, for “The truth”, was everybody tried out at the plant that the log is from."


def truth_rows(judgement: Judgement, truth: Truth) -> list[tuple[str, str, str]]:
    """Who, what the judge estimated, what the plant measured; from the best down."""
    (policy,), behaviour = judgement.policies, judgement.behaviour
    rows = [
        (f"the policy ({policy.verdict})", _estimated(policy.value, policy.low, policy.high), truth.policy),
        ("the log, all operators", _estimated(behaviour.value, behaviour.low, behaviour.high), truth.log),
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
    said = tuple(f"{each.name}: {each.sentence}" for each in judgement.ranking())
    head = Head(TITLE, (*said, truth_sentence(judgement, truth)), (subtitle(judgement), MEASURED))
    first = Section("The truth", (true_curve(truth), truth_table(judgement, truth)))
    write_text_atomic(Path(out), render_html(head, [first, *judge_sections(judgement)]))
    return Path(out)


def truth_table(judgement: Judgement, truth: Truth) -> Table:
    header = ("who", "estimated from the log", "measured at the plant")
    rows: tuple[tuple[Cell, ...], ...] = tuple(truth_rows(judgement, truth))
    return Table("Was the judge right?", header, rows, "Sums of discounted scores from the start of a run.")


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


def _estimated(value: float, low: float, high: float) -> str:
    return f"{plain_number(value)} [{plain_number(low)}, {plain_number(high)}]"


def _more(difference: float) -> str:
    return f"{plain_number(abs(difference))} {'more' if difference > 0 else 'less'}"
