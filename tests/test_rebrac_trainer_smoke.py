from pathlib import Path

from support import assert_smoke


def test_rebrac_trains_and_leaves_a_complete_run(tmp_path: Path) -> None:
    assert_smoke("rebrac", tmp_path)
