"""Statistics over runs, against numbers worked out by hand."""

import math

import numpy as np
import pytest
from scipy.stats import mannwhitneyu

from rl_training.report.statistics import (
    difference,
    estimate,
    iqm,
    mean,
    median,
    performance_profile,
    probability_of_improvement,
)

EIGHT = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 100.0]


def test_mean_median_and_interquartile_mean_of_eight_runs() -> None:
    # sum 128; middle of 4 and 5; without 1, 2 and 7, 100: (3 + 4 + 5 + 6) / 4
    assert estimate([EIGHT], mean).value == pytest.approx(16.0)
    assert estimate([EIGHT], median).value == pytest.approx(4.5)
    assert estimate([EIGHT], iqm).value == pytest.approx(4.5)


def test_a_quarter_is_rounded_down() -> None:
    # of 7 runs one is left out on either side: (2 + 3 + 4 + 5 + 6) / 5; of 3 none
    assert estimate([[1, 2, 3, 4, 5, 6, 70]], iqm).value == pytest.approx(4.0)
    assert estimate([[0, 3, 9]], iqm).value == pytest.approx(4.0)


def test_statistics_are_taken_over_the_runs_of_all_tasks() -> None:
    result = estimate([[0.0, 2.0], [10.0, 12.0]], mean)
    assert (result.value, result.runs) == (6.0, 4)
    # draws stay inside their task: pooled means lie within [5, 7], which unstratified ones would not
    assert 5.0 <= result.low < 6.0 < result.high <= 7.0


def test_two_runs_give_exactly_the_bootstrap_distribution() -> None:
    # means of two draws of {0, 1}: 0, 1/2, 1 with chances 1/4, 1/2, 1/4
    result = estimate([[0.0, 1.0]])
    assert (result.low, result.high) == (0.0, 1.0)


def test_interval_of_many_runs_is_that_of_the_central_limit_theorem() -> None:
    scores = np.random.default_rng(5).normal(3.0, 2.0, 400)
    result = estimate([scores], repetitions=20_000)
    half = 1.966 * scores.std(ddof=1) / math.sqrt(400)  # t quantile with 399 degrees of freedom
    assert result.low == pytest.approx(scores.mean() - half, abs=0.012)
    assert result.high == pytest.approx(scores.mean() + half, abs=0.012)


def test_equal_seeds_give_equal_intervals_and_others_do_not() -> None:
    assert estimate([EIGHT], seed=3) == estimate([EIGHT], seed=3)
    assert estimate([EIGHT], seed=3) != estimate([EIGHT], seed=4)


def test_one_run_has_no_interval() -> None:
    result = estimate([[5.0]])
    assert (result.value, result.runs, result.has_interval) == (5.0, 1, False)
    assert not estimate([[5.0], [6.0]]).has_interval  # one run per task neither
    assert estimate([[5.0], [6.0, 7.0]]).has_interval


def test_probability_of_improvement_counts_pairs_and_half_ties() -> None:
    # 4 pairs: 3 > 1, 3 > 2, 2 > 1, and the tie 2 = 2 counts a half
    result = probability_of_improvement([[2.0, 3.0]], [[1.0, 2.0]])
    assert (result.value, result.runs) == (3.5 / 4, 4)
    assert 0.0 <= result.low <= result.value <= result.high <= 1.0


def test_three_runs_above_three_others_prove_little() -> None:
    # Newcombe's method 5 by hand: (1 - p)^2 = 1.96^2 p (1 - p) (1 + 2 (1 - p)/(2 - p) + 2 p/(1 + p)) / 9
    result = probability_of_improvement([[5.0, 6.0, 7.0]], [[1.0, 2.0, 3.0]])
    assert (result.value, result.high) == (1.0, 1.0) and result.low == pytest.approx(0.501, abs=1e-3)
    turned = probability_of_improvement([[1.0, 2.0, 3.0]], [[5.0, 6.0, 7.0]])
    assert (turned.value, turned.low) == (0.0, 0.0) and turned.high == pytest.approx(0.499, abs=1e-3)
    many = probability_of_improvement([np.arange(20.0) + 100], [np.arange(20.0)])
    assert 0.8 < many.low < 1.0
    two_tasks = probability_of_improvement([[5.0, 6.0, 7.0]] * 2, [[1.0, 2.0, 3.0]] * 2)
    assert result.low < two_tasks.low < 1.0


