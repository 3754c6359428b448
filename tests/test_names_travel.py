"""Names and units of a log's columns: in the run, its report, the exported policy, and back into files."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_training.cli import main
from rl_training.core.feature_names import FeatureNames
from rl_training.policies.loading import load_policy
from rl_training.policies.saved import load_saved_policy

pytest.importorskip("pyarrow")

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


def test_bare_numbers_are_still_taken_by_place(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (trained / "bare.csv").write_text("50,1\n51,2\n")
    (trained / "other.csv").write_text("x,y\n50,1\n51,2\n")
    found = []
    for name in ("bare.csv", "other.csv"):
        assert run("predict", "--checkpoint", run_dir(trained), "--obs-file", trained / name) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0] == found[1] and np.shape(found[0]) == (2, 2)


def test_names_that_make_no_sense_are_left_out() -> None:
    assert not FeatureNames.from_dict("no mapping") and not FeatureNames.from_dict({"observations": 3})
    names = FeatureNames(("a",), (), {"a": "m"})
    assert names.name_of("observation", 0) == "a (m)" and names.name_of("observation", 1) == "observation 1"
    assert FeatureNames.from_dict(names.to_dict()) == names
