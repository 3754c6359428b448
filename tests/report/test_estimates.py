"""What was estimated, and what going online did, in reports and comparisons."""

from __future__ import annotations

import json
import re
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml

from fake_runs import fake_run
from rl_training.cli import main
from rl_training.cli.studies import compare
from rl_training.core.errors import UserError
from rl_training.judging.candidates import Candidate, candidate_of, clearly_above, ranking, ties
from rl_training.judging.verdict import Interval
from rl_training.policies.export.card import SeedEstimate, own_score, scores_text
from rl_training.report.compare import compare_runs, facts, verdict
from rl_training.report.pages import write_report
from rl_training.report.study import SCORE, arrange, find_runs, read_run
from rl_training.report.tables import online_values
from rl_training.runs.directory import sister_scores
from rl_training.runs.plots import plot_learning_curve
from rl_training.runs.tracking import METRICS_FILE


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
    def candidate(value: float, low: float | None = None, high: float | None = None) -> Candidate:
        return Candidate(Interval(value, low, high), value, ("better",))

    leader = candidate(10.0, 7.0, 13.0)
    assert not clearly_above(leader, candidate(5.0, 1.0, 9.0))
    assert clearly_above(leader, candidate(4.9, 0.9, 8.9))
    assert not clearly_above(leader, candidate(-100.0))  # without bounds nothing is known


def test_candidates_have_the_order_of_a_judgement() -> None:
    """By the score, which is neither the value nor its lower end; a refusal alone moves nobody."""
    candidates = {
        "sure": Candidate(Interval(9.0, 8.5, 9.5), 7.0, ("better", "better")),
        "bold": Candidate(Interval(12.0, 2.0, 22.0), 8.0, ("better", "indistinguishable")),
        "first": Candidate(Interval(10.0, 7.0, 13.0), 9.0, ("better", "better")),
        "wild": Candidate(Interval(11.0, 8.0, 14.0), 8.5, ("better", "refused")),
        "far": Candidate(Interval(0.0, -1.0, 1.0), 0.0, ("worse", "worse")),
    }
    assert ranking(candidates) == ["first", "wild", "bold", "sure", "far"]
    assert ties(candidates) == ("bold", "sure")


def test_a_configuration_is_the_mean_of_its_runs_with_the_noise_of_judge_and_seeds() -> None:
    def metrics(value: float, **changes: object) -> dict[str, object]:
        bounds = {"judge_low": value - 3, "judge_high": value + 3, "judge_score": value - 1}
        return {"judge_value": value, **bounds, "judge_verdict": "better", **changes}

    found = candidate_of([metrics(9.0), metrics(11.0)])
    # spread of 9 and 11: t(0.95, 1) = 6.3138 times a standard error of 1; the judge's own noise is 3
    assert found is not None and (found.value.value, found.score, found.told) == (10.0, 9.0, "2 better")
    assert found.value.high == pytest.approx(10 + (3**2 + 6.3138**2) ** 0.5, abs=1e-3)
    alone = candidate_of([metrics(9.0)])
    assert alone is not None and alone.value == Interval(9.0, 6.0, 12.0)
    # half widths 3 and 7: their mean is the judge's own noise
    unequal = candidate_of([metrics(9.0), metrics(11.0, judge_low=4.0, judge_high=18.0)])
    assert unequal is not None
    assert unequal.value.high == pytest.approx(10 + (5**2 + 6.3138**2) ** 0.5, abs=1e-3)
    refused = candidate_of([metrics(9.0), metrics(11.0, judge_score=None, judge_verdict="refused")])
    assert refused is not None and refused.refused and refused.told == "1 better, 1 refused"
    assert candidate_of([]) is None and candidate_of([metrics(9.0), {"judge_value": None}]) is None


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
    assert (
        "estimated, not measured. IQL comes first with a score of 8, value 9 [8, 10]; a tie with TD3BC"
        in told
    )
    assert "Against the logged behaviour: better." in told
    assert (
        "2 runs by a value ◇ estimated from logged episodes, never tried out" in facts(study, date.today())[0]
    )
    page = write_report([tmp_path], tmp_path / "report.html").read_text()
    assert page.count('class="diamond') >= 4 and 'class="dot' in page and "Judged by the log" in page
    assert "9 ◇ estimated, better" in page and "-200 ◇ estimated" not in page
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
    assert "IQL comes first with a score of 89, value 90 [89, 91], ahead of the others" in told
    assert told.endswith("Refused by the judge: CQL (1 of 1 run).")
    judged_run(tmp_path, "awac", 0, 1.0, gamma=0.9)
    with pytest.raises(UserError, match="different judge_gamma"):
        arrange(find_runs([tmp_path]))