def test_the_interval_of_a_probability_holds_the_true_one() -> None:
    generator, runs, true = (
        np.random.default_rng(0),
        5,
        0.760250,
    )  # normal samples, one standard deviation apart
    found = [
        probability_of_improvement([generator.normal(1, 1, runs)], [generator.normal(0, 1, runs)])
        for _ in range(300)
    ]
    assert 0.92 <= np.mean([each.low <= true <= each.high for each in found]) <= 0.99


def test_probability_of_improvement_is_the_mean_over_tasks() -> None:
    # task 1: always better; task 2: never
    result = probability_of_improvement([[5.0, 6.0], [0.0]], [[1.0], [3.0, 4.0, 5.0]])
    assert result.value == 0.5


def test_probability_of_improvement_agrees_with_scipy() -> None:
    generator = np.random.default_rng(0)
    first, second = generator.normal(0.5, 1, 9), generator.normal(0, 1, 7)
    expected = mannwhitneyu(first, second).statistic / (9 * 7)
    assert probability_of_improvement([first], [second]).value == pytest.approx(expected)


def test_difference_has_the_sign_of_the_first_minus_the_second() -> None:
    result = difference([[10.0, 11.0, 12.0]], [[1.0, 2.0, 3.0]])
    assert result.value == pytest.approx(9.0)
    assert 7.0 <= result.low <= 9.0 <= result.high <= 11.0
    assert result.runs == 6


def test_performance_profile_is_the_share_of_runs_above_a_threshold() -> None:
    profile = performance_profile([[1.0, 2.0], [3.0, 4.0]], [0.0, 1.0, 2.5, 4.0])
    assert profile.share.tolist() == [1.0, 0.75, 0.5, 0.0]
    assert (profile.low <= profile.share).all() and (profile.share <= profile.high).all()
    assert profile.low[2] == profile.high[2] == 0.5  # between the tasks: stratified draws cannot vary there
    assert profile.runs == 4


@pytest.mark.parametrize(
    ("scores", "rule"), [([], "at least one"), ([[1], []], "at least one"), ([[1, math.nan]], "finite")]
)
def test_scores_that_cannot_be_averaged_are_refused(scores: list[list[float]], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        estimate(scores)


def test_different_numbers_of_tasks_are_refused() -> None:
    with pytest.raises(ValueError, match="same tasks, got 1 and 2"):
        probability_of_improvement([[1.0]], [[1.0], [2.0]])


def test_a_side_with_one_run_leaves_a_difference_without_interval() -> None:
    assert not difference([[1.0]], [[1.0, 2.0, 3.0]]).has_interval
    assert not probability_of_improvement([[1.0, 2.0, 3.0]], [[1.0]]).has_interval


def test_tasks_and_sides_are_drawn_each_by_itself() -> None:
    """Equal scores on both sides: a common draw would cancel; in two tasks it would count twice."""
    scores = np.random.default_rng(8).normal(0.0, 1.0, 100)
    error = 1.984 * scores.std(ddof=1) / math.sqrt(100)
    apart = difference([scores], [scores])
    assert apart.value == 0.0
    assert (apart.high - apart.low) / 2.0 == pytest.approx(math.sqrt(2.0) * error, rel=0.1)
    both = estimate([scores, scores])
    assert (both.high - both.low) / 2.0 == pytest.approx(error / math.sqrt(2.0), rel=0.1)
