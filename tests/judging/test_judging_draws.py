"""Policies judged as they draw their actions: known values, their own noise, and who cannot be drawn from."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from judging_problems import (
    LQR_GAMMA,
    GaussianProportional,
    Proportional,
    lqr_log,
    lqr_value,
    small,
    uniform_lqr_log,
)
from rl_training.api.managed import ManagedAlgorithm
from rl_training.core.errors import UserError
from rl_training.core.spaces import Spaces
from rl_training.data import TransitionDataset
from rl_training.judging import Judgement, judge
from rl_training.judging.checks import Coverage
from rl_training.judging.evidence import compare_actions, uncovered_states
from rl_training.judging.fqe import fit_values, policy_values
from rl_training.judging.judge_policies import policy_inside
from rl_training.judging.log import JudgedLog
from rl_training.judging.model import fit_dynamics, roll_out
from rl_training.judging.policies import JudgedPolicy, actions_in_the_log
from rl_training.models.critics import QEnsemble
from rl_training.models.models import MLPSACModel
from rl_training.policies.policy import Policy

GAIN, SPREAD = 0.3, 0.3
QUICK: dict[str, Any] = {
    "gamma": LQR_GAMMA,
    "hidden_sizes": (8, 8),
    "members": 2,
    "updates": 40,
    "model_updates": 30,
    "model_members": 2,
    "model_hidden_sizes": (8, 8),
    "density_updates": 20,
    "rollout_starts": 5,
}


def silent(name: str, done: int, updates: int) -> None:
    pass


def known_offset() -> float:
    """c of V(s) = -P s^2 - c under a ~ N(-k s, sigma^2).

    Put into V(s) = E[-(s^2 + a^2/10) + gamma V(s/2 + a/2)], sigma adds sigma^2/10 to the cost of a step and
    sigma^2/4 to the square of the next state: c = (sigma^2/10 + gamma P sigma^2/4) / (1 - gamma) = 0.319640.
    """
    variance = SPREAD**2
    return (0.1 * variance + LQR_GAMMA * lqr_value(GAIN) * 0.25 * variance) / (1.0 - LQR_GAMMA)


@pytest.mark.slow
def test_what_chance_costs_is_in_the_value_of_drawn_actions_alone() -> None:
    """Values over s^2 lie on a line: its slope is -P with and without draws, it starts at -c or at 0."""
    assert known_offset() == pytest.approx(0.319640, abs=1e-6)
    data = uniform_lqr_log()
    config = small(updates=2000, learning_rate=3e-3, action_draws=3)
    log = JudgedLog.from_dataset(data, config.gamma)
    subjects = [
        JudgedPolicy("p", GaussianProportional(GAIN, SPREAD), 1),
        JudgedPolicy("q", Proportional(GAIN), 1),
    ]
    found = fit_values(log, actions_in_the_log(subjects, log, config), config, silent)
    for values, offset in zip(found.own, (known_offset(), 0.0), strict=False):
        known = np.isfinite(values)
        slope, start = np.polyfit(data.obs.numpy()[known, 0] ** 2, values[known], 1)
        assert (slope, start) == pytest.approx((-lqr_value(GAIN), -offset), abs=0.05)
    firsts = -lqr_value(GAIN) * float((log.obs**2).mean()) - known_offset()
    assert found.values[0].mean() == pytest.approx(firsts, abs=0.05)
    # Judged without draws, both are the same policy.
    first, second = actions_in_the_log(subjects, log, small())
    assert np.array_equal(first.here, second.here) and np.array_equal(first.there, second.there)


@pytest.mark.slow
def test_the_model_is_rolled_out_with_fresh_draws() -> None:
    settings = {"model_hidden_sizes": (64, 64), "model_members": 2, "learning_rate": 3e-3, "seed": 1}
    config = small(**settings, model_updates=1000, action_draws=1)
    log = JudgedLog.from_dataset(lqr_log(episodes=200), config.gamma)
    policy = GaussianProportional(GAIN, SPREAD)
    rolled = roll_out(fit_dynamics(log, config, silent), log, JudgedPolicy("p", policy, 1), config)
    expected = -lqr_value(GAIN) * float((log.obs[log.starts] ** 2).mean()) - known_offset()
    assert rolled.values.mean() == pytest.approx(expected, abs=0.1)
    chance = rolled.actions + GAIN * rolled.obs
    assert float(chance.std()) == pytest.approx(SPREAD, rel=0.1)
    assert len(np.unique(chance)) > 0.8 * len(chance)  # worlds share their noise, steps do not


class Known:
    """Mean 0.2 and std 1/e in [-1, 1] units of actions between 0 and 10."""

    spaces = Spaces(1, (0.0,), (10.0,))
    has_distribution = True

    def __init__(self, head: str, mean: float = 0.2) -> None:
        self.metadata, self.mean = {"actor": {"kind": head}}, mean

    def predict(self, obs: np.ndarray) -> np.ndarray:
        return np.full((len(obs), 1), 6.0, np.float32)

    def distribution(self, obs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.full((len(obs), 1), self.mean), np.full((len(obs), 1), -1.0)


@pytest.mark.parametrize(
    ("head", "expected"),
    [("unbounded", (6.0, 7.839397, 10.0)), ("squashed", (5.986877, 7.569001, 9.658760))],
)
def test_draws_follow_the_head(head: str, expected: tuple[float, ...]) -> None:
    """Noise 0, 1 and 4: u = 0.2, 0.567879, 1.671518; an action is 5 + 5 clip(u), or 5 + 5 tanh(u)."""
    noise = torch.tensor([[[0.0], [1.0], [4.0]]])
    found = JudgedPolicy("p", Known(head), 1).drawn(np.zeros((1, 1), np.float32), noise)
    assert found.shape == (1, 3, 1)
    assert found[0, :, 0] == pytest.approx(expected, rel=1e-6)


def test_a_distribution_of_no_numbers_is_named() -> None:
    subject = JudgedPolicy("p", Known("squashed", np.nan), 1)
    with pytest.raises(UserError, match="policy p: distribution gave NaN or infinity"):
        subject.drawn(np.zeros((1, 1), np.float32), torch.zeros(1, 1, 1))


def test_values_are_means_over_draws() -> None:
    critic = QEnsemble(2, 1, 3, generator=torch.Generator().manual_seed(0))
    obs, actions = torch.randn(5, 2), torch.randn(5, 4, 1)
    each = [critic(obs, actions[:, draw]) for draw in range(4)]
    torch.testing.assert_close(policy_values(critic, obs, actions), torch.stack(each).mean(0))
    assert torch.equal(policy_values(critic, obs, actions[:, :1]), each[0])


@pytest.fixture(scope="module")
def log() -> TransitionDataset:
    return lqr_log(episodes=25, length=8)


@pytest.fixture(scope="module")
def judged(log: TransitionDataset) -> Judgement:
    policies = {"random": GaussianProportional(GAIN, SPREAD), "plain": Proportional(GAIN)}
    return judge(policies, log, action_draws=2, **QUICK)


def told(judgement: Judgement) -> str:
    return json.dumps({**judgement.to_dict(), "seconds": 0.0})


def test_one_seed_draws_the_same(judged: Judgement, log: TransitionDataset) -> None:
    policies = {"random": GaussianProportional(GAIN, SPREAD), "plain": Proportional(GAIN)}
    assert told(judge(policies, log, action_draws=2, **QUICK)) == told(judged)
    prepared = JudgedLog.from_dataset(log, LQR_GAMMA)
    subjects = [JudgedPolicy("random", policies["random"], 1)]
    first, other = (
        actions_in_the_log(subjects, prepared, small(action_draws=2, seed=seed))[0] for seed in (0, 1)
    )
    assert first.here.shape == first.there.shape == (200, 2, 1)
    assert not np.array_equal(first.here, other.here)
    # Neither two draws of a state, nor those of a state when it is left and when it is reached, are the same.
    assert not np.array_equal(first.here[:, 0], first.here[:, 1])
    assert not np.array_equal(first.here[1:8], first.there[:7])


def test_who_cannot_be_drawn_from_is_judged_without_and_told(
    judged: Judgement, log: TransitionDataset
) -> None:
    random, plain = judged.policies
    assert random.checks["draws"].outcome == "passed"
    assert random.checks["draws"].reason == "Judged as it draws its actions, 2 draws per state."
    assert plain.checks["draws"].outcome == "warned"
    assert "judged by the deterministic ones" in plain.checks["draws"].reason
    alone = judge(Proportional(GAIN), log, action_draws=2, **QUICK).policies[0]
    usual = judge(Proportional(GAIN), log, **QUICK).policies[0]
    assert alone.members == usual.members and alone.estimates == usual.estimates
    assert "draws" not in usual.checks
    assert plain.value == pytest.approx(usual.value, rel=1e-3)


def test_a_kept_fit_is_that_of_its_draws(log: TransitionDataset, tmp_path: Path) -> None:
    stages: list[tuple[str, int]] = []

    def first_stage(seen: dict[str, Any], spread: float = SPREAD) -> tuple[str, int]:
        stages.clear()
        judge(
            GaussianProportional(GAIN, spread),
            log,
            on_progress=lambda name, done, updates: stages.append((name, done)),
            checkpoints=tmp_path,
            **{**QUICK, "importance": False, "model_rollouts": False, **seen},
        )
        return stages[0]

    assert first_stage({"action_draws": 2}) == ("values", 0)
    assert first_stage({"action_draws": 2}) == ("values", 40)
    assert first_stage({"action_draws": 2}, spread=0.2) == ("values", 0)
    assert first_stage({"action_draws": 3}, spread=0.2) == ("values", 0)
    assert first_stage({}, spread=0.2) == ("values", 0)


def test_every_draw_counts_in_what_is_compared_and_covered() -> None:
    """Actions logged as 0; draws of 0.5 and -1.5 in every state: 1 away on average, -0.5 in the mean."""
    column = np.linspace(0, 1, 40, dtype=np.float32)[:, None]
    ends = np.arange(40) % 4 == 3
    log = JudgedLog(column, 0 * column, column, column[:, 0], np.zeros(40, bool), ends, gamma=0.5)
    actions = np.tile(np.array([[0.5], [-1.5]], np.float32), (40, 1, 1))
    (compared,) = compare_actions(log, actions, Spaces(1, (-1.5,), (1.5,)), lambda kind, index: kind)
    assert (compared.mean_difference, compared.mean, compared.on_bound) == pytest.approx((1.0, -0.5, 0.5))
    covered = Coverage.of(log, neighbours=1, seed=0)
    distances = np.tile([0.1, 2.0], (len(covered.rows), 1))
    found = uncovered_states(log, covered, actions, distances, lambda kind, index: kind)
    assert found and all(state.action == {"action": -1.5} for state in found)


def test_a_trained_object_is_judged_by_the_policy_inside_and_a_wrapper_as_it_acts() -> None:
    policy = Policy(MLPSACModel(1, 1, hidden_sizes=(4, 4)).actor, Spaces(1, (-1.0,), (1.0,)))

    class Biased(Proportional):
        """Acts by itself, whatever it keeps."""

        def __init__(self) -> None:
            super().__init__(0.3)
            self.policy = policy

    class Managed(Biased):
        acts_by_its_policy = True

    assert policy_inside(Managed()) is policy
    assert JudgedPolicy("p", policy_inside(Managed()), 1).can_draw
    for wrapper in (Biased(), Proportional(0.3)):
        assert policy_inside(wrapper) is wrapper
    assert ManagedAlgorithm.acts_by_its_policy
