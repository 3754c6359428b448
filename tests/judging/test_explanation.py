"""What a policy does, from a log and the policy alone; and what a model believes of a logged episode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rl_training.algorithms.dynamics import Dynamics
from rl_training.core.over_log import rows_since_start
from rl_training.core.signals import Program, Signals
from rl_training.core.spaces import FloatArray, Spaces
from rl_training.judging.explanation import Bound, Explanation, Rule, explain, tightest, typical_episode
from rl_training.judging.log import JudgedLog
from rl_training.judging.model import relive, what_if
from rl_training.models.dynamics import DynamicsModel
from rl_training.report.charts import Chart
from rl_training.report.content import Table
from rl_training.report.explain import explained, where

SPACES = Spaces(2, (0.0,), (100.0,))


def name_of(kind: str, index: int) -> str:
    return ("level (m)", "inflow")[index] if kind == "observation" else "valve"


def plant_log(rows: int = 1000, *, length: int = 50) -> JudgedLog:
    """Levels and inflows at random; everybody leaves the valve at 20; the reward is the level."""
    obs = np.random.default_rng(0).uniform(0.0, 2.0, (rows, 2)).astype(np.float32)
    ends = np.arange(rows) % length == length - 1
    actions, done = np.full((rows, 1), 20.0, np.float32), np.zeros(rows, bool)
    return JudgedLog(obs, actions, np.roll(obs, -1, axis=0), obs[:, 0], done, ends, 0.9)


def steep(obs: FloatArray) -> FloatArray:
    """Valve 60 where the level is above 1.4, else as logged; the inflow does not matter."""
    return np.where(obs[:, :1] > 1.4, 60.0, 20.0).astype(np.float32)


@pytest.fixture(scope="module")
def found() -> Explanation:
    return explain(plant_log(), steep, SPACES, name_of)


def test_rules_find_where_a_policy_differs_in_the_logs_units(found: Explanation) -> None:
    first, *others = found.rules
    assert first.differences[0] == pytest.approx(40.0) and first.share == pytest.approx(0.3, abs=0.05)
    (bound,) = first.bounds
    assert (bound.column, bound.above) == ("level (m)", True) and bound.value == pytest.approx(1.4, abs=0.02)
    assert all(abs(rule.differences[0]) < 1e-4 for rule in others) and len(others) <= 7


def test_of_bounds_on_one_side_the_tightest_is_told() -> None:
    assert tightest([(0, True, 1.0), (0, True, 1.5), (1, False, 3.0), (1, False, 4.0)]) == [
        (0, True, 1.5),
        (1, False, 3.0),
    ]
    rule = Rule((Bound("a", True, 1.5), Bound("b", False, 3.0)), 1.0, (0.0,))
    assert where(rule) == "a above 1.50 and b below 3" and where(Rule((), 1.0, (0.0,))) == "everywhere"
    both = Rule((Bound("a", False, 3.0), Bound("b", True, 0.5), Bound("a", True, 1.5)), 1.0, (0.0,))
    assert where(both) == "a between 1.50 and 3 and b above 0.5"


def test_a_column_that_does_not_matter_has_no_importance(found: Explanation) -> None:
    level, inflow = found.importance
    # two independent rows differ in 2 · .3 · .7 of all cases, by 40 of a range of 100
    assert level.column == "level (m)" and level.shares[0] == pytest.approx(0.4 * 2 * 0.3 * 0.7, abs=0.02)
    assert inflow.shares == (0.0,)


def test_a_response_follows_its_column_over_the_density_of_the_log() -> None:
    log = plant_log()
    log.obs[:, 0] = np.where(np.arange(1000) < 900, log.obs[:, 0] / 2.0, log.obs[:, 0])  # mostly below 1
    along_level, along_inflow = explain(log, steep, SPACES, name_of).responses
    for place, mean, low, high in zip(
        along_level.places, along_level.mean, along_level.low, along_level.high, strict=True
    ):
        assert mean == low == high == (60.0 if place > 1.4 else 20.0)
    above = [height for height in along_level.density[-8:]]
    assert max(along_level.density) == 1.0 and max(above) < 0.3 and min(along_level.density[:8]) > 0.4
    share = float((log.obs[::5, 0] > 1.4).mean())
    assert along_inflow.mean == pytest.approx([20.0 + 40.0 * share] * 15)
    assert set(along_inflow.low) == {20.0}


def test_the_episode_of_the_median_return_is_shown(found: Explanation) -> None:
    log = plant_log()
    returns = np.sort(log.rewards.reshape(20, 50).sum(axis=1))
    rows = typical_episode(log)
    assert log.rewards[rows].sum() == pytest.approx(returns[10]) and len(rows) == 50
    (valve,) = found.proposed
    assert set(valve.logged) == {20.0}
    assert valve.policy == tuple(np.where(log.obs[rows, 0] > 1.4, 60.0, 20.0))
    assert len(typical_episode(plant_log(2000, length=1000))) == 400, "of a long one the beginning"


# ---- what if?


def a_model(log: JudgedLog, members: int = 3) -> Dynamics:
    """Networks that have seen nothing of the log but its units."""
    width, actions = log.obs.shape[1], log.actions.shape[1]
    model = DynamicsModel(width, actions, hidden_sizes=(8,), members=members)
    learner = Dynamics(model)
    learner.look_at_data(log.columns, scaled=True)
    return learner


def walk(rows: int = 60, length: int = 15) -> JudgedLog:
    """x' = x + a + a disturbance; the reward is x."""
    rng = np.random.default_rng(1)
    actions = rng.uniform(-1, 1, (rows, 1)).astype(np.float32)
    obs, following = np.zeros((2, rows, 1), np.float32)
    x = 0.0
    for row in range(rows):
        x = rng.normal() if row % length == 0 else x
        obs[row] = x
        x = x + actions[row, 0] + rng.normal(0, 0.3)
        following[row] = x
    ends = np.arange(rows) % length == length - 1
    return JudgedLog(obs, actions, following, obs[:, 0], np.zeros(rows, bool), ends, 0.9)


