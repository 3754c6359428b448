"""Importance sampling and doubly robust values against numbers worked out by hand, and their identities."""

import numpy as np
import pytest

from rl_training.core.errors import DataError
from rl_training.judging.estimators import (
    clipped_log_ratios,
    cumulative_weights,
    effective_sample_sizes,
    importance_estimates,
    resampled_doubly_robust,
    resampled_importance,
    weighted_doubly_robust,
)

GAMMA = 0.9
REWARDS = [(1.0, 2.0, 0.0), (0.0, 1.0), (3.0,)]
LOG_PI = [(-0.5, -0.2, -0.9), (-1.2, -0.1), (-0.3,)]
LOG_RATIOS = [np.array(each) + 0.7 for each in LOG_PI]
Q_VALUES = [(2.0, 1.5, 0.2), (0.8, 0.9), (2.5,)]
STATE_VALUES = [(1.8, 1.6, 0.1), (1.0, 0.7), (2.6,)]


def test_weights_accumulate_and_freeze_after_the_end() -> None:
    expected = [
        (1.221403, 2.013753, 1.648721),
        (0.606531, 1.105171, 1.105171),
        (1.491825, 1.491825, 1.491825),
    ]
    np.testing.assert_allclose(cumulative_weights(LOG_RATIOS), expected, rtol=1e-5)


def test_importance_estimates_of_three_episodes() -> None:
    found = importance_estimates(REWARDS, LOG_RATIOS, gamma=GAMMA)
    expected = {
        "is": 3.362182,
        "wis": 2.375699,
        "pdis": 3.438762,
        "wpdis": 2.717930,
        "effective_sample_size": 2.923837,
    }
    assert found == pytest.approx(expected, rel=1e-5)


def test_weighted_doubly_robust_of_three_episodes() -> None:
    found = weighted_doubly_robust(REWARDS, LOG_RATIOS, Q_VALUES, STATE_VALUES, gamma=GAMMA)
    assert found == pytest.approx(2.346093, rel=1e-5)


def test_the_behaviour_itself_has_weight_one() -> None:
    same = [np.zeros(3), np.zeros(2), np.zeros(1)]
    found = importance_estimates(REWARDS, same, gamma=GAMMA)
    mean_return = (2.8 + 0.9 + 3.0) / 3
    assert found == pytest.approx(
        {name: mean_return for name in ("is", "wis", "pdis", "wpdis")} | {"effective_sample_size": 3.0}
    )


def test_without_values_doubly_robust_is_per_decision_weighting() -> None:
    nothing = [np.zeros(3), np.zeros(2), np.zeros(1)]
    found = weighted_doubly_robust(REWARDS, LOG_RATIOS, nothing, nothing, gamma=GAMMA)
    assert found == pytest.approx(importance_estimates(REWARDS, LOG_RATIOS, gamma=GAMMA)["wpdis"])


@pytest.mark.parametrize("ends", ["terminated", "cut off"])
def test_perfect_values_need_no_weights(ends: str) -> None:
    """Q = r + gamma V(s'): every surprise is zero, whatever the weights."""
    final = np.zeros(3) if ends == "terminated" else np.array([0.4, -1.0, 2.0])
    q_values = [
        np.asarray(r) + GAMMA * np.append(np.asarray(v)[1:], last)
        for r, v, last in zip(REWARDS, STATE_VALUES, final, strict=True)
    ]
    found = weighted_doubly_robust(
        REWARDS, LOG_RATIOS, q_values, STATE_VALUES, gamma=GAMMA, final_values=final
    )
    assert found == pytest.approx((1.8 + 1.0 + 2.6) / 3)


def test_sample_sizes_do_not_overflow() -> None:
    ratios = [np.full(3, 400.0), np.full(3, 400.0), np.full(3, -400.0)]
    np.testing.assert_allclose(effective_sample_sizes(ratios), [2.0, 2.0, 2.0])
    found = importance_estimates([np.ones(3)] * 3, ratios, gamma=1.0)
    assert found["wis"] == found["wpdis"] == pytest.approx(3.0)
    assert found["is"] > 1e300


def test_clipping_says_how_much_it_clipped() -> None:
    ratios, share = clipped_log_ratios([(0.0, 5.0), (-9.0, 1.0)], [(0.0, 0.0), (0.0, 0.0)], -6.0, 2.0)
    assert [list(each) for each in ratios] == [[0.0, 2.0], [-6.0, 1.0]]
    assert share == 0.5


@pytest.mark.parametrize(
    ("rewards", "ratios", "complaint"),
    [
        ([], [], "at least one episode"),
        ([(1.0,), ()], [(0.0,), ()], "at least one episode"),
        ([(1.0, 2.0)], [(0.0,)], "log_ratios must have one number per reward"),
        ([(1.0,)], [(np.inf,)], "log_ratios must be finite"),
    ],
)
def test_what_cannot_be_weighted_is_named(rewards: list, ratios: list, complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        importance_estimates(rewards, ratios, gamma=GAMMA)


def test_a_resample_counts_episodes_as_often_as_it_drew_them() -> None:
    """The first episode twice, the second not at all: as if the log held just these."""
    counts, drawn = np.array([[1.0, 1.0, 1.0], [2.0, 0.0, 1.0]]), (0, 0, 2)

    def of(values: list) -> list:
        return [values[index] for index in drawn]

    found = resampled_importance(REWARDS, LOG_RATIOS, counts=counts, gamma=GAMMA)
    expected = importance_estimates(of(REWARDS), of(LOG_RATIOS), gamma=GAMMA)
    assert {name: values[1] for name, values in found.items()} == pytest.approx(
        {name: expected[name] for name in found}
    )
    columns = (REWARDS, LOG_RATIOS, Q_VALUES, STATE_VALUES)
    robust = resampled_doubly_robust(*columns, counts=counts, gamma=GAMMA)
    assert robust[0] == pytest.approx(2.346093, rel=1e-5)
    assert robust[1] == pytest.approx(weighted_doubly_robust(*(of(c) for c in columns), gamma=GAMMA))
