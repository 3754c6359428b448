from pathlib import Path

from support import assert_example_runs


def test_edac_reference_script_runs(tmp_path: Path) -> None:
    assert_example_runs("edac", tmp_path)
