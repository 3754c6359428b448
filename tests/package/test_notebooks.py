"""The tutorial notebooks run from top to bottom, with shorter budgets."""

import json
import re
import runpy
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "docs" / "notebooks").glob("*.ipynb"))


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    short, count = re.subn(r"^STEPS = \d[\d_]*", "STEPS = 60", code, flags=re.MULTILINE)
    assert count == 1, "a notebook states its budget once"
    short = re.sub(r"^SEEDS = \d+", "SEEDS = 2", short, flags=re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notebook.py").write_text(f"{short}\n\nreached_the_end = True\n")
    assert runpy.run_path(str(tmp_path / "notebook.py"))["reached_the_end"]


def test_notebooks_are_stored_without_outputs() -> None:
    assert len(NOTEBOOKS) == 2
    for path in NOTEBOOKS:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        assert not any(cell.get("outputs") for cell in cells), path.name
