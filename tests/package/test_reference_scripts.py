"""Every algorithm has a reference script in `examples/`, and it runs."""

from pathlib import Path

import pytest

from helpers import assert_example_runs
from rl_training.core.registry import builtin_algorithms


@pytest.mark.slow
@pytest.mark.parametrize("algo", builtin_algorithms())
def test_reference_script_runs(algo: str, tmp_path: Path) -> None:
    assert_example_runs(algo, tmp_path)
