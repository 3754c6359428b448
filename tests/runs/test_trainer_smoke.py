"""Every algorithm trains from its packaged config and leaves a complete run."""

from pathlib import Path

import pytest

from helpers import assert_smoke, slow_but_two
from rl_training.core.registry import builtin_algorithms


@pytest.mark.pictures
@pytest.mark.parametrize("algo", slow_but_two(builtin_algorithms()))
def test_trains_and_leaves_a_complete_run(algo: str, tmp_path: Path) -> None:
    assert_smoke(algo, tmp_path)
