"""What the demo does, step by step, the commands with which a user does the same, and its page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from rl_training.core.files import write_text_atomic
from rl_training.demo.plant import Truth, ask_the_plant, write_log
from rl_training.judging.fit import OnProgress
from rl_training.judging.verdict import DialCurve
from rl_training.recommend.auto import AutoResult, Say, auto
from rl_training.report.auto_page import auto_page
from rl_training.report.charts import Chart, Level, Series
from rl_training.report.content import Section, Table, plain_number, render_html, with_interval
from rl_training.report.judge_page import dial_line

RUNS, MINUTES, GAMMA = 200, 1.0, 0.95
OBSERVATIONS, ACTIONS = ["T_tank", "level", "outflow"], ["heater", "valve"]
COLUMNS = {
    **{"observations": OBSERVATIONS, "actions": ACTIONS, "reward": "score", "episode": "run"},
    **{"time": "time", "operator": "operator"},
}
COLUMN_OPTIONS = (
    *("--obs", ",".join(OBSERVATIONS), "--action", ",".join(ACTIONS), "--reward", "score"),
    *("--episode", "run", "--time", "time", "--operator", "operator"),
)
BOUNDS = {"action_low": [0.0], "action_high": [100.0]}


@dataclass(frozen=True)
class Demo:
    """A log, a policy recommended by it alone, with intervals and a dial, and then the truth."""

    folder: Path
    seed: int = 0

    @property
    def log(self) -> Path:
        return self.folder / "log.csv"

    @property
    def out(self) -> Path:
        return self.folder / "auto"

    @property
    def page(self) -> Path:
        return self.folder / "demo.html"

    def write_log(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        write_log(self.log, runs=RUNS, seed=self.seed)

    @property
    def auto_command(self) -> list[str]:
        bounds = ("--action-low", "0", "--action-high", "100", "--gamma", str(GAMMA))
        size = ("--minutes", f"{MINUTES:g}", "--seed", str(self.seed), "--out", str(self.out))
        return ["auto", str(self.log), *COLUMN_OPTIONS, *bounds, *size]

    def recommend(self, say: Say, on_progress: OnProgress) -> AutoResult:
        """What that command finds."""
        return auto(
            str(self.log),
            columns=COLUMNS,
            fields=BOUNDS,
            out=self.out,
            say=say,
            on_progress=on_progress,
            gamma=GAMMA,
            minutes=MINUTES,
            seed=self.seed,
        )

    def truth(self, found: AutoResult) -> Truth:
        """What the plant says of every operator and of every candidate."""
        candidates = {name: policy.predict for name, policy in found.policies.items()}
        return ask_the_plant(candidates, gamma=GAMMA, seed=self.seed)


# ---- the demo's page: what was found from the log alone, what the plant says, and all of the evidence


TITLE = "From a log to a judged policy"
HEADER = ("who", "estimated from the log", "measured at the plant")
MEASURED = "Only afterwards, for “The truth”, was everybody tried out at the plant that the log is from."

Row = tuple[str, str, float]


def truth_rows(found: AutoResult, truth: Truth, *, everybody: bool = False) -> list[tuple[str, str, str]]:
    """Who, what the judge estimated, what the plant measured; from the best down.

    Of the candidates the recommended one, or `everybody`.
    """
    rows = sorted(_measured(found, truth, everybody), key=lambda row: -row[2])
    return [(who, told, plain_number(value)) for who, told, value in rows]


def _measured(found: AutoResult, truth: Truth, everybody: bool) -> Iterator[Row]:
    judgement = found.judgement
    for policy in judgement.policies:
        chosen = policy.name == found.choice.name
        if chosen or everybody:
            label = f"{policy.name}, recommended" if chosen else f"{policy.name} ({policy.verdict})"
            yield label, with_interval(policy), truth.policies[policy.name]
    yield "the log, all operators", with_interval(judgement.behaviour), truth.log
    estimated = {each.name: with_interval(each) for each in judgement.operators}
    for name, value in truth.operators.items():
        yield name, estimated.get(name, "–"), value


def truth_sentence(found: AutoResult, truth: Truth) -> str:
    """Whether the judge was right, in one sentence."""
    if found.choice.name is None:
        best = max(truth.policies, key=truth.policies.__getitem__)
        return f"The truth: the best candidate, {best}, earns {_beside(truth, truth.policies[best])}."
    (policy,) = (each for each in found.judgement.policies if each.name == found.choice.name)
    value = truth.policies[policy.name]
    inside = "inside" if policy.low <= value <= policy.high else "outside"
    return f"The truth: {plain_number(value)}, {inside} the judge's interval; {_beside(truth, value)}."


def write_demo_page(found: AutoResult, truth: Truth, out: str | Path) -> Path:
    """Write the page; it needs nothing beside itself."""
    page = auto_page(found)
    note = "Sums of discounted scores from the start of a run."
    table = Table("Was the judge right?", HEADER, tuple(truth_rows(found, truth, everybody=True)), note)
    charts = tuple(true_dial(curve, truth) for curve in found.judgement.dials)
    page = replace(
        page,
        title=TITLE,
        verdict=(*page.verdict, truth_sentence(found, truth)),
        facts=(*page.facts, MEASURED),
        sections=(Section("The truth", (*charts, table)), *page.sections),
    )
    write_text_atomic(Path(out), render_html(page))
    return Path(out)


def true_dial(curve: DialCurve, truth: Truth) -> Chart:
    """The judge's value against dial, and the plant's."""
    best = best_operator(truth)
    levels = {"mean of the log": truth.log, f"{best}, the best operator": truth.operators[best]}
    measured = [(each.dial, truth.policies[each.name]) for each in curve.positions]
    lines = (dial_line(curve, "estimated from the log"), Series("measured at the plant", 0, measured))
    return Chart(
        f"The dial of {curve.name}",
        "dial",
        "value",
        lines,
        "0 would be as the operators did, 1 as good as the model of the plant believes. Training and judging "
        "saw the log alone; the plant was asked afterwards.",
        tuple(Level(f"{name}, {plain_number(value)}", value) for name, value in levels.items()),
    )


def best_operator(truth: Truth) -> str:
    return max(truth.operators, key=truth.operators.__getitem__)


def _beside(truth: Truth, value: float) -> str:
    best = best_operator(truth)
    ahead: Iterable[tuple[str, float]] = (
        ("the log", truth.log),
        (f"the best operator, {best}", truth.operators[best]),
    )
    return ", ".join(f"{_more(value - other)} than {name}" for name, other in ahead)


def _more(difference: float) -> str:
    return f"{plain_number(abs(difference))} {'more' if difference > 0 else 'less'}"
