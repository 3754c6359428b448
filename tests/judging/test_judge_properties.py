"""What must not change a judgement, what must change it and how: through `judge`, on logs of feedback.

Actions of these logs depend on the state, as those of real ones do; s' = s/2 + a/2, r = -(s^2 + a^2/10).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from judging_problems import LQR_GAMMA, Proportional, feedback_log, feedback_value, lqr_value
from rl_training.data import TransitionDataset
from rl_training.judging import Judgement, judge
from rl_training.judging.verdict import joined

SETTINGS: dict[str, Any] = {
    "gamma": LQR_GAMMA,
    "hidden_sizes": (16, 16),
    "members": 4,
    "updates": 650,
    "learning_rate": 3e-3,
    "batch_size": 64,
    "model_updates": 1000,
    "coverage_limit": 0.1,  # 1200 rows leave gaps between them
    "model_hidden_sizes": (32, 32),
    "model_members": 3,
    "rollout_starts": 40,
    "importance": False,
}
BRIEF = {**SETTINGS, "updates": 60, "model_updates": 40}
"""Long enough to compare two judgements that must be alike."""

POLICIES = {"calm": Proportional(0.7), "wrong": Proportional(-0.6)}


class Changed:
    """A policy in other units: obs = a s + b, actions = c u + d."""

    def __init__(self, gain: float, obs: tuple[float, float], actions: tuple[float, float]) -> None:
        self.gain, self.obs, self.actions = gain, obs, actions

    def predict(self, obs: np.ndarray) -> np.ndarray:
        plain = (np.asarray(obs, np.float64) - self.obs[1]) / self.obs[0]
        return (self.actions[0] * -self.gain * plain + self.actions[1]).astype(np.float32)


@pytest.fixture(scope="module")
def log() -> TransitionDataset:
    return feedback_log(episodes=60)


@pytest.fixture(scope="module")
def brief(log: TransitionDataset) -> Judgement:
    return judge(POLICIES, log, **BRIEF)


def with_rewards(log: TransitionDataset, rewards: torch.Tensor) -> TransitionDataset:
    return log.with_columns({"rewards": rewards.to(log.rewards.dtype)})


def shown(judgement: Judgement) -> np.ndarray:
    """Every number that has the rewards' unit."""
    own = judgement.behaviour
    rows = [(own.value, own.low, own.high)]
    for each in judgement.policies:
        rows += [(each.value, each.low, each.high)]
        rows += [(e.value, e.low, e.high) for e in each.estimates.values()]  # type: ignore[misc]
    return np.array(rows, dtype=np.float64)


def test_judged_apart_and_joined_is_judged_together(log: TransitionDataset, brief: Judgement) -> None:
    apart = [judge({name: policy}, log, **BRIEF) for name, policy in POLICIES.items()]
    found = joined(apart)
    np.testing.assert_allclose(shown(found), shown(brief), rtol=2e-3, atol=2e-3)
    assert outcomes(found) == outcomes(brief) and found.advice == brief.advice
    gaps = [each.compare("calm", "wrong") for each in (found, brief)]
    assert gaps[0].value == pytest.approx(gaps[1].value, rel=2e-3, abs=2e-3)


def outcomes(judgement: Judgement) -> list[Any]:
    checks = [{name: check.outcome for name, check in each.checks.items()} for each in judgement.policies]
    order = [each.name for each in judgement.ranking()]
    return [[each.verdict for each in judgement.policies], checks, order]


@pytest.mark.parametrize(("factor", "constant"), [(100.0, 0.0), (0.01, 0.0), (1.0, 3.0), (2.0, -1.0)])
def test_rewards_in_other_units(
    log: TransitionDataset, brief: Judgement, factor: float, constant: float
) -> None:
    other = judge(POLICIES, with_rewards(log, factor * log.rewards + constant), **BRIEF)
    expected = factor * shown(brief) + constant / (1.0 - LQR_GAMMA)
    np.testing.assert_allclose(shown(other), expected, rtol=2e-3, atol=5e-3 * factor)
    assert outcomes(other) == outcomes(brief)
    for before, after in zip(brief.policies, other.policies, strict=True):
        assert after.difference.value == pytest.approx(factor * before.difference.value, rel=2e-2)


