from pathlib import Path

from support import assert_example_runs


def test_rebrac_reference_script_runs(tmp_path: Path) -> None:
    assert_example_runs("rebrac", tmp_path)
