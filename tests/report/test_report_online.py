"""Reports and comparisons of runs that go online: phases, drop, regret, episodes collected while learning."""

import re
from pathlib import Path
from typing import Any

import pytest

from fake_runs import fake_run
from rl_training.cli.studies import compare
from rl_training.report.compare import compare_runs
from rl_training.report.pages import write_report
from rl_training.report.study import SCORE, find_runs, read_run
from rl_training.report.tables import online_values

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
