"""Returns along episodes: hand-computed numbers, episode borders, the failure rule, long inputs."""

import numpy as np
import pytest
import torch

from rl_training.data import TransitionDataset, compute_discounted_returns_to_go
from rl_training.data.episodes import LastRewards, n_step_returns, returns_to_go

GAMMA = 0.99


def slow_returns(rewards: np.ndarray, ends: np.ndarray, gamma: float) -> np.ndarray:
    """The recurrence, one row at a time."""
    values, following = np.zeros(len(rewards)), 0.0
    for row in reversed(range(len(rewards))):
        following = float(rewards[row]) + (0.0 if ends[row] else gamma * following)
        values[row] = following
    return values


@pytest.mark.parametrize(
    ("rewards", "dones", "truncations", "failure", "expected"),
    [
        # success in a sparse task, raw (0, 0, 1) or Adroit's (-1, -1, 0), transformed by 10r - 5 or 10r + 5
        ([-5.0, -5.0, 5.0], [0, 0, 1], None, None, [-5.0495, -0.05, 5.0]),
        ([-5.0, -5.0, 5.0], [0, 0, 1], None, -5.0, [-5.0495, -0.05, 5.0]),
        # failure: would fail for ever, or the plain sums without the rule
        ([-5.0, -5.0, -5.0], [0, 0, 0], [0, 0, 1], -5.0, [-500.0, -500.0, -500.0]),
        ([-5.0, -5.0, -5.0], [0, 0, 0], [0, 0, 1], None, [-14.8505, -9.95, -5.0]),
        # a time-out is not bootstrapped
        ([1.0, 2.0, 3.0], [0, 0, 0], [0, 0, 1], None, [5.9203, 4.97, 3.0]),
        # nothing leaks over a border, whether termination or time-out
        ([1.0, 1.0, 1.0, 1.0], [0, 1, 0, 0], [0, 0, 0, 1], None, [1.99, 1.0, 1.99, 1.0]),
        ([1.0, 1.0, 1.0, 1.0], [0, 0, 0, 1], [0, 1, 0, 0], None, [1.99, 1.0, 1.99, 1.0]),
        # one episode fails, the other does not
        ([-5.0, -5.0, 5.0], [0, 1, 1], None, -5.0, [-500.0, -500.0, 5.0]),
    ],
)
def test_known_returns(
    rewards: list[float],
    dones: list[int],
    truncations: list[int] | None,
    failure: float | None,
    expected: list[float],
) -> None:
    found = compute_discounted_returns_to_go(
        np.array(rewards), dones, GAMMA, truncations, failure_reward=failure
    )
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_a_tensor_gives_a_tensor_in_its_precision() -> None:
    rewards = torch.tensor([1.0, 2.0, 3.0])
    found = compute_discounted_returns_to_go(rewards, torch.tensor([0.0, 0.0, 1.0]), GAMMA)
    assert isinstance(found, torch.Tensor) and found.dtype == torch.float32
    torch.testing.assert_close(found, torch.tensor([5.9203, 4.97, 3.0]))
    assert compute_discounted_returns_to_go(np.ones(2), [0, 1], GAMMA).dtype == np.float64


@pytest.mark.parametrize(
    ("chance", "gamma"), [(0.0, 0.99), (0.0, 0.0), (1e-4, 1.0), (1e-3, 0.99), (0.05, 0.5), (1.0, 0.99)]
)
def test_many_rows_equal_the_slow_recurrence(chance: float, gamma: float) -> None:
    """More rows than one segment of the scan, so that the carry between segments is used."""
    rng = np.random.default_rng(3)
    rewards, ends = rng.normal(size=270_001), rng.random(270_001) < chance
    found = compute_discounted_returns_to_go(rewards, ends, gamma)
    np.testing.assert_allclose(found, slow_returns(rewards, ends, gamma), rtol=1e-11, atol=1e-9)


def test_returns_are_recomputed_from_transformed_rewards() -> None:
    """10 * returns - 5 would be (4.801, 4.9, 5)."""
    raw = TransitionDataset(
        obs=np.zeros((3, 1)),
        actions=np.zeros((3, 1)),
        rewards=[0.0, 0.0, 1.0],
        next_obs=np.zeros((3, 1)),
        dones=[0.0, 0.0, 1.0],
    )
    before = raw.with_discounted_returns_to_go(gamma=GAMMA)
    expected = torch.tensor([-5.0495, -0.05, 5.0])
    for changed in (
        raw.with_reward_transform(scale=10.0, shift=-5.0, returns_to_go_gamma=GAMMA),
        before.with_reward_transform(scale=10.0, shift=-5.0),
    ):
        assert changed.returns_to_go is not None
        torch.testing.assert_close(changed.returns_to_go, expected)


def test_a_tail_belongs_to_the_returns_and_to_the_failure_rule() -> None:
    ends = np.array([False, True, False, True])
    last_rewards = LastRewards(np.array([1]), np.array([4.0]))
    found = returns_to_go(np.array([1.0, 2.0, 1.0, 1.0]), ends, 0.5, last_rewards=last_rewards)
    np.testing.assert_allclose(found, [1 + 0.5 * (2 + 0.5 * 4), 2 + 0.5 * 4, 1.5, 1.0])
    failing = np.zeros(4)
    rescued = returns_to_go(failing - 1, ends, 0.5, last_rewards=last_rewards, failure_reward=-1.0)
    np.testing.assert_allclose(rescued, [-1 + 0.5 * (-1 + 2), -1 + 2, -2.0, -2.0])


def test_n_step_returns_stop_at_the_end_of_an_episode() -> None:
    rewards = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
    ends = np.array([False, False, True, False, True])
    totals, last, factors = n_step_returns(rewards, ends, 0.5, 2)
    np.testing.assert_allclose(totals, [2.0, 4.0, 4.0, 16.0, 16.0])
    assert last.tolist() == [1, 2, 2, 4, 4]
    np.testing.assert_allclose(factors, [0.25, 0.25, 0.5, 0.25, 0.5])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((np.ones(3), [0, 1], 0.9), "rewards and dones must have the same length, got 3 and 2"),
        ((np.ones(2), [0, 1], 0.9, [0]), "rewards and truncations must have the same length, got 2 and 1"),
        ((np.ones(2), [0, 1], 1.5), "gamma must be between 0 and 1, got 1.5"),
    ],
)
def test_bad_arguments(arguments: tuple[object, ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        compute_discounted_returns_to_go(*arguments)  # type: ignore[arg-type]


def test_failing_for_ever_needs_a_discount() -> None:
    with pytest.raises(ValueError, match="failure_reward needs gamma < 1"):
        compute_discounted_returns_to_go(np.zeros(2), [0, 1], 1.0, failure_reward=0.0)
    with pytest.raises(ValueError, match="n_step must be >= 1, got 0"):
        n_step_returns(np.zeros(2), np.array([False, True]), 0.9, 0)
