from pathlib import Path

import pytest

from rl_training.core.errors import ConfigError
from support import assert_smoke, tiny_config


def test_tqc_trains_and_leaves_a_complete_run(tmp_path: Path) -> None:
    assert_smoke("tqc", tmp_path)


def test_dropping_every_quantile_fails_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        tiny_config("tqc", tmp_path, algo_kwargs={"top_quantiles_to_drop_per_net": 25})
    assert str(error.value) == (
        "algo_kwargs.top_quantiles_to_drop_per_net must be < num_quantiles (25), got 25"
    )
