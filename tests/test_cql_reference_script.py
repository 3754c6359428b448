from pathlib import Path

from support import assert_example_runs


def test_cql_reference_script_runs(tmp_path: Path) -> None:
    assert_example_runs("cql", tmp_path)
