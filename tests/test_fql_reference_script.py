from pathlib import Path

from support import assert_example_runs


def test_fql_reference_script_runs(tmp_path: Path) -> None:
    assert_example_runs("fql", tmp_path)
