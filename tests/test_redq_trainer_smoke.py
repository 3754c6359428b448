from pathlib import Path

import pytest

from rl_training.core.checkpoints import load_checkpoint
from rl_training.core.errors import ConfigError
from support import assert_smoke, tiny_config, train


def test_redq_trains_and_leaves_a_complete_run(tmp_path: Path) -> None:
    assert_smoke("redq", tmp_path)


@pytest.mark.parametrize("num_envs", [1, 2])
def test_updates_are_g_per_stored_transition_and_policy_updates_one(tmp_path: Path, num_envs: int) -> None:
    kwargs = {"gradient_updates_per_step": 4, "policy_delay": 4, "num_critics": 3}
    result = train(tiny_config("redq", tmp_path, num_envs=num_envs, algo_kwargs=kwargs))
    assert result.metrics["gradient_steps"] == 4 * 20  # 40 transitions, the first 20 at random
    steps = load_checkpoint(result.checkpoint_path)["learner"]["optimizer_steps"]
    assert steps["critic"].item() == 80
    assert steps["actor"].item() == steps["alpha"].item() == 20


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"subset_size": 11}, "algo_kwargs.subset_size must be <= num_critics (10), got 11"),
        ({"subset_size": 0}, "algo_kwargs.subset_size must be >= 1, got 0"),
        ({"gradient_updates_per_step": 0}, "algo_kwargs.gradient_updates_per_step must be >= 1, got 0"),
    ],
)
def test_bad_settings_fail_before_the_run(tmp_path: Path, kwargs: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        tiny_config("redq", tmp_path, algo_kwargs=kwargs)
    assert str(error.value) == message
