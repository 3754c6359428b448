"""What does a policy do? An explanation as tables and charts, for every page that speaks of a policy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rl_training.algorithms.dynamics import ColumnErrors
from rl_training.judging.explanation import Bound, Course, Explanation, Response, Rule
from rl_training.report.charts import Chart, Figure, Series
from rl_training.report.content import Cell, Section, Table, plain_number

WORTH_TELLING = 0.02
"""Difference of an action, as a share of its range, below which nothing is said."""

NO_HELP = 0.9
"""A model that leaves so much of what changes says hardly more than that nothing does."""


def explained(explanation: Explanation, title: str = "What does it do?") -> Section:
    """Everything a page shows of what a policy does."""
    return Section(
        title,
        (
            rules_table(explanation),
            importance_table(explanation),
            *map(response_chart, explanation.responses),
            *episode_charts(explanation),
        ),
    )


def rules_table(explanation: Explanation) -> Table:
    """The rules in words."""
    reaches = list(zip(explanation.actions, explanation.ranges, strict=True))
    rows = []
    for rule in explanation.rules:
        told = [
            f"{name} {'+' if difference > 0 else '−'}{plain_number(abs(difference))}"
            for (name, reach), difference in zip(reaches, rule.differences, strict=True)
            if abs(difference) >= WORTH_TELLING * reach
        ]
        rows.append((where(rule), f"{100 * rule.share:.0f} %", ", ".join(told) or "as logged"))
    note = "Mean difference of the policy's actions from the logged ones, in the log's units."
    return Table("Where it differs from the log", ("where", "share of rows", "difference"), tuple(rows), note)


def where(rule: Rule) -> str:
    """`level above 1.4 and inflow between 2 and 3`."""
    columns: dict[str, list[Bound]] = {}
    for bound in rule.bounds:
        columns.setdefault(bound.column, []).append(bound)
    return " and ".join(map(_range, columns.values())) or "everywhere"


def _range(bounds: Sequence[Bound]) -> str:
    """All that is said of one column: one side, or both."""
    column, values = bounds[0].column, [plain_number(each.value) for each in bounds]
    if len(bounds) == 1:
        return f"{column} {'above' if bounds[0].above else 'below'} {values[0]}"
    low, high = values if bounds[0].above else values[::-1]
    return f"{column} between {low} and {high}"


def importance_table(explanation: Explanation) -> Table:
    rows = tuple(
        (each.column, *(f"{100 * share:.1f} %" for share in each.shares)) for each in explanation.importance
    )
    note = (
        "How far an action moves, as a share of its range, when the column is taken from another row. The "
        "charts below show how it answers to the columns that matter most, all others at logged values: the "
        "mean, and the middle 80 % of rows. Grey: how often the log has been there."
    )
    return Table("What each column matters", ("column", *explanation.actions), rows, note)


def response_chart(response: Response) -> Chart:
    lines = (response.places, response.mean, response.low, response.high)
    points = list(zip(*lines, strict=True))
    series = Series(
        response.action,
        1,
        [(place, mean) for place, mean, _, _ in points],
        [(place, low, high) for place, _, low, high in points],
    )
    title = f"{response.action} against {response.column}"
    shade = response.density
    return Chart(title, response.column, response.action, (series,), small=True, density=shade)


def episode_charts(explanation: Explanation) -> Iterable[Figure]:
    """One logged episode: what the policy would have done in its states, and what a model believes of it."""
    note = (
        "The logged episode with the median sum of rewards: what was done, and what the policy would have "
        "done in the states that were logged."
    )
    for course in explanation.proposed:
        yield course_chart(f"{course.name} in one logged episode", course, "the policy", note)
        note = ""
    if not explanation.what_if:
        return
    *columns, reward = explanation.what_if
    sums = [plain_number(sum(each)) for each in (reward.logged, reward.policy)]
    note = (
        "What the judge's model of the plant believes of the same episode under the policy, with the "
        "disturbances that it met; the band is where the model's networks disagree. The logged rewards add "
        f"up to {sums[0]}, the believed ones to {sums[1]}. Nobody has tried it."
    )
    for course in (reward, *columns):
        yield course_chart(f"What if? {course.name} under the policy", course, "believed", note)
        note = ""


def course_chart(title: str, course: Course, label: str, note: str) -> Chart:
    steps = range(len(course.logged))
    band = list(zip(steps, course.low, course.high, strict=True)) if course.low else []
    own = Series(label, 1, list(zip(steps, course.policy, strict=True)), band)
    logged = Series("logged", 0, list(zip(steps, course.logged, strict=True)))
    return Chart(title, "step", course.name, (logged, own), note)


def model_table(errors: Sequence[ColumnErrors], title: str, note: str) -> Table:
    """What a model of the plant can tell and what it cannot, the column that it knows least of first."""
    ahead = errors[0].steps
    header = ["column", "left open"]
    for steps in ahead:
        when = "one step ahead" if steps == 1 else f"{steps} steps ahead"
        header += [f"error {when}", "if nothing changed"]
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (
            each.column,
            f"{100 * each.left:.0f} %" + (" (no help)" if each.left >= NO_HELP else ""),
            *(value for pair in zip(each.model, each.unchanged, strict=True) for value in pair),
        )
        for each in sorted(errors, key=lambda each: -each.left)
    )
    told = (
        f"Typical errors, in the column's units, {note}. Beside each, the error of saying that the column "
        "stays as it is, and that every reward is the mean one. Left open is the share of that which the "
        "model cannot tell, as far ahead as was asked."
    )
    return Table(title, tuple(header), rows, told)
