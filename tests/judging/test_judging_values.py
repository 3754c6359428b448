"""Fitted Q evaluation against answers known beforehand, and what must not change it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from judging_problems import (
    LQR_GAMMA,
    Proportional,
    actions_of,
    corridor_log,
    corridor_values,
    lqr_log,
    lqr_value,
    small,
    uniform_lqr_log,
)
from rl_training.algorithms.dynamics import resample_weights
from rl_training.core.errors import DataError
from rl_training.judging import judge
from rl_training.judging.checks import held_out_returns
from rl_training.judging.fqe import FittedValues, fit_values, updates_needed
from rl_training.judging.log import JudgedLog
from rl_training.judging.policies import PolicyActions

GAINS = (0.0, 0.3, 0.706659)
KNOWN = (1.290323, 1.134027, 1.070666)


def silent(name: str, done: int, updates: int) -> None:
    pass


def fitted(data, policies, **changes) -> tuple[JudgedLog, FittedValues]:
    config = small(**changes)
    log = JudgedLog.from_dataset(data, config.gamma)
    return log, fit_values(log, [actions_of(each, data) for each in policies], config, silent)


@pytest.mark.slow
def test_values_of_linear_policies_are_the_known_quadratics() -> None:
    assert [lqr_value(k) for k in GAINS] == pytest.approx(KNOWN, rel=1e-5)
    data = uniform_lqr_log()
    policies = [Proportional(k) for k in GAINS]
    _, found = fitted(data, policies, updates=2500, learning_rate=3e-3, batch_size=256)
    squares = data.obs.numpy()[:, 0] ** 2
    for values, p in zip(found.own, KNOWN, strict=False):
        known = np.isfinite(values)
        assert known.mean() > 0.3
        np.testing.assert_allclose(values[known], -p * squares[known], atol=0.05)


@pytest.mark.slow
def test_values_agree_with_a_table_and_end_where_episodes_end() -> None:
    data, gamma = corridor_log(), 0.8
    ways = (-1.0, 1.0)
    policies = [PolicyActions(*(np.full((len(data), 1, 1), way, np.float32),) * 2) for way in ways]
    log = JudgedLog.from_dataset(data, gamma)
    config = small(gamma=gamma, updates=1200, learning_rate=3e-3, members=4)
    found = fit_values(log, policies, config, silent)
    cells = data.obs.numpy()[:, 0]
    for index, way in enumerate(ways):
        for cell, expected in enumerate(corridor_values(way, gamma)):
            assert np.nanmean(found.own[index][cells == cell]) == pytest.approx(expected, abs=0.05)


@pytest.mark.slow
def test_the_behaviour_is_valued_by_its_own_next_actions() -> None:
    """Uniform actions: V = -P s^2 - c with P = 1 / (1 - gamma / 4), and what the actions cost and scatter."""
    data = lqr_log()
    log, found = fitted(data, [Proportional(0.3)], updates=2000, learning_rate=3e-3, members=4)
    p = 1.0 / (1.0 - LQR_GAMMA / 4.0)
    offset = (0.1 / 3.0 + LQR_GAMMA * p * 0.25 / 3.0) / (1.0 - LQR_GAMMA)
    expected = -p * (log.obs[log.starts, 0] ** 2).mean() - offset
    assert found.values[-1].mean() == pytest.approx(expected, abs=0.08)


def test_a_constant_added_to_rewards_moves_values_by_its_sum() -> None:
    policies = [Proportional(0.3)]
    _, plain = fitted(lqr_log(episodes=50), policies, updates=150)
    _, moved = fitted(lqr_log(episodes=50, shift=2.0), policies, updates=150)
    np.testing.assert_allclose(moved.values - plain.values, 2.0 / (1.0 - LQR_GAMMA), rtol=1e-3)


def test_one_seed_gives_the_same_bytes() -> None:
    first, again, other = (
        fitted(lqr_log(episodes=30), [Proportional(0.3)], updates=60, seed=seed)[1] for seed in (0, 0, 1)
    )
    assert first.values.tobytes() == again.values.tobytes()
    assert first.own.tobytes() == again.own.tobytes()
    assert first.values.tobytes() != other.values.tobytes()


def test_a_stack_of_policies_gives_what_each_gives_alone() -> None:
    data, policies = lqr_log(episodes=40), [Proportional(k) for k in GAINS]
    _, together = fitted(data, policies, updates=100)
    for index, policy in enumerate(policies):
        _, alone = fitted(data, [policy], updates=100)
        np.testing.assert_allclose(together.values[index], alone.values[0], rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(together.values[-1], alone.values[-1], rtol=1e-3, atol=1e-3)


def test_held_out_values_come_from_members_that_have_not_seen_the_episode() -> None:
    data = lqr_log(episodes=30)
    log, found = fitted(data, [Proportional(0.3)], updates=20, members=2)
    weights = resample_weights(2, 30, seed=0).numpy()
    seen_by_all = (weights > 0).all(axis=0)
    assert 0 < seen_by_all.sum() < 30
    np.testing.assert_array_equal(np.isnan(found.own[0]), seen_by_all[log.numbers])


def test_resamples_draw_as_many_episodes_as_there_are() -> None:
    weights = resample_weights(200, 50, seed=3)
    assert (weights.sum(1) == 50).all()
    assert float((weights == 0).float().mean()) == pytest.approx((1 - 1 / 50) ** 50, abs=0.02)


@pytest.mark.parametrize(
    ("gamma", "tau", "expected"), [(0.99, 0.05, 6000), (0.9, 0.05, 5000), (0.999, 0.1, 30_000)]
)
def test_updates_follow_from_discount_and_target_rate(gamma: float, tau: float, expected: int) -> None:
    log = JudgedLog.from_dataset(lqr_log(episodes=3), gamma)
    assert updates_needed(small(gamma=gamma, tau=tau, updates=None), log) == expected


def test_what_never_ends_needs_a_discount() -> None:
    with pytest.raises(DataError, match=r"gamma must be < 1: 5 of 5 episodes do not terminate"):
        JudgedLog.from_dataset(lqr_log(episodes=5), 1.0)


def test_value_bounds_follow_from_rewards_and_ends() -> None:
    data = lqr_log(episodes=5)
    low, high = JudgedLog.from_dataset(data, LQR_GAMMA).value_range
    rewards = data.rewards.numpy()
    assert (low, high) == pytest.approx((10 * rewards.min(), 10 * rewards.max()))
    ending = JudgedLog.from_dataset(corridor_log(), 0.5)
    assert ending.value_range == pytest.approx((-0.2, 1.8))


class Interrupted(Exception):
    """Somebody pulls the plug."""


@pytest.mark.slow
def test_an_interrupted_fit_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    """With another log, setting or policy what was kept is of no use and is not used."""
    data, policy = lqr_log(episodes=20), Proportional(0.7)
    settings = {"gamma": 0.9, "hidden_sizes": (8, 8), "members": 2, "updates": 200, "model_updates": 100}
    quick = {**settings, "model_hidden_sizes": (8, 8), "importance": False, "rollout_starts": 5}
    told: list[tuple[str, int]] = []

    def ask(checkpoints: Path | None, stop: tuple[str, int] | None = None, **changes: Any) -> dict[str, Any]:
        told.clear()

        def tell(name: str, done: int, updates: int) -> None:
            told.append((name, done))
            if (name, done) == stop:
                raise Interrupted

        found = judge(
            policy, data, on_progress=tell, checkpoints=checkpoints, **{**quick, **changes}
        ).to_dict()
        return {**found, "seconds": 0.0}

    whole = ask(None)
    for stop in (("values", 130), ("dynamics", 57)):
        with pytest.raises(Interrupted):
            ask(tmp_path, stop)
    assert ask(tmp_path) == whole
    assert told[:2] == [("values", 200), ("dynamics", 50)]
    ask(tmp_path, confidence=0.5)
    assert told[0] == ("values", 200)
    ask(tmp_path, seed=1)
    assert told[0] == ("values", 0)


def test_an_episode_whose_end_nobody_can_value_leaves_the_others_alone() -> None:
    """Three episodes of rewards 1, 2: two are cut off, worth 10 and unknown; the last ends by itself."""
    column = np.zeros((6, 1), dtype=np.float32)
    rewards, ends = np.array([1, 2] * 3, dtype=np.float32), np.array([False, True] * 3)
    log = JudgedLog(column, column, column, rewards, np.arange(6) == 5, ends, gamma=0.5)
    values = np.array([0.0, 10.0, 0.0, np.nan, 0.0, 0.0])
    wanted = [1 + 0.5 * 10, 10, np.nan, np.nan, 1 + 0.5 * 2, 2]
    np.testing.assert_allclose(held_out_returns(log, values), wanted)
