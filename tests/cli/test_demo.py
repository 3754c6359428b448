"""The demo: its plant by hand-computed numbers, the commands it names, and the whole story in small."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rl_training.cli import main
from rl_training.demo import story as story_module
from rl_training.demo.plant import OPERATORS, Truth, score, step, true_value, write_log
from rl_training.demo.story import Demo, truth_rows, truth_sentence
from rl_training.judging.verdict import (
    BehaviourJudgement,
    Evidence,
    Interval,
    Judgement,
    OperatorJudgement,
    PolicyJudgement,
)
from rl_training.recommend import auto as auto_module
from rl_training.recommend import portfolio as portfolio_module
from rl_training.recommend.choice import Choice
from rl_training.recommend.portfolio import Recipe


class NoNoise:
    def normal(self, mean: float, std: Any, shape: tuple[int, ...]) -> Any:
        return np.full(shape, mean)


def test_one_minute_of_the_plant_by_hand() -> None:
    # 100 l at 50 °C; 40 % of valve let in 14 l of 12 °C, as much as flows out; the heater gives 720 units
    after, scores = step(np.array([[50.0, 50.0, 14.0]]), np.array([[60.0, 40.0]]), NoNoise())  # type: ignore[arg-type]
    warming = (14 * (12 - 50) + 12 * 60) / (100 + 14)
    np.testing.assert_allclose(after, [[50 + warming, 50.0, 14.0]])
    np.testing.assert_allclose(scores, [1 - ((50 + warming - 60) / 10) ** 2])
    beyond, _ = step(np.array([[50.0, 50.0, 14.0]]), np.array([[900.0, -5.0]]), NoNoise())  # type: ignore[arg-type]
    np.testing.assert_allclose(beyond, [[50 + 1200 / 100, 43.0, 14.0]])  # settings stop at 0 and 100 %


def test_scores() -> None:
    readings = np.array([[60.0, 50.0, 9.0], [70.0, 50.0, 9.0], [60.0, 60.0, 9.0], [95.0, 5.0, 9.0]])
    np.testing.assert_allclose(score(readings), [1.0, 0.0, 0.75, -3.0])


def test_the_log_depends_on_the_seed_alone(tmp_path: Path) -> None:
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        write_log(tmp_path / name, runs=6, seed=seed)
    first, again, other = ((tmp_path / name).read_text() for name in "abc")
    assert first == again != other
    lines = first.splitlines()
    assert lines[0] == "run,time,operator,T_tank,level,outflow,heater,valve,score"
    assert len(lines) == 1 + 6 * 60
    assert [line.split(",")[:3] for line in lines[1::60]] == [
        [str(run), "0", name] for run, name in enumerate(["Ada", "Ben", "Cleo", "Dan", "Ada", "Ben"])
    ]


def test_operators_differ_and_calm_foresight_beats_them_all() -> None:
    draws = np.random.default_rng(5)
    earned = [
        true_value(lambda readings, each=each: each.set_by_hand(readings, draws), gamma=0.95, seed=1)
        for each in OPERATORS
    ]
    np.testing.assert_allclose(earned, [14.1, 9.8, 15.1, -13.7], atol=2.0)
    best = OPERATORS[2].__class__("nobody", heat=8.0, fill=1.5, foresight=1.0, unrest=0.0)
    assert true_value(best.meant, gamma=0.95, seed=1) > max(earned) + 2.0


def test_the_command_it_names_does_what_it_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    demo, asked = Demo(tmp_path, 7), []
    write_log(demo.log, runs=2, seed=0)

    def remember(*given: Any, say: Any, on_progress: Any, columns: Any, fields: Any, **named: Any) -> Any:
        columns = {name: value for name, value in dict(columns).items() if value}
        asked.append(
            (given, columns, fields, {name: each for name, each in named.items() if each is not None})
        )
        return SimpleNamespace(policy=None)

    for module in (story_module, auto_module):
        monkeypatch.setattr(module, "auto", remember)
    assert main([*demo.auto_command, "--quiet"]) == 0
    demo.recommend(print, print)
    assert asked[0] == asked[1] and asked[0][3]["seed"] == 7


@pytest.mark.slow
def test_the_whole_story_in_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    light: dict[str, Any] = {"members": 2, "updates": 60, "model_updates": 30, "importance": False}
    light |= {"hidden_sizes": (8,), "model_hidden_sizes": (8,), "model_members": 2, "rollout_starts": 10}
    monkeypatch.setattr(auto_module.run_judge, "judge", partial(auto_module.run_judge.judge, **light))
    stages = {"model_updates": 20, "behavior_updates": 20, "policy_updates": 2, "horizon": 3}
    recipes = (Recipe("bc", "bc", {}, updates=20), Recipe("lion", "lion", stages, updates=42))
    monkeypatch.setattr(portfolio_module, "CONTINUOUS", recipes)
    monkeypatch.setattr(story_module, "RUNS", 120)
    assert main(["demo", "-o", str(tmp_path), "--seed", "2"]) == 0
    told = capsys.readouterr().out
    for part in ("1. A log", "2. What is in it?", "3. Which policy", "4. And the truth?"):
        assert part in told
    page = tmp_path / "demo-s2" / "demo.html"
    assert str(page) in told
    text = page.read_text()
    assert "The dial of lion" in text and "measured at the plant" in text and "<script" not in text
    assert "lion dial 0.25 (" in text, "the page has every candidate"


def found(chosen: str | None) -> Any:
    def policy(name: str, value: float) -> PolicyJudgement:
        gap = Interval(2.0, 1.0, 3.0)
        return PolicyJudgement(
            name, value, value - 1, value + 1, gap, "better", "", (), {}, {}, Evidence(), value
        )

    operators = (OperatorJudgement("Ada", 6.0, 5.0, 7.0, 20),)
    behaviour = BehaviourJudgement(3.0, 2.5, 3.5, 3.0, {}, ())
    policies = (policy("iql", 5.0), policy("lion dial 1", 9.0))
    judgement = Judgement(policies, behaviour, {}, {}, (), 1.0, operators=operators)
    return SimpleNamespace(judgement=judgement, choice=Choice(chosen, ""))


def test_what_is_told_of_judge_and_plant() -> None:
    truth = Truth({"Ada": 6.5, "Ben": -0.5}, {"iql": 3.75, "lion dial 1": 8.5})
    rows = [
        ("Ada", "6 [5, 7]", "6.50"),
        ("iql, recommended", "5 [4, 6]", "3.75"),
        ("the log, all operators", "3 [2.50, 3.50]", "3"),
        ("Ben", "–", "-0.5"),
    ]
    assert truth_rows(found("iql"), truth) == rows
    everybody = [("lion dial 1 (better)", "9 [8, 10]", "8.50"), *rows]
    assert truth_rows(found("iql"), truth, everybody=True) == everybody
    assert truth_sentence(found("iql"), truth) == (
        "The truth: 3.75, outside the judge's interval; 0.75 more than the log, "
        "2.75 less than the best operator, Ada."
    )
    for value, place in ((4.0, "inside"), (6.0, "inside"), (6.25, "outside")):
        earned = Truth(truth.operators, {"iql": value, "lion dial 1": 8.5})
        assert f", {place} the judge's interval" in truth_sentence(found("iql"), earned)
    assert truth_sentence(found(None), truth) == (
        "The truth: the best candidate, lion dial 1, earns 5.50 more than the log, "
        "2 more than the best operator, Ada."
    )
