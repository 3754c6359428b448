from pathlib import Path

from support import assert_example_runs


def test_cal_ql_reference_script_runs(tmp_path: Path) -> None:
    assert_example_runs("cal_ql", tmp_path)