def played_again(log: JudgedLog, more: float = 0.0) -> Any:
    """The logged actions of the typical episode, one row after another, or so much more."""
    steps = iter(log.actions[typical_episode(log)])
    return lambda obs: np.repeat(next(steps)[None] + np.float32(more), len(obs), axis=0)


def test_the_logged_actions_lead_to_the_logged_episode_whatever_the_model_is() -> None:
    log = walk()
    rows = typical_episode(log)
    believed = relive(a_model(log), log, played_again(log), rows)
    logged = np.concatenate([log.obs[rows], log.rewards[rows, None]], axis=1)
    assert believed.shape == (15, 3, 2)
    for member in range(3):
        np.testing.assert_allclose(believed[:, member], logged, atol=1e-4)


def test_disturbances_stay_and_other_actions_lead_elsewhere() -> None:
    log = walk()
    learner = a_model(log)
    dynamics: Any = learner.dynamics
    dynamics.highest.fill_(1e6)

    def known(obs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """The plant without its disturbances, in the network's units: members know it equally well."""
        plain = actions * torch.from_numpy(log.action_scale.spread) + torch.from_numpy(
            log.action_scale.center
        )
        moved = plain / torch.from_numpy(log.obs_scale.spread)
        reward = obs[..., :1] * torch.from_numpy(log.obs_scale.spread) / log.reward_scale.spread
        change = torch.cat(torch.broadcast_tensors(moved, reward), dim=-1)
        return (change - dynamics.change_center) / dynamics.change_spread, change

    dynamics.forward = known
    course, reward = what_if(learner, log, played_again(log, 1.0), {"x": 0})
    rows = typical_episode(log)
    # one more in every step: after t steps x is t higher, and every step earns as much more
    np.testing.assert_allclose(course.logged, log.obs[rows, 0])
    np.testing.assert_allclose(np.array(course.policy) - course.logged, np.arange(15), atol=1e-4)
    np.testing.assert_allclose(np.array(reward.policy) - reward.logged, np.arange(15), atol=1e-4)
    assert (course.name, reward.name) == ("x", "reward")
    np.testing.assert_allclose(course.low, course.high, atol=1e-4)


def test_lags_of_an_episode_lived_again_are_those_of_the_actions_that_led_there() -> None:
    program = Program(("x", "lags(a, 2)", "diff(x)"), ("x",), ("a",))
    plain = walk()
    starts = rows_since_start(plain.ends)
    seen = program.over_log(plain.obs, plain.actions, starts, [0.25]).astype(np.float32)
    log = JudgedLog(
        seen, plain.actions, np.roll(seen, -1, axis=0), plain.rewards, plain.dones, plain.ends, 0.9
    )
    rows, signals = typical_episode(log), Signals(program, (0.25,))
    same = relive(a_model(log), log, played_again(log), rows, signals)
    for member in range(3):
        np.testing.assert_allclose(same[:, member, :4], seen[rows], atol=1e-3)
    other = relive(a_model(log), log, played_again(log, 1.0), rows, signals)
    np.testing.assert_allclose(other[1:, :, 1], np.repeat(log.actions[rows[:-1]] + 1.0, 3, axis=1), atol=1e-4)


def test_a_page_shows_rules_columns_curves_the_episode_and_the_what_if(found: Explanation) -> None:
    log = plant_log()
    believed = what_if(a_model(log), log, steep, {"level (m)": 0})
    section = explained(Explanation(**{**vars(found), "what_if": believed}))
    titles = [block.title for block in section.blocks]
    assert titles == [
        "Where it differs from the log",
        "What each column matters",
        "valve against level (m)",
        "valve against inflow",
        "valve in one logged episode",
        "What if? reward under the policy",
        "What if? level (m) under the policy",
    ]
    rules, matters, curve, *_ = section.blocks
    assert isinstance(rules, Table) and isinstance(matters, Table) and isinstance(curve, Chart)
    assert rules.rows[0][2] == "valve +40" and rules.rows[-1][2] == "as logged"
    assert "level (m) above 1.4" in str(rules.rows[0][0]) and matters.rows[1] == ("inflow", "0.0 %")
    assert 'class="shade"' in curve.figure()
