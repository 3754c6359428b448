"""Estimated values beside measured ones: never mixed up, ties told as ties."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml

from fake_runs import fake_run
from rl_training.cli import main
from rl_training.core.errors import UserError
from rl_training.experiment.logging import METRICS_FILE
from rl_training.experiment.plots import plot_learning_curve
from rl_training.experiment.seed_scores import sister_scores
from rl_training.judging.judgement import Interval
from rl_training.judging.selection import choice, within_noise
from rl_training.policies.model_card import own_score, scores_text
from rl_training.policies.scores import SeedEstimate
from rl_training.report.compare import compare_runs
from rl_training.report.report import write_report
from rl_training.report.run_reader import find_runs
from rl_training.report.study import arrange
from rl_training.report.summary import facts, verdict


def judged_run(folder: Path, algo: str, seed: int, value: float, noise: float = 1.0, **changes: Any) -> Path:
    """A run without an environment that judged itself."""
    metrics = {
        "global_step": 300,
        "signal": None,
        "eval_return_mean": None,
        "judge_value": value,
        "judge_low": value - noise,
        "judge_high": value + noise,
        "judge_score": value - noise,
        "judge_behaviour": 5.0,
        "judge_episodes": 30,
        "judge_verdict": "better",
        "judge_note": "Better than the logged behaviour. Estimated from 30 episodes, not measured.",
        **changes,
    }
    settings = {"dataset_kind": "csv", "dataset_path": "log.csv", "judge_gamma": changes.get("gamma", 0.99)}
    run = fake_run(folder, algo, seed, [0.0, 0.0, 0.0], name=f"{algo}-data-s{seed}", settings=settings)
    config = yaml.safe_load((run / "config.yaml").read_text())
    (run / "config.yaml").write_text(yaml.safe_dump({**config, "env_id": None}))
    rows = [{"step": 300, "kind": "train", "critic_loss": 0.5}, {"step": 300, "kind": "eval", **metrics}]
    (run / METRICS_FILE).write_text("".join(json.dumps(row) + "\n" for row in rows))
    told = {"stop_reason": "finished", "seed": seed, "metrics": metrics, "timing": {"seconds": 10.0}}
    (run / "summary.json").write_text(json.dumps(told))
    return run


def test_a_tie_is_a_difference_within_both_intervals() -> None:
    # half widths 3 and 4: their noise together is 5
    leader = Interval(10.0, 7.0, 13.0)
    assert within_noise(leader, Interval(5.0, 1.0, 9.0))
    assert not within_noise(leader, Interval(4.9, 0.9, 8.9))
    assert within_noise(leader, Interval(-100.0))  # without bounds nothing is known
    # The highest cautious end leads, not the highest value.
    candidates = {"bold": Interval(12.0, 2.0, 22.0), "sure": leader, "far": Interval(0.0, -1.0, 1.0)}
    assert choice(candidates) == ("sure", ("bold",))


def test_a_report_tells_estimated_from_measured(tmp_path: Path) -> None:
    fake_run(tmp_path, "sac", 0, (-900.0, -200.0))
    judged_run(tmp_path, "iql", 0, 9.0)
    judged_run(tmp_path, "td3_bc", 0, 8.0)
    study = arrange(find_runs([tmp_path]))
    metrics = {task.label: (task.metric, task.estimated) for task in study.tasks}
    assert metrics == {
        "Pendulum-v1": ("eval_return_mean", False),
        "no environment, log.csv": ("judge_value", True),
    }
    told = " ".join(verdict(study))
    assert "estimated, not measured. IQL has the highest estimated value, 9 [8, 10]; a tie with TD3BC" in told
    assert "Against the logged behaviour: 1 better." in told
    assert (
        "2 runs by a value ◇ estimated from logged episodes, never tried out" in facts(study, date.today())[0]
    )
    page = write_report([tmp_path], tmp_path / "report.html").read_text()
    assert page.count('class="diamond') >= 4 and 'class="dot' in page and "Judged by the log" in page
    assert "9 ◇ estimated" in page and "-200 ◇ estimated" not in page
    text = write_report([tmp_path], tmp_path / "report.md", format="md").read_text()
    assert "logged behaviour" in text and "◇ estimated" in text


def test_a_report_on_one_judged_run_and_its_learning_curve(tmp_path: Path) -> None:
    run = judged_run(tmp_path, "iql", 0, 9.0)
    page = write_report([run], tmp_path / "report.html").read_text()
    assert "estimated value" in page and 'class="bar' in page and "not measured" in page
    assert plot_learning_curve(run).stat().st_size > 5000


def test_clear_winners_refused_runs_and_other_discounts(tmp_path: Path) -> None:
    judged_run(tmp_path, "iql", 0, 90.0)
    judged_run(tmp_path, "bc", 0, 8.0)
    judged_run(tmp_path, "cql", 0, 500.0, judge_verdict="refused", judge_score=None)
    (told,) = verdict(arrange(find_runs([tmp_path])))
    assert "IQL has the highest estimated value, 90 [89, 91], ahead of the others" in told
    judged_run(tmp_path, "awac", 0, 1.0, gamma=0.9)
    with pytest.raises(UserError, match="different judge_gamma"):
        arrange(find_runs([tmp_path]))


def test_compare_says_estimated_and_tie(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in (0, 1):
        judged_run(tmp_path / "a", "iql", seed, 9.0 + seed, noise=3.0)
        judged_run(tmp_path / "b", "bc", seed, 8.0 + seed, noise=3.0)
        judged_run(tmp_path / "c", "cql", seed, 50.0 + seed, noise=3.0)
        fake_run(tmp_path / "d", "sac", seed)
    a, b, c, d = (find_runs([tmp_path / name]) for name in "abcd")
    assert compare_runs(a, b).verdict.startswith("A tie: estimated values differ by 1")
    assert compare_runs(a, c).verdict.startswith("B is better by estimate")
    with pytest.raises(UserError, match="only estimated"):
        compare_runs(a, d)
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    assert "estimated value" in capsys.readouterr().out


def test_the_model_card_claims_no_episodes(tmp_path: Path) -> None:
    runs = [judged_run(tmp_path, "iql", seed, 9.0 + seed) for seed in (0, 1)]
    scores = json.loads((runs[0] / "summary.json").read_text())["metrics"]
    metadata = {"scores": scores, "training": {"seed": 0}, "env_id": None, "reference_returns": None}
    assert "**Estimated, not measured**: value 9, 90 % interval [8, 10], beside 5" in own_score(metadata)
    found = [each for each in sister_scores(runs[0]) if isinstance(each, SeedEstimate)]
    assert [each.value for each in found] == [9.0, 10.0]
    table = scores_text(metadata, [], found)
    assert "| 1 | 10 | [9, 11] | better |" in table and "episode(s)" not in table
    assert own_score({**metadata, "scores": {"judge_note": "not judged: too short"}}).endswith("too short.")
