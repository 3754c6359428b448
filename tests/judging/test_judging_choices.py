"""Policies of choices and mixtures under judgement: shares, exact ratios, levels never taken."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rl_training.core.errors import DataError
from rl_training.core.spaces import Box, Choice, Spaces
from rl_training.data import DataInfo, TransitionDataset
from rl_training.judging import judge
from rl_training.judging.checks import Coverage
from rl_training.judging.importance import checked_propensities, kernel_log_density
from rl_training.judging.log import JudgedLog
from rl_training.judging.policies import JudgedPolicy
from rl_training.models import MLPIQLModel
from rl_training.policies.policy import Policy

PUMP, VALVE, MODE = Choice(("off", "on")), Box(0.0, 5.0), Choice((0.0, 1.0, 2.0))
MIXED = Spaces.of(1, [PUMP, VALVE, MODE])


def test_actions_become_shares_and_back_to_what_learners_see() -> None:
    columns = np.array([[1.0, 2.5, 0.0], [0.0, 7.0, 2.0]], dtype=np.float32)
    shares = MIXED.in_shares(columns)
    assert shares.tolist() == [[0, 1, 2.5, 1, 0, 0], [1, 0, 7, 0, 0, 1]]  # a box keeps what is outside
    words = np.array([["on", 2.5, 0.0], ["off", 7.0, 2.0]], dtype=object)
    np.testing.assert_array_equal(MIXED.in_shares(words), shares)
    np.testing.assert_allclose(MIXED.as_shares.to_unit(shares), MIXED.encode(columns), atol=1e-6)
    names = [MIXED.share_name(index, lambda column: "abc"[column]) for index in range(6)]
    assert names == ["a = off", "a = on", "b", "c = 0", "c = 1", "c = 2"]


def test_ratios_of_choices_need_no_kernel() -> None:
    taken = MIXED.encode([[1.0, 2.5, 0.0], [1.0, 2.5, 0.0], [0.0, 2.5, 0.0]])
    own = MIXED.encode([[1.0, 2.5, 0.0], [1.0, 2.5, 1.0], [1.0, 2.5, 0.0]])
    found = kernel_log_density(taken, own, np.full(6, 0.5), MIXED)
    assert found.tolist() == pytest.approx([-np.log(0.5 * np.sqrt(2 * np.pi)), -np.inf, -np.inf])
    pump = Spaces.of(1, [PUMP])
    one = kernel_log_density(pump.encode([[1.0], [0.0]]), pump.encode([[1.0], [1.0]]), np.ones(2), pump)
    assert one.tolist() == [0.0, -np.inf]
    same = checked_propensities(np.full(4, np.log(0.5)), pump.as_shares, "log", pump)
    assert same.tolist() == pytest.approx([np.log(0.5)] * 4)
    units = checked_propensities(np.array([0.0, 1.0]), MIXED.as_shares, "log", MIXED)
    assert units.tolist() == pytest.approx([np.log(2.5), 1.0 + np.log(2.5)])


def test_the_density_of_a_factored_policy_is_its_own() -> None:
    model = MLPIQLModel(1, 6, spaces=MIXED, hidden_sizes=(8,), generator=torch.Generator().manual_seed(0))
    policy = Policy(model.actor, MIXED).snapshot()
    judged = JudgedPolicy("p", policy, 6, MIXED)
    obs = np.linspace(-1, 1, 5, dtype=np.float32)[:, None]
    actions = MIXED.encode([[1.0, 2.5, 0.0]] * 5)
    actor: Any = policy.actor
    wanted = actor.log_prob(torch.from_numpy(obs).double(), torch.from_numpy(actions).double())
    np.testing.assert_allclose(judged.log_density(obs, actions), wanted.numpy())
    drawn = judged.drawn(obs, torch.randn(5, 400, 6, generator=torch.Generator().manual_seed(1)))
    assert drawn.shape == (5, 400, 6) and (drawn[..., :2].sum(-1) == 1.0).all()
    shares = actor.distribution(torch.from_numpy(obs).double())[0].exp().detach().numpy()
    np.testing.assert_allclose(drawn.mean(1)[:, 3:], shares[:, 3:], atol=0.1)
    assert judged.actions(obs).shape == (5, 6)


def pump_log(episodes: int = 60, length: int = 10, share_of_on: float = 0.5) -> TransitionDataset:
    """Below zero the pump should be on, above off; it is on by chance, and never between 0.8 and 1."""
    rng = np.random.default_rng(0)
    rows = episodes * length
    level = rng.uniform(-1.0, 1.0, (rows + 1, 1)).astype(np.float32)
    on = (rng.uniform(size=(rows, 1)) < share_of_on) & (level[:-1] < 0.8)
    paid = ((level[:-1] < 0) == on).astype(np.float32)[:, 0]
    cut = np.arange(rows) % length == length - 1
    info = DataInfo(choices=(PUMP,), action_names=("pump",))
    return TransitionDataset(
        level[:-1],
        on.astype(np.float32),
        paid,
        level[1:],
        np.zeros(rows, np.float32),
        truncations=cut.astype(np.float32),
        info=info,
    )


class Rule:
    """Answers in the log's words."""

    def __init__(self, on: Any) -> None:
        self.on = on

    def predict(self, obs: Any) -> Any:
        return np.where(self.on(np.asarray(obs)), "on", "off").astype(object)


def test_a_level_that_nobody_took_around_is_outside() -> None:
    data = pump_log(episodes=400)
    parts = Spaces.of(1, [PUMP])
    log = JudgedLog.from_dataset(data, 0.9, parts=parts)
    covered = Coverage.of(log, 5, 0, parts.levels)
    obs = np.array([[0.95], [0.95], [-0.5]], dtype=np.float32)
    distances = covered.distances(obs, parts.in_shares([["on"], ["off"], ["on"]]))
    assert np.isinf(distances[0]) and (distances[1:] < covered.limit).all() and np.isfinite(covered.limit)


@pytest.mark.slow
def test_policies_that_answer_in_words_are_judged() -> None:
    """The value of always doing right is 1 / (1 - gamma); by chance it is half of that."""
    policies = {"right": Rule(lambda x: x < 0), "wrong": Rule(lambda x: (x >= 0) & (x < 0.8))}
    settings: Any = {"gamma": 0.8, "updates": 400, "members": 4, "hidden_sizes": (16, 16), "min_episodes": 5}
    settings |= {"model_updates": 200, "density_updates": 200, "rollout_starts": 16, "model_rollouts": False}
    judgement = judge(policies, pump_log(), **settings)
    right, wrong = judgement.policies
    assert right.value > judgement.behaviour.value > wrong.value
    assert right.value == pytest.approx(5.0, abs=0.7)
    compared = {each.name: each for each in right.evidence.actions}
    assert compared.keys() == {"pump = off", "pump = on"}
    assert compared["pump = on"].mean == pytest.approx(0.5, abs=0.06)
    assert compared["pump = on"].on_bound == 0.0
    assert "kernel" not in right.estimates["wpdis"].note
    assert right.estimates["wpdis"].value > wrong.estimates["wpdis"].value


def test_a_policy_of_other_levels_is_refused() -> None:
    class Other(Rule):
        spaces = Spaces.of(1, [MODE])

    with pytest.raises(
        DataError, match=r"acts by a choice among 0, 1, 2, and the actions of .* are not that"
    ):
        judge(Other(lambda x: x < 0), pump_log(), gamma=0.8)