def test_observations_and_actions_in_other_units(log: TransitionDataset, brief: Judgement) -> None:
    """Degrees Fahrenheit, per cent, an offset: nothing that a judgement says depends on them."""
    obs, actions = (10.0, 32.0), (50.0, -7.0)
    other = TransitionDataset(
        obs[0] * log.obs + obs[1],
        actions[0] * log.actions + actions[1],
        log.rewards,
        obs[0] * log.next_obs + obs[1],
        log.dones,
        truncations=log.truncations,
    )
    policies = {"calm": Changed(0.7, obs, actions), "wrong": Changed(-0.6, obs, actions)}
    found = judge(policies, other, **BRIEF)
    np.testing.assert_allclose(shown(found), shown(brief), rtol=2e-3, atol=2e-3)
    assert outcomes(found) == outcomes(brief)


@pytest.fixture(scope="module")
def whole(log: TransitionDataset) -> Judgement:
    return judge({**POLICIES, "itself": Proportional(0.3)}, log, **SETTINGS)


@pytest.mark.slow
def test_values_are_the_known_ones_and_no_verdict_is_false(whole: Judgement, log: TransitionDataset) -> None:
    squares = float((log.obs[::20] ** 2).mean())
    p, c = feedback_value(0.3, 0.3)
    behaviour = -p * squares - c
    assert whole.behaviour.low <= behaviour <= whole.behaviour.high
    for each, gain in zip(whole.policies, (0.7, -0.6, 0.3), strict=True):
        truth = -lqr_value(gain) * squares
        assert each.low <= truth <= each.high, each.name
        assert (truth > behaviour) or each.verdict != "better"
        assert (truth < behaviour) or each.verdict != "worse"
    assert [each.name for each in whole.ranking()][-1] == "wrong"


@pytest.mark.slow
def test_the_order_of_episodes_says_nothing(whole: Judgement, log: TransitionDataset) -> None:
    """Other resamples and batches, the same answer within its intervals."""
    order = torch.from_numpy(np.random.default_rng(5).permutation(60))
    rows = (order[:, None] * 20 + torch.arange(20)).reshape(-1)
    columns = (log.obs[rows], log.actions[rows], log.rewards[rows], log.next_obs[rows], log.dones[rows])
    truncations = log.truncations
    assert truncations is not None
    shuffled = TransitionDataset(*columns, truncations=truncations[rows])
    found = judge({**POLICIES, "itself": Proportional(0.3)}, shuffled, **SETTINGS)
    for before, after in zip(whole.policies, found.policies, strict=True):
        assert {before.verdict, after.verdict} != {"better", "worse"}
        assert before.low <= after.value <= before.high and after.low <= before.value <= after.high


@pytest.mark.slow
def test_the_behaviour_judged_as_itself_is_not_distinguishable() -> None:
    steady = feedback_log(episodes=60, k=0.4, sigma=0.1)
    (itself,) = judge(Proportional(0.4), steady, **{**SETTINGS, "model_rollouts": False}).policies
    assert itself.verdict == "indistinguishable"


@pytest.mark.slow
def test_observations_that_say_nothing_are_refused(log: TransitionDataset) -> None:
    draws = torch.Generator().manual_seed(0)
    blind, after = (torch.randn(log.obs.shape, generator=draws) for _ in range(2))
    blank = TransitionDataset(blind, log.actions, log.rewards, after, log.dones, truncations=log.truncations)
    (found,) = judge(Proportional(0.0), blank, **{**SETTINGS, "model_rollouts": False}).policies
    assert found.verdict == "refused"


@pytest.mark.slow
def test_shuffled_rewards_are_refused(log: TransitionDataset) -> None:
    order = torch.randperm(len(log), generator=torch.Generator().manual_seed(0))
    found = judge(POLICIES, with_rewards(log, log.rewards[order]), **{**SETTINGS, "model_rollouts": False})
    assert {each.verdict for each in found.policies} == {"refused"}


@pytest.mark.slow
def test_nine_of_ten_intervals_hold_the_truth() -> None:
    """Of three policies and the behaviour on six logs: known values, drawn anew each time."""
    quick = {**SETTINGS, "model_rollouts": False, "members": 3}
    gains, held = (0.7, 0.3, 0.0), list[bool]()
    for seed in range(6):
        log = feedback_log(episodes=30, seed=seed)
        squares = 1.0 / 3.0  # of first states, uniform on [-1, 1]
        found = judge([Proportional(gain) for gain in gains], log, **quick, seed=seed)
        p, c = feedback_value(0.3, 0.3)
        held.append(found.behaviour.low <= -p * squares - c <= found.behaviour.high)
        for each, gain in zip(found.policies, gains, strict=True):
            held.append(each.low <= -lqr_value(gain) * squares <= each.high)
    assert len(held) == 24
    assert np.mean(held) >= 0.8
