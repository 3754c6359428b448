"""Names and units of a log's columns: in the run, its report, the exported policy, and back into files."""

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from helpers import BARE_STATE
from rl_training.algorithms import TD3BC
from rl_training.cli import main
from rl_training.core.errors import DataError
from rl_training.core.spaces import FeatureNames, Spaces
from rl_training.models import MLPTD3Model
from rl_training.policies.export.card import model_card
from rl_training.policies.export.trace import trace_policy
from rl_training.policies.files import load_policy, predict_file
from rl_training.policies.guard_fitting import GuardConfig, fit_guard
from rl_training.policies.opened import describe_policy
from rl_training.policies.policy import load_saved_policy

MAPPING = ["--obs", "T,level", "--action", "valve,heater", "--reward", "score", "--episode", "run"]
MAPPING += ["--unit", "T=°C", "--unit", "valve=%", "--action-low", "0", "--action-high", "100"]


def run(*arguments: Any) -> int:
    return main([str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a small plant log, in a folder of its own."""
    folder = tmp_path_factory.mktemp("names")
    rng = np.random.default_rng(0)
    lines = ["run;T;level;valve;heater;score"]
    for row in range(60):
        numbers = (50 + rng.normal(), 1 + rng.normal(), *rng.uniform(0, 100, 2), -rng.random())
        lines.append(f"R{row // 20};" + ";".join(f"{number:.3f}" for number in numbers))
    (folder / "log.csv").write_text("\n".join(lines) + "\n")
    small = ["--set", "algo_kwargs.hidden_sizes=[8]", "--steps", 3, "-o", folder / "runs", "--quiet"]
    assert run("train", "--algo", "bc", "--data", folder / "log.csv", *MAPPING, *small) == 0
    return folder


def run_dir(folder: Path) -> Path:
    return next((folder / "runs").iterdir())


def test_names_are_in_the_summary_the_report_and_the_policy(trained: Path) -> None:
    wanted = FeatureNames(("T", "level"), ("valve", "heater"), {"T": "°C", "valve": "%"})
    summary = json.loads((run_dir(trained) / "summary.json").read_text())
    assert FeatureNames.from_dict(summary["dataset"]["features"]) == wanted
    assert load_saved_policy(run_dir(trained)).features == wanted
    assert run("report", run_dir(trained), "--out", trained / "report.html") == 0
    page = (trained / "report.html").read_text()
    assert "T (°C), level" in page and "valve (%), heater" in page


@pytest.mark.parametrize("ending", ["onnx", "safetensors"])
def test_names_are_in_the_exported_file_and_its_card(trained: Path, ending: str) -> None:
    if ending == "onnx":
        pytest.importorskip("onnx")
    target = trained / f"policy.{ending}"
    assert run("export", "--checkpoint", run_dir(trained), "--out", target) == 0
    policy = load_policy(target)
    assert policy.features.listed("observation") == ["T (°C)", "level"]
    assert policy.metadata["features"]["actions"] == ["valve", "heater"]
    card = (trained / f"policy.{ending}.md").read_text()
    assert "| observation 0 | T (°C) |" in card and "| action 1 | heater | 0 to 100 |" in card


def test_predict_takes_columns_by_name_in_any_order(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [(1.25, 51.5), (0.5, 48.0), (2.0, 50.0)]
    text = "note;level;T\n" + "".join(f"x;{level};{temperature}\n" for level, temperature in rows)
    (trained / "today.csv").write_text(text.replace(".", ","))
    wanted = load_saved_policy(run_dir(trained)).predict(
        np.array([(temperature, level) for level, temperature in rows])
    )
    options = ["predict", "--checkpoint", run_dir(trained), "--obs-file", trained / "today.csv"]
    assert run(*options) == 0
    np.testing.assert_allclose(json.loads(capsys.readouterr().out), wanted, rtol=1e-6)
    assert run(*options, "--out", trained / "actions.csv") == 0
    assert (trained / "actions.csv").read_text().splitlines()[0] == "valve,heater"
    np.testing.assert_allclose(
        np.loadtxt(trained / "actions.csv", delimiter=",", skiprows=1), wanted, rtol=1e-6
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "T;lvl\n50;1\n",
            "today.csv: no column 'level' (which the policy observes) (did you mean 'lvl'?); it has T, lvl",
        ),
        ("T;level\n50;1\n;1\n", "today.csv: row 1 has no value in column 'T', which the policy observes"),
        ("T;level\n50;1\nhot;1\n", "today.csv: row 1 (line 3) has 'hot' in the number column 'T'"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(
    trained: Path, capsys: pytest.CaptureFixture[str], text: str, words: str
) -> None:
    (trained / "today.csv").write_text(text)
    assert run("predict", "--checkpoint", run_dir(trained), "--obs-file", trained / "today.csv") == 2
    assert words in capsys.readouterr().err


def test_empty_cells_hold_the_value_before_them(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (trained / "today.csv").write_text("T,level\n50,1\n,\n52,\n,3\n")
    wanted = load_saved_policy(run_dir(trained)).predict([[50, 1], [50, 1], [52, 1], [52, 3]])
    options = ["predict", "--checkpoint", run_dir(trained), "--obs-file", trained / "today.csv"]
    assert run(*options, "--missing-values", "hold") == 0
    np.testing.assert_allclose(json.loads(capsys.readouterr().out), wanted, rtol=1e-6)
    (trained / "today.csv").write_text("T,level\n,1\n50,1\n")  # nothing came before
    assert run(*options, "--missing-values", "hold") == 2
    assert "row 0 has no value in column 'T'" in capsys.readouterr().err


def test_bare_numbers_are_still_taken_by_place(
    trained: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["predict", "--checkpoint", run_dir(trained), "--obs-file"]
    (trained / "bare.csv").write_text("50,1\n51,2\n")
    assert run(*options, trained / "bare.csv") == 0
    wanted = json.loads(capsys.readouterr().out)
    assert np.shape(wanted) == (2, 2)
    np.save(trained / "bare.npy", [[50, 1], [51, 2]])
    assert run(*options, trained / "bare.npy") == 0
    assert json.loads(capsys.readouterr().out) == wanted
    for text in ("50,1\n51,2\n", "T,level\n50,1\n51,2\n", "[[50, 1], [51, 2]]"):
        monkeypatch.setattr("sys.stdin", io.StringIO(text))
        assert run(*options, "-") == 0
        assert json.loads(capsys.readouterr().out) == wanted


FOREIGN = "the policy observes T, level; none of them is among its columns x, y; rename these"


@pytest.mark.parametrize("out", [(), ("--out", "actions.csv")])
@pytest.mark.parametrize("kind", ["csv", "tsv", "parquet", "jsonl"])
def test_columns_that_are_all_called_otherwise_are_refused(
    trained: Path, capsys: pytest.CaptureFixture[str], kind: str, out: tuple[str, ...]
) -> None:
    """Which of them is T is anybody's guess: pressure and flow would do for temperature and level."""
    path = trained / f"other.{kind}"
    if kind == "parquet":
        pq.write_table(pa.table({"x": [50.0, 51.0], "y": [1.0, 2.0]}), path)
    else:
        texts = {"csv": "x,y\n50,1\n51,2\n", "tsv": "x\ty\n50\t1\n", "jsonl": '{"x": 50, "y": 1}\n'}
        path.write_text(texts[kind])
    target = [trained / name if name == "actions.csv" else name for name in out]
    (trained / "actions.csv").unlink(missing_ok=True)
    assert run("predict", "--checkpoint", run_dir(trained), "--obs-file", path, *target) == 2
    assert FOREIGN in capsys.readouterr().err
    assert not (trained / "actions.csv").exists()


def test_names_are_looked_at_without_the_reader_of_tables(
    trained: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> None:
        raise DataError("tables need pyarrow")

    monkeypatch.setattr("rl_training.data.tables.read.import_pyarrow", missing)
    (trained / "other.csv").write_text("level,T\n1,50\n")
    options = ("predict", "--checkpoint", run_dir(trained), "--obs-file", trained / "other.csv")
    for out in ((), ("--out", trained / "actions.csv")):
        assert run(*options, *out) == 2
        assert "must have the columns T, level, in this order" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", io.StringIO("level,T\n1,50\n"))
    assert run("predict", "--checkpoint", run_dir(trained), "--obs-file", "-") == 2
    assert "standard input must have the columns T, level" in capsys.readouterr().err


def test_empty_cells_are_flagged_by_a_guard(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In a table by name too; whoever asks for an error gets one."""
    policy = trained / "guarded.safetensors"
    hold = ("--guard", "run", "--guard-set", "fallback=hold")
    assert run("export", "--checkpoint", run_dir(trained), "--out", policy, *hold) == 0
    facts = load_policy(policy).guard_facts
    assert facts is not None
    log = np.genfromtxt(trained / "log.csv", delimiter=";", skip_header=1)
    whole = np.arange(60) % 20 != 19  # nothing follows the last row of an episode
    np.testing.assert_allclose(facts.fallback.action, log[whole, 3:5].mean(axis=0), rtol=1e-6)
    (trained / "today.csv").write_text("level;T\n;50\n1;50\n1;\n")
    capsys.readouterr()
    options = ["predict", "--checkpoint", policy, "--obs-file", trained / "today.csv"]
    assert run(*options) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["flagged"] == [True, False, True] and told["novelty"][::2] == [None, None]
    np.testing.assert_allclose(told["action"][0], facts.fallback.action, rtol=1e-6)
    assert told["action"][2] == told["action"][1]
    assert run(*options, "--missing-values", "error") == 2
    assert "row 0 has no value in column 'level'" in capsys.readouterr().err
    assert run(*options, "--missing-values", "hold") == 0
    assert json.loads(capsys.readouterr().out)["flagged"] == [True, False, False]


HOSTILE = (
    "=cmd|' /C calc'!A1",
    "<script>alert(1)</script>",
    "\x1b[31m[x](http://a)\x1b[0m`b`|c",
    "+1",
    "\t-2",
    "@SUM(A1)",
)
"""Names as a stranger's log may have them."""


def test_hostile_names_are_plain_text_in_the_card_and_no_formula_in_a_table(tmp_path: Path) -> None:
    spaces = Spaces(6, (-1.0,) * 6, (1.0,) * 6)
    names = FeatureNames(HOSTILE, HOSTILE, {"+1": "<b>\x1b]0;t\x07`"})
    assert names.listed("observation")[3] == "+1 (<b>\x1b]0;t\x07`)"
    weights = torch.Generator().manual_seed(0)
    learner = TD3BC(model=MLPTD3Model(6, 6, hidden_sizes=(4,), generator=weights))
    learner.policy.set_units(spaces)
    policy = learner.policy.snapshot()
    evil = "\x1b[2J<img src=x onerror=a()>|`"
    state = {
        **BARE_STATE,
        "algo_class": evil,
        "dataset": {"features": names.to_dict(), "source": evil, evil: evil},
        "versions": {evil: evil},
        "reference": {"minimum": 0.0, "maximum": 1.0, "source": evil},
        "results": {"judge_note": evil},
        "config": {**BARE_STATE["config"], "env_id": evil, "algo_kwargs": {"network": evil}},
    }
    policy.guard = fit_guard(torch.randn(50, 6), torch.randn(9, 6), GuardConfig(), spaces, evil, (0.0,) * 6)
    program = trace_policy(policy)
    card = model_card(describe_policy(state, policy, program, evil), "p.onnx", "onnx")
    assert "\x1b" not in card and "\x07" not in card and "2J" not in card
    text = card.split("## Load it in Python")[0]  # what follows is written by us, with a < in its code
    outside = re.sub(r"`[^`\n]*`", "", text.replace(r"\`", ""))
    assert not re.search(r"(?<!\\)[<\[](?=script|img|/|b>|x\])", outside)
    assert r"\<script\>alert(1)\</script\>" in text
    for line in text.splitlines():
        if line.startswith("| observation "):
            assert len(re.findall(r"(?<!\\)\|", line)) in (3, 4)  # no name makes a cell of its own
    policy.features, policy.guard = names, None
    np.save(tmp_path / "obs.npy", np.zeros((2, 6)))
    predict_file(policy, tmp_path / "obs.npy", tmp_path / "a.csv")
    with (tmp_path / "a.csv").open(newline="") as file:
        header, *rows = csv.reader(file)
    assert [name[:1] for name in header] == ["'", "<", "\x1b", "'", "'", "'"]
    assert [name.removeprefix("'") for name in header] == list(HOSTILE)
    np.testing.assert_allclose([float(cell) for cell in rows[0]], policy.predict(np.zeros(6)), rtol=1e-6)
    assert any(cell.startswith("-") for cell in rows[0])  # numbers stay numbers


def test_names_that_make_no_sense_are_left_out() -> None:
    assert not FeatureNames.from_dict("no mapping") and not FeatureNames.from_dict({"observations": 3})
    names = FeatureNames(("a",), (), {"a": "m"})
    assert names.name_of("observation", 0) == "a (m)" and names.name_of("observation", 1) == "observation 1"
    assert FeatureNames.from_dict(names.to_dict()) == names
