"""The learned model of the dynamics: what a policy earns in it, and where it ends."""

import numpy as np
import pytest

from judging_problems import (
    Proportional,
    corridor_log,
    corridor_values,
    lqr_log,
    lqr_value,
    small,
    tripping_log,
)
from rl_training.judging.log import JudgedLog
from rl_training.judging.model import EndLimits, fit_dynamics, roll_out, rollout_steps
from rl_training.judging.policies import JudgedPolicy


class Right:
    def predict(self, obs: np.ndarray) -> np.ndarray:
        return np.ones((len(obs), 1), np.float32)


def silent(name: str, done: int, updates: int) -> None:
    pass


SETTINGS = {
    "model_hidden_sizes": (64, 64),
    "model_members": 2,
    "learning_rate": 3e-3,
    "rollout_starts": 200,
    "seed": 1,
}


@pytest.mark.slow
def test_a_linear_policy_earns_its_known_value() -> None:
    config = small(**SETTINGS, model_updates=1500)
    log = JudgedLog.from_dataset(lqr_log(episodes=200), config.gamma)
    rolled = roll_out(fit_dynamics(log, config, silent), log, JudgedPolicy("p", Proportional(0.3), 1), config)
    expected = -lqr_value(0.3) * float((log.obs[log.starts] ** 2).mean())
    assert rolled.values.mean() == pytest.approx(expected, abs=0.1)
    assert rolled.obs.shape == rolled.actions.shape
    np.testing.assert_allclose(rolled.actions, -0.3 * rolled.obs, rtol=1e-5)


@pytest.mark.slow
def test_rollouts_end_where_episodes_do() -> None:
    """Going right leaves the corridor after three steps at most; a model without ends would earn on."""
    config = small(**SETTINGS, model_updates=1000, gamma=0.9)
    log = JudgedLog.from_dataset(corridor_log(), config.gamma)
    rolled = roll_out(fit_dynamics(log, config, silent), log, JudgedPolicy("p", Right(), 1), config)
    expected = corridor_values(1.0, config.gamma)[log.obs[log.starts, 0].astype(int)].mean()
    assert rolled.values.mean() == pytest.approx(expected, abs=0.15)


def test_rollouts_last_as_long_as_the_discount() -> None:
    assert rollout_steps(JudgedLog.from_dataset(lqr_log(episodes=3), 0.99)) == 528
    assert rollout_steps(JudgedLog.from_dataset(lqr_log(episodes=3), 0.9)) == 51
    ended = corridor_log()
    whole = JudgedLog.from_dataset(ended, 0.9999)
    assert rollout_steps(whole) == 2000


def bounds_of(log: JudgedLog) -> tuple[np.ndarray, np.ndarray, bool]:
    """In the log's units."""
    found = EndLimits.of(log)
    center, spread = log.obs_scale.center, log.obs_scale.spread
    return found.low.numpy() * spread + center, found.high.numpy() * spread + center, found.are_all


def test_a_bound_that_only_ends_lie_beyond_is_found() -> None:
    low, high, are_all = bounds_of(JudgedLog.from_dataset(tripping_log(), 0.9))
    assert (low == -np.inf).all() and high[1] == np.inf  # noise bounds nothing
    assert high[0] == pytest.approx(2.0, abs=1e-5)
    assert are_all


def test_ends_that_no_bound_explains_are_left_to_the_network() -> None:
    low, high, are_all = bounds_of(JudgedLog.from_dataset(tripping_log(chance_ends=10), 0.9))
    assert high[0] == pytest.approx(2.0, abs=1e-5) and (low == -np.inf).all() and not are_all
    for data in (tripping_log(episodes=40, chance_ends=36), corridor_log(), lqr_log(episodes=3)):
        low, high, are_all = bounds_of(JudgedLog.from_dataset(data, 0.9))
        assert np.isinf(low).all() and np.isinf(high).all() and not are_all
