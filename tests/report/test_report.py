"""Reports and comparisons on run directories with known numbers."""

import csv
import io
import json
import re
from datetime import date
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fake_runs import fake_run, fake_study
from rl_training.cli.studies import compare, report
from rl_training.core.errors import UserError
from rl_training.report.charts import tick_label, ticks
from rl_training.report.compare import compare_runs, facts, verdict
from rl_training.report.pages import write_report
from rl_training.report.study import arrange, find_runs, read_run, task_key


class Page(HTMLParser):
    """Tags, attributes and text of a page, as a browser would see them."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.classes: list[str] = []
        self.handlers: list[str] = []
        self.text = ""
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.handlers += [name for name, _ in attrs if name.startswith("on")]
        values = dict(attrs)
        self.classes += (values.get("class") or "").split()
        self.links += [value for name in ("href", "src") if (value := values.get(name))]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_runs_are_sorted_into_tasks_configurations_and_seeds(tmp_path: Path) -> None:
    fake_study(tmp_path)
    fake_run(tmp_path, "sac", 0, env_id="Hopper-v5")
    study = arrange(find_runs([tmp_path]))
    hopper, pendulum = study.tasks
    assert [hopper.label, pendulum.label] == ["Hopper-v5", "Pendulum-v1, random data"]
    assert [group.label for group in pendulum.groups] == [
        "TD3BC",  # from the best down
        "IQL (expectile=0.7)",
        "IQL (expectile=0.9)",
    ]
    assert [len(group.runs) for group in pendulum.groups] == [4, 4, 4]
    assert (hopper.step_label, pendulum.step_label) == ("environment steps", "gradient steps")


def test_last_and_best_are_kept_apart(tmp_path: Path) -> None:
    run = read_run(fake_run(tmp_path, returns=(-900.0, -100.0, -200.0)))
    assert (run.last("eval_return_mean"), run.best("eval_return_mean")) == (-200.0, (200, -100.0))


def test_unfinished_runs_and_repeated_seeds_do_not_count(tmp_path: Path) -> None:
    fake_run(tmp_path, seed=0)
    fake_run(tmp_path, seed=1)
    fake_run(tmp_path, seed=1, name="again")
    fake_run(tmp_path, seed=2, finished=False)
    interrupted = {"stop_reason": "signal 2", "metrics": {"signal": 2}}
    fake_run(tmp_path, seed=3, summary=interrupted)
    (group,) = arrange(find_runs([tmp_path])).tasks[0].groups
    assert [run.seed for run in group.runs] == [0, 1]
    assert [run.seed for run in group.unfinished] == [2, 3]
    assert len(group.repeated) == 1
    text = write_report([tmp_path], tmp_path / "report.md", format="md").read_text()
    assert "2 runs of 1 configuration on 1 task" in text
    assert "2 not finished or not evaluated, 1 that repeat a seed" in text


def test_a_run_killed_before_its_first_evaluation_is_read(tmp_path: Path) -> None:
    fake_run(tmp_path, seed=0)
    killed = fake_run(tmp_path, seed=1, finished=False)
    (killed / "metrics.jsonl").write_text('{"step": 10, "kind": "train", "time": 0, "loss": 1}\n{"step": 2')
    run = read_run(killed)
    assert (run.finished, run.last_step, run.series("eval_return_mean")) == (False, 10, [])
    assert "unfinished" in Page(write_report([tmp_path], tmp_path / "r.html")).text


def test_the_html_page_is_complete_and_self_contained(tmp_path: Path) -> None:
    fake_study(tmp_path / "runs")
    fake_run(
        tmp_path / "runs", "iql", 9, finished=False, settings={"dataset_kind": "random", "expectile": 0.7}
    )
    page = Page(write_report([tmp_path / "runs"], tmp_path / "report.html"))
    for heading in (
        *("Last evaluation", "Best evaluation", "Probability of improvement", "Performance profiles"),
        *("Learning curves", "Hyper-parameter differences", "Throughput", "Datasets", "Runs"),
    ):
        assert heading in page.text, heading
    assert "n = 4" in page.text
    assert not {"script", "img", "link", "iframe", "object", "base"} & set(page.tags)
    assert page.classes.count("line") >= 3 * 2 * 2  # three curves and three profiles, for two widths
    assert page.classes.count("band") == 3 * 2 * 2
    outside = [link for link in page.links if not link.startswith("#")]
    assert "runs/iql-0.7-s0/" in outside
    for link in outside:
        assert (tmp_path / link).is_dir(), link


def test_numbers_of_the_report_are_those_of_the_runs(tmp_path: Path) -> None:
    for seed, last in enumerate((-100.0, -200.0, -300.0, -400.0)):
        fake_run(tmp_path, seed=seed, returns=(-50.0, last))
    path = write_report([tmp_path], tmp_path / "report.csv", format="csv")
    rows = list(csv.DictReader(io.StringIO(path.read_text())))
    values = {(row["evaluation"], row["statistic"]): float(row["value"]) for row in rows}
    assert values[("last", "mean")] == -250.0
    assert values[("last", "IQM")] == -250.0
    assert values[("best", "mean")] == -50.0
    assert {row["runs"] for row in rows} == {"4"}
    (mean,) = [row for row in rows if (row["evaluation"], row["statistic"]) == ("last", "mean")]
    assert -400.0 <= float(mean["low"]) < -250.0 < float(mean["high"]) <= -100.0


def test_the_same_runs_give_the_same_report(tmp_path: Path) -> None:
    fake_study(tmp_path / "runs")
    day = date(2026, 3, 12)
    texts = [
        write_report([tmp_path / "runs"], tmp_path / name, written=day).read_text()
        for name in ("a.html", "b.html")
    ]
    assert texts[0] == texts[1]
    assert "Report of 2026-03-12." in texts[0]


def verdict_of(folder: Path) -> str:
    (sentence,) = verdict(arrange(find_runs([folder])))
    return sentence


def test_the_verdict_names_the_winner_and_how_sure_that_is(tmp_path: Path) -> None:
    offline = {"settings": {"dataset_kind": "random"}}
    side(tmp_path, "good", [-110.0, -100.0, -120.0, -105.0, -115.0], algo="iql", **offline)
    side(tmp_path, "poor", [-210.0, -200.0, -220.0, -205.0, -215.0], algo="cql", **offline)
    side(tmp_path, "worse", [-410.0, -400.0, -420.0, -405.0, -415.0], algo="bc", **offline)
    assert re.fullmatch(
        r"Pendulum-v1, random data: IQL wins: last return -110 \[-1\d\d.*, -10\d.*\], "
        r"ahead of CQL by 100 \[\d.*, 1.*\] and of 1 other \(95 % confidence, 5 and 5 runs\)\. "
        r"IQL is above the logged data's mean of -1,200\.",
        verdict_of(tmp_path),
    )
    text = write_report([tmp_path], tmp_path / "report.html").read_text()
    assert text.index("IQL wins") < text.index("<nav>")
    assert text.count('<path class="level"') == 2 + 1  # the data's return, for two widths and in the legend


def test_the_verdict_does_not_decide_by_chance(tmp_path: Path) -> None:
    side(tmp_path / "a", "first", [-100.0, -300.0, -200.0])
    assert verdict_of(tmp_path / "a").startswith("Pendulum-v1: SAC ends at a last return of -200 [")
    side(tmp_path / "a", "second", [-150.0, -250.0, -220.0], algo="tqc")
    assert "no winner shown. SAC has the highest last return, -200" in verdict_of(tmp_path / "a")
    # far ahead of one rival is not enough: the other, of wide spread, may be as good
    side(tmp_path / "a", "third", [-900.0, -901.0, -902.0], algo="redq")
    assert "over TQC may be chance" in verdict_of(tmp_path / "a")
    side(tmp_path / "b", "one", [-100.0])
    side(tmp_path / "b", "other", [-900.0], algo="tqc")
    assert "no verdict. SAC has the highest last return, -100, but a single run" in verdict_of(tmp_path / "b")
    fake_run(tmp_path / "c", finished=False)
    assert "nothing to judge" in verdict_of(tmp_path / "c")


def test_a_run_that_nobody_evaluated_has_no_empty_curve(tmp_path: Path) -> None:
    fake_run(tmp_path / "runs", "iql", returns=())
    assert "trained, but not evaluated. rl-training judge estimates" in verdict_of(tmp_path / "runs")
    text = write_report([tmp_path / "runs"], tmp_path / "report.html").read_text()
    assert "Learning curve" not in text and "<h3>Result</h3>" in text


def test_a_policy_below_its_data_is_called_so(tmp_path: Path) -> None:
    side(tmp_path, "runs", [-1300.0, -1301.0, -1302.0], algo="iql", settings={"dataset_kind": "random"})
    assert "below the logged data's mean of -1,200: nothing gained" in verdict_of(tmp_path)


def test_the_data_is_drawn_on_the_scale_of_the_metric(tmp_path: Path) -> None:
    known = {"return_mean": -50.0, "reference": {"minimum": -100.0, "maximum": 100.0, "source": "toy"}}
    run = read_run(fake_run(tmp_path, "iql", summary={"dataset": known}, score=True))
    assert run.data_return("eval_return_mean") == -50.0
    assert run.data_return("eval_normalized_score") == 25.0
    assert run.data_return("eval_length_mean") is None


def test_versions_and_days_of_the_runs_are_told(tmp_path: Path) -> None:
    for seed, (torch, day) in enumerate((("2.12.0", "2026-03-10"), ("2.13.0", "2026-03-12"))):
        timing = {"seconds": 1.0, "finished": f"{day}T10:00:00+00:00"}
        fake_run(tmp_path, seed=seed, summary={"versions": {"torch": torch}, "timing": timing})
    _, origin = facts(arrange(find_runs([tmp_path])), date(2026, 3, 14))
    assert origin == ("Trained 2026-03-10 to 2026-03-12 with torch 2.12.0 or 2.13.0. Report of 2026-03-14.")


def test_best_evaluations_are_shown_only_where_they_are_not_the_last(tmp_path: Path) -> None:
    for seed in range(2):
        fake_run(tmp_path, seed=seed, returns=(-900.0, -200.0 - seed))
    assert "best" not in write_report([tmp_path], tmp_path / "r.md", format="md").read_text().lower()
    fake_run(tmp_path, "tqc", returns=(-100.0, -300.0))
    text = write_report([tmp_path], tmp_path / "r.md", format="md").read_text()
    best = text.partition("Best evaluation")[2].partition("###")[0]
    assert "| TQC |" in best and "SAC" not in best
    assert "as last" in text and "-100 at 100" in text


def test_no_heading_is_said_twice(tmp_path: Path) -> None:
    fake_study(tmp_path)
    text = write_report([tmp_path], tmp_path / "report.html").read_text()
    headings = re.findall(r"<(?:h2|h3|figcaption)>([^<]*)<", text)
    assert len(headings) == len(set(headings)) > 5


def test_the_page_of_one_run_shows_its_curve_losses_and_settings(tmp_path: Path) -> None:
    settings = {"dataset_kind": "random", "expectile": 0.7, "dataset_path": None}
    metrics = {"global_step": 300, "signal": None, "eval_episodes": 5, "eval_return_std": 12.0}
    run_dir = fake_run(tmp_path, "iql", settings=settings, summary={"metrics": metrics})
    with (run_dir / "metrics.jsonl").open("a") as file:
        for step in (100, 200, 300):
            file.write(
                json.dumps({"step": step, "kind": "train", "target_q_mean": 1.0, "critic_loss": 1 / step})
                + "\n"
            )
    path = write_report([tmp_path], tmp_path / "report.html")
    page = Page(path)
    assert "IQL ends at a last return of -200 (1 run)" in page.text
    for text in ("Learning curve", "critic loss", "Settings", "expectile0.7", "-200 over 5 episodes"):
        assert text in page.text, text
    assert "IQM" not in page.text and "Performance profiles" not in page.text and "None" not in page.text
    assert page.text.index("critic loss") < page.text.index("target q mean")  # losses first
    assert page.classes.count("level") == 3


EXPLANATION = {
    "actions": ["valve"],
    "ranges": [100.0],
    "importance": [{"column": "level", "shares": [0.25]}],
    "rules": [
        {"bounds": [{"column": "level", "above": True, "value": 1.4}], "share": 0.5, "differences": [12.0]}
    ],
    "responses": [
        {
            **{"column": "level", "action": "valve", "places": [0.0, 2.0], "mean": [1.0, 2.0]},
            **{"low": [0.5, 1.0], "high": [2.0, 3.0], "density": [0.1, 1.0]},
        }
    ],
    "proposed": [{"name": "valve", "logged": [1, 2], "policy": [3, 4], "low": [], "high": []}],
    "what_if": [],
}


def judged_run(folder: Path, explanation: object) -> Path:
    run = fake_run(folder, "td3_bc", len(list(folder.glob("*"))))
    told = {"policies": [{"evidence": {"explanation": explanation}}]}
    (run / "judgement.json").write_text(json.dumps(told))
    return run


def test_reports_say_what_the_first_policy_does(tmp_path: Path) -> None:
    run = judged_run(tmp_path / "one", EXPLANATION)
    text = write_report([run], tmp_path / "one.md", format="md").read_text()
    assert "What does td3" in text and "| level above 1.40 | 50 % | valve +12 |" in text
    judged_run(tmp_path / "several", EXPLANATION)
    for algo in ("td3_bc", "iql"):
        fake_run(tmp_path / "several", algo, 1, returns=[-400.0 if algo == "iql" else -100.0] * 3)
    page = Page(write_report([tmp_path / "several"], tmp_path / "all.html"))
    assert "level above 1.40" in page.text and "valve against level" in page.text
    for part, wrong, said in (
        ("ranges", [1.0, 2.0], "lists of different lengths"),
        ("rules", [{"bounds": [], "share": "half", "differences": [1.0]}], "rules must be a list of values"),
        ("what_if", [{"name": "r", "logged": [], "policy": []}], "a course without steps"),
    ):
        run = judged_run(tmp_path / part, {**EXPLANATION, part: wrong})
        with pytest.raises(UserError, match=rf"judgement.json is not the judgement of a run: .*{said}"):
            write_report([run], tmp_path / "one.html")
    (run / "judgement.json").write_text("half a judg")
    with pytest.raises(UserError, match=r"judgement.json is not the judgement of a run: Expecting value"):
        write_report([run], tmp_path / "one.html")
    (run / "judgement.json").unlink()
    (run / "judgement.json").mkdir()
    with pytest.raises(UserError, match=r"judgement.json is not .*: Is a directory; delete it to do without"):
        write_report([run], tmp_path / "one.html")


def test_text_from_run_files_is_escaped_everywhere(tmp_path: Path) -> None:
    shown = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'|`[x](javascript:alert(3))"
    attack = f"\x1b[31m{shown}\x1b]8;;http://a\x07\x1b[0m\x9b2J\x08\u202e"
    fake_run(
        tmp_path / "runs",
        "=cmd()",
        name="a<b>\"'&run",
        env_id=attack,
        settings={"dataset_kind": attack, attack: attack},
        summary={"stop_reason": attack, "dataset": {"source": attack}},
    )
    fake_run(
        tmp_path / "runs", "=cmd()", seed=1, name="other", env_id=attack, settings={"dataset_kind": attack}
    )
    fake_run(tmp_path / "runs", seed="<b>", name="javascript:alert(4)", env_id="x")  # type: ignore[arg-type]
    page = Page(write_report([tmp_path / "runs"], tmp_path / "report.html"))
    assert not {"script", "img", "b"} & set(page.tags)
    assert not page.handlers
    assert not any(link.startswith("javascript") for link in page.links)
    assert shown in page.text
    markdown = write_report([tmp_path / "runs"], tmp_path / "report.md", format="md").read_text()
    assert not re.search(r"(?<!\\)<", markdown)
    assert not re.search(r"(?<!\\)\]\(javascript", markdown)
    for text in (page.text, (tmp_path / "report.html").read_text(), markdown):
        assert not re.search("[\x1b\x9b\x08\u202e]|2J", text)  # nor does a terminal obey it
    table = write_report([tmp_path / "runs"], tmp_path / "report.csv", format="csv").read_text()
    assert not re.search(r"(^|,)=", table, re.MULTILINE)


def test_normalised_scores_are_also_aggregated_over_tasks(tmp_path: Path) -> None:
    for env_id, level in (("Hopper-v5", 100.0), ("Ant-v5", 300.0)):
        for seed in range(3):
            fake_run(tmp_path, seed=seed, env_id=env_id, returns=(0.0, level + seed), score=True)
    text = write_report([tmp_path], tmp_path / "report.md", format="md").read_text()
    assert "judged by normalised score" in text
    rows = text.partition("Last evaluation, all tasks")[2].splitlines()
    (row,) = [line for line in rows[:12] if line.startswith("| SAC")]
    assert row.split("|")[2:4] == [" 6 ", " 20.10 \\[20, 20.20\\] "]


def test_a_study_of_unfinished_runs_alone_still_gives_a_report(tmp_path: Path) -> None:
    for env_id in ("Hopper-v5", "Ant-v5"):
        fake_run(tmp_path, env_id=env_id, finished=False, score=True)
    page = Page(write_report([tmp_path], tmp_path / "report.html"))
    assert "0 runs of 2 configurations" in page.text
    assert page.classes.count("thin") == 2 * 2  # what has been measured so far, for two widths


def test_a_run_of_another_format_version_is_refused(tmp_path: Path) -> None:
    path = fake_run(tmp_path, summary={"format_version": 7})
    with pytest.raises(UserError, match=r"format version 7, this release reads version 1: ") as problem:
        write_report([tmp_path], tmp_path / "report.html")
    assert str(path) in str(problem.value) and "\n" not in str(problem.value)
    assert not (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("config.yaml", "algo: [", "is not valid YAML"),
        ("config.yaml", "just text", "must be a mapping"),
        ("summary.json", "{", "is not valid JSON"),
        ("summary.json", "[]", "it must be a mapping, got"),
    ],
)
def test_damaged_files_are_named_in_one_line(tmp_path: Path, file: str, content: str, message: str) -> None:
    (fake_run(tmp_path) / file).write_text(content)
    with pytest.raises(UserError, match=message) as problem:
        find_runs([tmp_path])
    assert file in str(problem.value) and "\n" not in str(problem.value)


def test_paths_without_runs_and_unknown_metrics_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no run in it"):
        find_runs([tmp_path])
    with pytest.raises(UserError, match="does not exist"):
        find_runs([tmp_path / "nowhere-*"])
    fake_run(tmp_path)
    with pytest.raises(
        UserError, match="'speed' is in no evaluation of these 1 runs; they have: eval_return_mean"
    ):
        arrange(find_runs([tmp_path]), "speed")
    with pytest.raises(UserError, match="must name a file"):
        write_report([tmp_path], tmp_path)


def side(folder: Path, name: str, lasts: list[float], **options: object) -> Path:
    for seed, last in enumerate(lasts):
        fake_run(folder / name, seed=seed, returns=(-900.0, last), **options)  # type: ignore[arg-type]
    return folder / name


def test_compare_says_which_side_is_better_and_how_sure_that_is(tmp_path: Path) -> None:
    good = side(tmp_path, "good", [-110.0, -100.0, -120.0, -105.0, -115.0])
    poor = side(tmp_path, "poor", [-210.0, -200.0, -220.0, -205.0, -215.0], algo="tqc")
    result = compare_runs(find_runs([good]), find_runs([poor]))
    assert result.last_difference.value == pytest.approx(100.0)
    assert (result.improvement.value, result.runs, result.labels) == (1.0, (5, 5), ("SAC", "TQC"))
    assert re.fullmatch(
        r"A is better: difference in last return \(A - B\) 100 \[\d+\.?\d*, 1\d\d\.?\d*\] "
        r"\(95 % interval, 5 and 5 runs\)\.",
        result.verdict,
    )
    assert compare_runs(find_runs([poor]), find_runs([good])).verdict.startswith("B is better")


def test_compare_does_not_decide_without_evidence(tmp_path: Path) -> None:
    first = side(tmp_path, "first", [-100.0, -300.0, -200.0])
    second = side(tmp_path, "second", [-150.0, -250.0, -220.0], algo="tqc")
    single = side(tmp_path, "single", [-900.0], algo="redq")
    assert compare_runs(find_runs([first]), find_runs([second])).verdict.startswith("No difference shown")
    verdict = compare_runs(find_runs([first]), find_runs([single])).verdict
    assert verdict.startswith("No verdict: a single run has no interval") and "3 and 1 runs" in verdict


def test_runs_that_cannot_be_compared_are_refused_in_one_line(tmp_path: Path) -> None:
    pendulum = find_runs([side(tmp_path, "pendulum", [-1.0, -2.0])])
    hopper = find_runs([side(tmp_path, "hopper", [1.0, 2.0], env_id="Hopper-v5")])
    with pytest.raises(UserError, match="cannot be compared: A has Pendulum-v1, B has Hopper-v5"):
        compare_runs(pendulum, hopper)
    scored = find_runs([side(tmp_path, "scored", [-1.0, -2.0], score=True)])
    with pytest.raises(UserError, match="B has no finished run with the metric 'eval_normalized_score'"):
        compare_runs(scored, pendulum, metric="eval_normalized_score")
    mixed = find_runs([fake_study(tmp_path / "study")])
    with pytest.raises(UserError, match="A must hold one configuration, got 3"):
        compare_runs(mixed, pendulum)
    both = [*pendulum, *hopper]
    with pytest.raises(UserError, match="no common scale"):
        compare_runs(both, both)


def test_compare_allows_different_data_for_one_environment(tmp_path: Path) -> None:
    online = side(tmp_path, "online", [-1.0, -2.0])
    offline = side(tmp_path, "offline", [-3.0, -4.0], algo="cql", settings={"dataset_kind": "random"})
    assert compare_runs(find_runs([online]), find_runs([offline])).last_difference.value == 2.0


def test_the_commands_write_and_print(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_study(tmp_path)
    monkeypatch.chdir(tmp_path)
    report(["iql-*", "td3_bc-*"], out=Path("out/study.md"))
    assert Path("out/study.md").read_text().startswith("# Training report\n")
    report(["."], title="A study")
    assert "<title>A study</title>" in Path("report.html").read_text()
    compare("td3_bc-*", "iql-0.9-*")
    printed = capsys.readouterr().out
    assert printed.startswith("out/study.md\nreport.html\n")
    assert "A is better" in printed and "P(A above B)" in printed


def test_ticks_are_round_and_labels_short() -> None:
    assert ticks(0.0, 10_000.0, 5) == [0.0, 2000.0, 4000.0, 6000.0, 8000.0, 10_000.0]
    assert ticks(-1190.0, -160.0, 5) == [-1000.0, -800.0, -600.0, -400.0, -200.0]
    assert [tick_label(value) for value in (0.25, -500, 2000, 20_000, 1.5e6)] == [
        "0.25",
        "-500",
        "2,000",
        "20k",
        "1.5M",
    ]


def test_numbers_no_chart_can_show_do_not_break_the_report(tmp_path: Path) -> None:
    run_dir = fake_run(tmp_path)
    rows = [
        {"step": 100, "kind": "eval", "eval_return_mean": value} for value in (10**400, "high", None, True)
    ]
    rows.append({"step": 200, "kind": "eval", "eval_return_mean": -5.0})
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert read_run(run_dir).series("eval_return_mean") == [(200, -5.0)]
    assert "<svg" in write_report([tmp_path], tmp_path / "report.html").read_text()


def test_data_settings_that_are_empty_tell_no_tasks_apart(tmp_path: Path) -> None:
    """An earlier release left out what is 0; the runs are repetitions all the same."""
    known = {"dataset_kind": "random"}
    runs = [
        read_run(fake_run(tmp_path, "iql", seed=0, settings=known)),
        read_run(fake_run(tmp_path, "iql", seed=1, settings={**known, "dataset_noise": 0.0})),
    ]
    assert task_key(runs[0]) == task_key(runs[1])


def test_the_more_rivals_the_further_ahead_a_winner_must_be(tmp_path: Path) -> None:
    """Ahead by 2.4, 95 % interval from 0.2; at the 97.5 % that two rivals ask for, from -0.2."""
    base = [0.0, 1.0, 2.0, 3.0, 4.0]
    side(tmp_path, "first", [value + 2.4 for value in base])
    side(tmp_path, "second", base, algo="tqc")
    assert "SAC wins" in verdict_of(tmp_path)
    side(tmp_path, "third", base, algo="redq")
    assert "no winner shown. SAC has the highest" in verdict_of(tmp_path)