def test_the_winner_is_first_by_the_score_and_refusals_are_told(tmp_path: Path) -> None:
    """Neither the highest value nor the highest lower end, and the refused one is last in every table."""
    judged_run(tmp_path, "td3_bc", 0, 12.0, noise=10.0, judge_score=8.0)
    judged_run(tmp_path, "iql", 0, 10.0, noise=3.0, judge_score=9.0)
    judged_run(tmp_path, "bc", 0, 9.0, noise=0.5, judge_score=7.0)
    judged_run(tmp_path, "cql", 0, 500.0, judge_score=2.0, judge_verdict="refused")
    judged_run(tmp_path, "cql", 1, 500.0, judge_score=3.0)
    study = arrange(find_runs([tmp_path]))
    assert [group.label for group in study.tasks[0].groups] == ["IQL", "TD3BC", "BC", "CQL"]
    (told,) = verdict(study)
    assert "IQL comes first with a score of 9, value 10 [7, 13]; a tie with TD3BC, BC" in told
    assert told.endswith("Refused by the judge: CQL (1 of 2 runs).")
    text = write_report([tmp_path], tmp_path / "report.md", format="md").read_text()
    rows = [line for line in text.splitlines() if line.startswith(("| IQL | 1", "| CQL | 2"))]
    assert rows == [
        "| IQL | 1 | better | 9 | 10 \\[7, 13\\] |",
        "| CQL | 2 | 1 better, 1 refused | 2.50 | 500 \\[499, 501\\] |",
    ]
    table = write_report([tmp_path], tmp_path / "report.csv", format="csv").read_text()
    assert (
        '"no environment, log.csv",CQL,judge_value,last,2,mean,500.0,499.0,501.0,"1 better, 1 refused"'
        in table
    )
    assert '"no environment, log.csv",IQL,judge_score,last,1,mean,9.0,,,better' in table


def test_nothing_is_recommended_where_all_were_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for algo in ("iql", "bc"):
        judged_run(tmp_path / algo, algo, 0, 9.0, judge_verdict="refused", judge_score=None)
    (told,) = verdict(arrange(find_runs([tmp_path])))
    assert "no estimate can be relied on: the judge refused BC (1 of 1 run), IQL (1 of 1 run)." in told
    assert main(["compare", str(tmp_path / "iql"), str(tmp_path / "bc")]) == 0
    printed = capsys.readouterr().out
    assert "No verdict: the judge refused A (1 of 1 run), B (1 of 1 run)" in printed
    assert printed.count(" refused ") >= 3  # the table and the sentence


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


# ---- reports and comparisons of runs that go online: phases, drop, regret, episodes collected while learning


CURVE = (-900.0, -300.0, -400.0, -250.0, -200.0)
"""Two evaluations offline, three online, 100 steps apart."""


def phased(folder: Path, seed: int = 0, curve: tuple[float, ...] = CURVE, **more: Any) -> Path:
    settings = {"dataset_kind": "random", "warmup_steps_online": 50}
    return fake_run(folder, "iql", seed, curve, settings=settings, online_from=200, **more)


def test_the_numbers_of_a_run_are_those_of_its_online_phase(tmp_path: Path) -> None:
    run = read_run(phased(tmp_path, score=True))
    returns = {"before": -300.0, "lowest": -400.0, "drop": 100.0, "last": -200.0}
    found = online_values(run, "eval_return_mean")
    assert found == pytest.approx(
        {**returns, "mean": -850 / 3, "while learning": -880 / 3, "regret": 1 + 85 / 300}
    )
    scores = online_values(run, SCORE)
    assert [scores[name] for name in returns] == [-30.0, -40.0, 10.0, -20.0]
    assert "while learning" not in scores  # nobody said which returns are score 0 and 100
    assert online_values(read_run(fake_run(tmp_path, "iql", 3)), SCORE) == {}


def test_a_report_marks_the_phases_and_tells_what_going_online_did(tmp_path: Path) -> None:
    phased(tmp_path / "runs", 0)
    page = write_report([tmp_path / "runs"], tmp_path / "one.html").read_text()
    assert [page.count(f">{name} →</text>") for name in ("warm-up", "online")] == [2, 2]
    assert page.count('class="mark"') == 4  # both sizes of the drawing
    assert "gradient steps, then environment steps" in page
    for title, value in (("return before going online", "-300"), ("drop", "100")):
        assert re.search(rf"{title}</td><td[^>]*>{value}<", page)
    phased(tmp_path / "runs", 1, (-800.0, -320.0, -320.0, -300.0, -180.0))
    text = write_report([tmp_path / "runs"], tmp_path / "two.md", format="md").read_text()
    row = next(line for line in text.split("Going online, return")[1].splitlines() if "IQL" in line)
    means = [float(cell.split()[0]) for cell in row.strip("| ").split(" | ")[2:]]
    assert means == pytest.approx([-310.0, -360.0, 50.0, -190.0, -275.0, -285.0])


def test_a_report_of_plain_runs_says_nothing_of_phases(tmp_path: Path) -> None:
    for seed in (0, 1):
        fake_run(tmp_path / "runs", "iql", seed, settings={"dataset_kind": "random"})
    page = write_report([tmp_path / "runs"], tmp_path / "plain.html").read_text()
    assert "Going online" not in page and 'class="mark"' not in page and ">gradient steps<" in page


def test_two_sides_are_compared_by_their_online_phases(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in (0, 1):
        phased(tmp_path / "a", seed)
        phased(tmp_path / "b", seed, (-900.0, -280.0, -290.0, -200.0, -150.0))
    sides = [find_runs([tmp_path / name]) for name in ("a", "b")]
    online = compare_runs(sides[0], sides[1]).online
    assert {name: found[2].value for name, found in online.items()} == pytest.approx(
        {
            "before": -20.0,
            "lowest": -110.0,
            "drop": 90.0,
            "last": -50.0,
            "mean": -70.0,
            "while learning": -70.0,
        }
    )
    compare(str(tmp_path / "a"), str(tmp_path / "b"))
    assert "going online" in capsys.readouterr().out
    plain = find_runs([fake_run(tmp_path / "c", "sac", seed) for seed in (0, 1)])
    assert compare_runs(sides[0], plain).online == {}
