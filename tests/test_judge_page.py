"""The command and the page: what they show, and that text from elsewhere stays text."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from judging_problems import Proportional, lqr_log
from rl_training.cli import main
from rl_training.cli.judge import data_of_runs, read_data, trained_by_time, unique_names
from rl_training.cli.overrides import parsed_settings
from rl_training.core.checkpoints import save_checkpoint
from rl_training.core.errors import ConfigError, UserError
from rl_training.judging import Interval, Judgement, judge
from rl_training.report.judge_page import write_judge_page
from rl_training.report.marks import Bar, Cloud, Intervals, Scatter

QUICK = {
    "hidden_sizes": (16, 16),
    "members": 2,
    "updates": 60,
    "batch_size": 32,
    "model_updates": 30,
    "model_hidden_sizes": (16, 16),
    "model_members": 2,
    "density_updates": 30,
    "rollout_starts": 10,
}
ATTACK = "<script>document.title='attacked'</script>"


@pytest.fixture(scope="module")
def judged() -> Judgement:
    return judge(
        {"steady": Proportional(0.7), ATTACK: Proportional(0.0)}, lqr_log(30, 10), gamma=0.9, **QUICK
    )


def test_the_page_says_the_verdict_first_and_needs_nothing_else(judged: Judgement, tmp_path: Path) -> None:
    page = write_judge_page(judged, tmp_path / "judge.html").read_text()
    body = page[page.index("<body>") :]
    assert body.index('class="verdict"') < body.index("<table") < body.index("<svg")
    for text in ("Cannot be judged with this data", "the logged behaviour", "per step", "action 0", "Checks"):
        assert text in page
    assert "draws per state" not in page
    assert not re.search(r"<script|src=|href=\"http|@import|url\(", page)
    assert "&lt;script&gt;" in page and ATTACK not in page


def test_every_policy_has_its_figures(judged: Judgement, tmp_path: Path) -> None:
    page = write_judge_page(judged, tmp_path / "judge.html").read_text()
    for title in ("The value by different methods", "Value along the logged episodes", "What the log covers"):
        assert page.count(f"<figcaption>{title}</figcaption>") == 2
    assert page.count("<figcaption>Calibration</figcaption>") == 1
    assert page.count('<svg class="wide"') == page.count('<svg class="narrow"') == 10


def test_a_directory_is_no_page(judged: Judgement, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"out must name a file, got the directory"):
        write_judge_page(judged, tmp_path)


def test_a_judgement_without_second_methods_still_makes_a_page(judged: Judgement, tmp_path: Path) -> None:
    policies = tuple(replace(each, estimates={"fqe": each.estimates["fqe"]}) for each in judged.policies)
    page = write_judge_page(replace(judged, policies=policies), tmp_path / "judge.html").read_text()
    assert "weighted doubly robust" not in page


def test_weights_that_run_away_do_not_fill_the_page(judged: Judgement, tmp_path: Path) -> None:
    runaway = Interval(-9.7e45, -2.9e46, -2.8e42, "weighed")
    estimates = {"fqe": judged.policies[0].estimates["fqe"], "is": runaway}
    policies = (replace(judged.policies[0], estimates=estimates),)
    page = write_judge_page(replace(judged, policies=policies), tmp_path / "judge.html").read_text()
    assert "-9.7e+45 [-2.9e+46, -2.8e+42]" in page and page.count("weighed") == 1


def test_values_off_the_axis_are_pointed_to() -> None:
    bars = (
        Bar("headline", 1.0, 0.0, 2.0, 1),
        Bar("wild", 1e9, None, None, 2),
        Bar("low", -1e9, None, None, 3),
    )
    drawn = Intervals("Values", "value", bars, (0.5, 1.5), "log").figure()
    assert "1G ▶" in drawn and "◀ -1G" in drawn
    assert drawn.count("<circle") == 2  # the headline at both sizes
    assert drawn.count('class="band') == 2 + 1  # likewise the band, and its key


def test_marks_lie_inside_the_drawing() -> None:
    drawn = Scatter("Map", "x", "y", (Cloud("all", 0, [(0.0, 0.0), (5.0, -3.0)]),), diagonal=True).figure()
    for width, inside in re.findall(r'viewBox="0 0 (\d+) \d+"(.*?)</svg>', drawn.replace("\n", "")):
        assert all(0 <= float(x) <= float(width) for x in re.findall(r'cx="([\d.-]+)"', inside))


FIXTURES = Path(__file__).parent / "fixtures" / "format_1"


def write_log(path: Path, obs_dim: int) -> Path:
    """Rows of a log that the stored policies fit, if it has their number of observations."""
    draws = np.random.default_rng(0)
    ends = np.arange(250) % 10 == 9
    obs = draws.normal(size=(25, 11, obs_dim))
    arrays = {
        "observations": obs[:, :-1].reshape(250, obs_dim),
        "next_observations": obs[:, 1:].reshape(250, obs_dim),
        "actions": draws.uniform(-2, 2, (250, 1)),
        "rewards": draws.normal(size=250),
        "terminals": np.zeros(250),
        "timeouts": ends,
    }
    np.savez(path, **{name: values.astype(np.float32) for name, values in arrays.items()})
    return path


def test_the_command_judges_files_of_every_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = [f"--set={name}={json.dumps(value)}" for name, value in QUICK.items()]
    files = [
        str(FIXTURES / name) for name in ("sac_policy.safetensors", "iql_policy.onnx", "td3_bc.safetensors")
    ]
    page, numbers = tmp_path / "judge.html", tmp_path / "judge.json"
    data = ["--data", str(write_log(tmp_path / "log.npz", 3)), "--gamma", "0.9"]
    settings.append("--set=action_draws=2")
    assert main(["judge", *files, *data, "--out", str(page), "--json", str(numbers), *settings]) == 0
    printed = capsys.readouterr().out
    for name in ("sac_policy.safetensors", "iql_policy.onnx", "td3_bc.safetensors", "logged behaviour"):
        assert name in printed
    told = json.loads(numbers.read_text())
    assert [policy["verdict"] for policy in told["policies"]] == ["refused"] * 3
    assert told["settings"]["members"] == told["settings"]["action_draws"] == 2
    outcomes = [policy["checks"]["draws"]["outcome"] for policy in told["policies"]]
    assert outcomes == ["passed", "passed", "warned"]
    assert "Policies are judged as they draw their actions, 2 draws per state." in page.read_text()
    # A policy file with a distribution is weighed by its own density, the others by a kernel.
    notes = [policy["estimates"]["wis"]["note"] for policy in told["policies"]]
    assert ["kernel" in note for note in notes] == [False, False, True]
    assert "Cannot be judged" in page.read_text()


def test_the_critic_of_a_checkpoint_is_shown(tmp_path: Path) -> None:
    """At the discount that it was trained with; exported policies have none."""
    settings = [f"--set={name}={json.dumps(value)}" for name, value in QUICK.items()]
    files = [str(FIXTURES / name) for name in ("td3_bc.safetensors", "td3_bc_policy.safetensors")]
    page, numbers = tmp_path / "judge.html", tmp_path / "judge.json"
    data = ["--data", str(write_log(tmp_path / "log.npz", 3)), "--gamma", "0.99"]
    assert main(["judge", *files, *data, "--out", str(page), "--json", str(numbers), *settings]) == 0
    checks = [set(policy["checks"]) for policy in json.loads(numbers.read_text())["policies"]]
    assert ["critic" in each for each in checks] == [True, False]
    assert page.read_text().count("<figcaption>The critic it was trained with</figcaption>") == 1


def test_a_policy_for_something_else_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy, data = FIXTURES / "sac_policy.safetensors", write_log(tmp_path / "log.npz", 4)
    assert main(["judge", str(policy), "--data", str(data)]) == 2
    assert "has 3 observations and 1 actions" in capsys.readouterr().err


def test_runs_are_judged_by_their_own_log_unless_another_is_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run_on(name: str, log: str) -> Path:
        run = tmp_path / name
        config = {"algo_kwargs": {"dataset_path": log}}
        (run / "checkpoints").mkdir(parents=True)
        save_checkpoint(run / "checkpoints" / "step_1.safetensors", {"algo": "td3_bc", "config": config})
        return run

    first, second, other = run_on("a", "log.csv"), run_on("b", "log.csv"), run_on("c", "week.csv")
    assert data_of_runs([first, second]) == "log.csv"
    with pytest.raises(UserError, match=r"trained on different logs \(\S+/a log.csv, \S+/c week.csv\)"):
        data_of_runs([first, other])
    # A path that a file of unknown origin names is not followed.
    assert main(["judge", str(FIXTURES / "td3_bc.safetensors")]) == 2
    assert "--data is needed" in capsys.readouterr().err


def test_names_are_as_short_as_they_can_be() -> None:
    assert list(unique_names([Path("runs/a"), Path("runs/b")])) == ["a", "b"]
    assert list(unique_names([Path("x/best.onnx"), Path("y/best.onnx")])) == ["x/best.onnx", "y/best.onnx"]


def test_settings_are_yaml() -> None:
    assert parsed_settings("--set", ["members=4", "hidden_sizes=[16, 16]"]) == {
        "members": 4,
        "hidden_sizes": [16, 16],
    }
    with pytest.raises(ConfigError, match="--set must be NAME=VALUE"):
        parsed_settings("--set", ["members"])


def test_a_table_is_read_as_the_run_read_it(tmp_path: Path) -> None:
    rows = ["t,level,valve,score,run", *(f"{i},{i % 5},{i % 3},{-i},{i // 10}" for i in range(30))]
    (tmp_path / "log.csv").write_text("\n".join(rows))
    columns = {"observations": ["level"], "actions": ["valve"], "reward": "score", "episode": "run"}
    config = {"algo_kwargs": {"columns": columns, "missing_values": "hold", "gamma": 0.9}}
    save_checkpoint(tmp_path / "step_1.safetensors", {"algo": "td3_bc", "config": config})
    found = read_data(str(tmp_path / "log.csv"), {}, [tmp_path / "step_1.safetensors"])
    assert found.info.name_of("action", 0) == "valve"
    assert found.obs.shape[1] == found.actions.shape[1] == 1


def test_a_run_that_was_trained_by_time_is_judged_by_time(tmp_path: Path) -> None:
    files = {True: tmp_path / "step_1.safetensors", False: tmp_path / "step_2.safetensors"}
    for by_time, file in files.items():
        config = {"algo_kwargs": {"gamma": 0.9, "discount_by_time": by_time}}
        save_checkpoint(file, {"algo": "td3_bc", "config": config})
    exported = FIXTURES / "sac_policy.safetensors"
    assert trained_by_time([exported, files[True]])
    assert not trained_by_time([exported, files[False]])
