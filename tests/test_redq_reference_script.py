from pathlib import Path

from support import assert_example_runs


def test_redq_reference_script_runs(tmp_path: Path) -> None:
    assert_example_runs("redq", tmp_path)
