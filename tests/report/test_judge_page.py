"""The command and the page: what they show, and that text from elsewhere stays text."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from judging_problems import Proportional, lqr_log
from rl_training.cli import main
from rl_training.cli.judge import print_result
from rl_training.core.errors import UserError
from rl_training.judging import Interval, Judgement, judge, judge_policies
from rl_training.judging.verdict import CostJudgement, LoggedCost
from rl_training.report.charts import Bar, Cloud, Intervals, Scatter
from rl_training.report.judge_page import costs_sections, differences_chart, judge_page, write_judge_page

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
ATTACK = "\x1b[31m<script>document.title='attacked'</script>"


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
    assert "&lt;script&gt;" in page and ATTACK not in page and "\x1b" not in page and "[31m" not in page


def test_it_says_how_well_the_judges_model_knows_the_plant(judged: Judgement, tmp_path: Path) -> None:
    level, reward = judged.model
    assert (level.column, reward.column, level.steps) == ("observation 0", "reward", (1, 10))
    log = lqr_log(30, 10)
    moved = (log.next_obs - log.obs).square().mean().sqrt().item()
    assert level.unchanged[0] == pytest.approx(moved, rel=0.3), "in the units of the log"
    assert reward.unchanged[0] == pytest.approx(log.rewards.std().item(), rel=0.3)
    page = write_judge_page(judged, tmp_path / "judge.html").read_text()
    assert "How well does the judge" in page and f"{100 * level.left:.0f} %" in page
    without = replace(judged, model=())
    assert "How well does the judge" not in write_judge_page(without, tmp_path / "j.html").read_text()
    told = judged.to_dict()["model"]
    assert told[0]["column"] == "observation 0" and json.dumps(told)


def test_every_policy_has_its_figures(judged: Judgement, tmp_path: Path) -> None:
    page = write_judge_page(judged, tmp_path / "judge.html").read_text()
    own = ("The value by different methods", "Value along the logged episodes", "What the log covers")
    explained = ("action 0 in one logged episode", "What if? reward under the policy")
    for title in (
        *own,
        *explained,
        "What if? observation 0 under the policy",
        "action 0 against observation 0",
    ):
        assert page.count(f"<figcaption>{title}</figcaption>") == 2
    assert page.count("<figcaption>Calibration</figcaption>") == 1
    assert page.index("What does steady do?") < page.index(">Checks<")
    assert page.count('<svg class="wide"') == page.count('<svg class="narrow"') == 16


def costly(judged: Judgement) -> Judgement:
    """With a cost whose limit the first policy keeps and the second breaks."""
    kept = CostJudgement("heat", "step", 0.004, 0.001, 0.008, 0.01, "keeps")
    broken = replace(kept, value=0.02, low=0.015, high=0.03, outcome="breaks")
    steady, other = judged.policies
    return replace(
        judged,
        policies=(replace(steady, costs=(kept,)), replace(other, costs=(broken,))),
        behaviour=replace(judged.behaviour, costs=(replace(kept, outcome="cannot tell", high=0.02),)),
        logged_costs=(LoggedCost("heat", 0.005, 0.05, 12, "0.01 per step", 0.75),),
    )


def test_limits_stand_with_the_verdicts_and_have_a_section(judged: Judgement, tmp_path: Path) -> None:
    found = costly(judged)
    page = write_judge_page(found, tmp_path / "judge.html").read_text()
    assert page.index("keeps its limits") < page.rindex("What does it cost?") < page.rindex(">Checks<")
    for text in (
        "0.004 [0.001, 0.008]",
        "keeps it",
        "breaks it",
        "cannot tell",
        "0.005 per step, 0.05 per episode",
        "75% of episodes kept it",
        "<figcaption>heat per step</figcaption>",
        "within the limit",
    ):
        assert text in page, text
    endless = replace(found.policies[0].costs[0], high=math.inf, outcome="cannot tell")
    never = replace(found, policies=(replace(found.policies[0], costs=(endless,)), found.policies[1]))
    page = write_judge_page(never, tmp_path / "judge.html").read_text()
    assert "[0.001, inf]" in page and "nan" not in page
    plain = write_judge_page(judged, tmp_path / "plain.html").read_text()
    assert "What does it cost?" not in plain


def test_candidates_and_the_second_look_have_sections_of_their_own(judged: Judgement) -> None:
    (plain,), (named,) = costs_sections(costly(judged)), costs_sections(costly(judged), "What do they cost?")
    assert (plain.title, named.title) == ("What does it cost?", "What do they cost?")
    assert [block.title for block in named.blocks] == ["heat, limit 0.01 per step", "heat per step"]
    assert costs_sections(judged) == []


def test_limits_stand_in_the_terminal(judged: Judgement, capsys: pytest.CaptureFixture[str]) -> None:
    print_result(costly(judged))
    out = " ".join(capsys.readouterr().out.split())
    assert "heat steady 0.01 per step 0.004 [0.001, 0.008] keeps it" in out
    assert "heat as logged 0.01 per step 0.005 per step, 0.05 per episode 75% of episodes kept it" in out


def test_the_chart_beside_the_verdicts_shows_what_they_rest_on(judged: Judgement) -> None:
    """Intervals of values overlap where differences, taken network by network, do not."""
    ranked = judged.ranking()
    chart = differences_chart(ranked)
    shown = {bar.label: (bar.value, bar.low, bar.high) for bar in chart.bars}
    assert shown == {
        each.name: (each.difference.value, each.difference.low, each.difference.high) for each in ranked
    }
    assert chart.band == (0.0, 0.0)
    _, figure = judge_page(judged, "x").sections[0].blocks
    assert figure == chart


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


FIXTURES = Path(__file__).parents[1] / "fixtures" / "format_1"


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


def test_limits_are_given_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = [f"--set={name}={json.dumps(value)}" for name, value in QUICK.items()]
    policy, numbers = FIXTURES / "sac_policy.safetensors", tmp_path / "judge.json"
    data = ["--data", str(write_log(tmp_path / "log.npz", 3)), "--gamma", "0.9", "--json", str(numbers)]
    costs = ["--cost", "far: obs_0 > 1", "--cost", "work: abs(action_0)"]
    limits = ["--limit", "far: 0.9", "--limit", "work: 3 per episode"]
    assert main(["judge", str(policy), *data, *settings, *costs, *limits]) == 0
    told = json.loads(numbers.read_text())
    (judged,) = told["policies"]
    assert [(each["name"], each["per"], each["limit"]) for each in judged["costs"]] == [
        ("far", "step", 0.9),
        ("work", "episode", 3.0),
    ]
    assert judged["verdict"] == "refused" and judged["limits"] == "cannot tell"
    assert "the policy failed a check" in judged["sentence"]
    assert "work as logged 3 per episode" in " ".join(capsys.readouterr().out.split())
    assert main(["judge", str(policy), *data, *settings, "--limit", "far: 0.9"]) == 2
    assert "limits names 'far', which is no cost" in capsys.readouterr().err


def test_a_policy_for_something_else_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy, data = FIXTURES / "sac_policy.safetensors", write_log(tmp_path / "log.npz", 4)
    assert main(["judge", str(policy), "--data", str(data)]) == 2
    assert "has 3 observations and 1 actions" in capsys.readouterr().err


def test_every_setting_that_is_given_is_used(tmp_path: Path) -> None:
    settings = [f"--set={name}={json.dumps(value)}" for name, value in QUICK.items()]
    policy, data = FIXTURES / "sac_policy.safetensors", write_log(tmp_path / "log.npz", 3)
    command = ["judge", str(policy), "--data", str(data), "--json", str(tmp_path / "judge.json")]
    assert main([*command, *settings, "--set", "gamma=0.95", "--set", "seed=3"]) == 0
    told = json.loads((tmp_path / "judge.json").read_text())["settings"]
    assert (told["gamma"], told["seed"], told["hidden_sizes"]) == (0.95, 3, [16, 16])
    assert main([*command, *settings, "--gamma", "0.9", "--set", "gamma=0.9"]) == 0  # no contradiction
    assert json.loads((tmp_path / "judge.json").read_text())["settings"]["gamma"] == 0.9


@pytest.fixture
def nothing_is_fitted(monkeypatch: pytest.MonkeyPatch) -> None:
    def fit(*_: object, **__: object) -> None:
        raise AssertionError("the refusal came too late")

    for name in ("fit_values", "fit_dynamics", "prepare_importance_sampling"):
        monkeypatch.setattr(judge_policies, name, fit)


@pytest.mark.usefixtures("nothing_is_fitted")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--gamma", "0.9", "--set", "gamma=0.95"], "gamma is given twice, as 0.95 and as 0.9"),
        (["--seed", "1", "--set", "seed=2"], "seed is given twice, as 2 and as 1"),
        (["--set", "members=4", "--set", "members=5"], "members is given twice, as 4 and as 5"),
        (["--set", "members"], "--set needs key=value"),
        (["--set", "critics=1"], "critics is not a known key"),
        (["--set", "checkpoints=here"], "checkpoints is not a known key"),
        (["--out", "both", "--json", "both"], "--out and --json must name two files"),
        (["--out", "."], "--out must name a file, got the directory ."),
        (["--out", "/proc/nowhere/judge.html"], "--out /proc/nowhere/judge.html cannot be written"),
        (["--json", "log.npz/judge.json"], "--json log.npz/judge.json cannot be written: Not a directory"),
    ],
)
def test_a_command_that_cannot_end_well_is_refused_before_anything_is_fitted(
    options: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    write_log(tmp_path / "log.npz", 3)
    assert main(["judge", str(FIXTURES / "sac_policy.safetensors"), "--data", "log.npz", *options]) == 2
    assert f"error: {message}" in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["log.npz"]


@pytest.mark.parametrize("data", [[], ["--data", "log.npz"]])
def test_a_run_that_does_not_exist_is_named(
    data: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["judge", "nosuch", *data]) == 2
    assert capsys.readouterr().err.startswith("error: no such run: nosuch; give a run directory")


def test_the_box_of_a_verdict_has_its_colour(judged: Judgement, tmp_path: Path) -> None:
    words = ("better", "worse")
    told = replace(
        judged,
        policies=tuple(
            replace(each, verdict=word) for each, word in zip(judged.policies, words, strict=True)
        ),
    )
    page = write_judge_page(told, tmp_path / "judge.html").read_text()
    boxes = dict(re.findall(r'<p class="(better|worse)">(\S+):', page))
    assert boxes == {each.verdict: each.name for each in told.policies if each.name == "steady"} | {
        each.verdict: "&lt;script&gt;document.title=&#x27;attacked&#x27;&lt;/script&gt;"
        for each in told.policies
        if each.name == ATTACK
    }
    colours = {word: re.search(rf"\.verdict \.{word} {{ border-color: var\((.+?)\)", page) for word in words}
    assert len({found[1] for found in colours.values() if found}) == 2
