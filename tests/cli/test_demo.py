"""The demo: its plant by hand-computed numbers, the commands it names, and the whole story in small."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rl_training.cli import judge as judge_module
from rl_training.cli import main
from rl_training.demo import story as story_module
from rl_training.demo.page import truth_rows, truth_sentence
from rl_training.demo.plant import OPERATORS, Truth, score, step, true_value, write_log
from rl_training.demo.story import Demo
from rl_training.judging.verdict import BehaviourJudgement, Evidence, Interval, Judgement, PolicyJudgement
from rl_training.runs import saved


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


def test_the_commands_it_names_do_what_it_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    demo, configs = Demo(tmp_path, 7), []
    write_log(demo.log, runs=2, seed=0)
    result = SimpleNamespace(run_dir=tmp_path, checkpoint_path=tmp_path, members=(), metrics={"signal": 2})

    def remember(config: Any, *, quiet: bool) -> Any:
        configs.append(config)
        return result

    monkeypatch.setattr("rl_training.runs.train.train", remember)
    main(demo.train_command)
    (asked_for,), done = configs, demo.config
    assert asked_for.run_config() == done.run_config() and done.seed == 7
    assert asked_for.replace(algo_kwargs={}) == done.replace(algo_kwargs={})

    asked: list[Any] = []

    def judge(*given: Any, on_progress: Any, **named: Any) -> None:
        asked.append((given, {name: value for name, value in named.items() if value not in (None, {})}))

    monkeypatch.setattr(saved, "judge", judge)
    monkeypatch.setattr(judge_module, "print_result", lambda result: None)
    demo.judge(tmp_path, lambda *progress: None)
    assert main(demo.judge_command(tmp_path)) == 0
    assert asked[0] == asked[1]


def test_the_whole_story_in_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small: dict[str, Any] = {"members": 2, "updates": 60, "hidden_sizes": (8,), "model_updates": 30}
    small |= {"model_hidden_sizes": (8,), "density_updates": 30, "model_members": 2, "rollout_starts": 10}
    judge = saved.judge
    monkeypatch.setattr(saved, "judge", lambda *given, **named: judge(*given, **named, **small))
    for name, value in {"RUNS": 24, "STEPS": 20, "SAVED_EVERY": 10}.items():
        monkeypatch.setattr(story_module, name, value)
    changes = {"checkpoint_interval": 10, "algo_kwargs.gamma": 0.95, "algo_kwargs.hidden_sizes": [8]}
    monkeypatch.setattr(story_module, "CHANGES", changes)
    assert main(["demo", "-o", str(tmp_path), "--seed", "2"]) == 0
    told = capsys.readouterr().out
    for part in ("1. A log", "2. What is in it?", "3. Learn", "4. Is it better", "5. And the truth?"):
        assert part in told
    page = tmp_path / "demo" / "demo.html"
    assert str(page) in told and str(tmp_path / "demo" / "iql-data-s2") in told
    text = page.read_text()
    assert "measured at the plant" in text and "What the log covers" in text and "<script" not in text


def test_what_is_told_of_judge_and_plant() -> None:
    policy = PolicyJudgement(
        "iql", 5.0, 4.0, 6.0, Interval(2.0, 1.0, 3.0), "better", "", (), {}, {}, Evidence(), 4.0
    )
    judgement = Judgement((policy,), BehaviourJudgement(3.0, 2.5, 3.5, 3.0, {}, ()), {}, {}, (), 1.0)
    truth = Truth({"Ada": 6.5, "Ben": -0.5}, 3.75, ((10, 1.5), (20, 3.75)))
    assert truth_rows(judgement, truth) == [
        ("Ada", "–", "6.50"),
        ("the policy (better)", "5 [4, 6]", "3.75"),
        ("the log, all operators", "3 [2.50, 3.50]", "3"),
        ("Ben", "–", "-0.5"),
    ]
    assert truth_sentence(judgement, truth) == (
        "The truth: 3.75, outside the judge's interval; 0.75 more than the log, "
        "2.75 less than the best operator, Ada."
    )
