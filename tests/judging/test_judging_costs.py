"""What policies cost, in the unit of their limits, and whether they keep them."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from judging_problems import (
    LQR_GAMMA,
    Proportional,
    actions_of,
    corridor_log,
    feedback_log,
    lqr_log,
    small,
    uniform_lqr_log,
)
from rl_training.config.limits import Limit
from rl_training.core.errors import ConfigError
from rl_training.data import TransitionDataset
from rl_training.judging import Judgement, judge
from rl_training.judging.costs import CostRate, CostValues, LoggedCosts, rising, until_the_end, with_last_rows
from rl_training.judging.fqe import fit_values, new_learner
from rl_training.judging.log import JudgedLog, Operator
from rl_training.judging.verdict import Check, CostJudgement, limits_kept
from rl_training.policies.inputs import RuntimeInput

SETTINGS: dict[str, Any] = {
    "gamma": LQR_GAMMA,
    "hidden_sizes": (32, 32),
    "members": 3,
    "updates": 800,
    "batch_size": 64,
    "learning_rate": 5e-3,
    "model_updates": 600,
    "model_members": 3,
    "model_hidden_sizes": (16, 16),
    "rollout_starts": 100,
    "importance": False,
}


class Counting(Proportional):
    """Asks for what was spent, whatever it makes of it."""

    inputs = (RuntimeInput("spent", 0.0, 9.0, 0.0, counted=True),)


def with_costs(data: TransitionDataset, **costs: np.ndarray | torch.Tensor) -> TransitionDataset:
    columns = torch.stack([torch.as_tensor(each).float().reshape(-1) for each in costs.values()], 1)
    info = replace(data.info, cost_names=tuple(costs))
    return TransitionDataset.from_store(data.store.updated({"costs": columns}), info=info)


def known_cost(k: float) -> float:
    """P of the discounted cost a^2 = P s^2 under a = -k s."""
    return k * k / (1.0 - LQR_GAMMA * (0.5 - 0.5 * k) ** 2)


@pytest.mark.slow
def test_the_value_of_a_cost_is_the_known_quadratic() -> None:
    gains, known = (0.3, 0.706659), (0.101152, 0.509226)
    assert [known_cost(k) for k in gains] == pytest.approx(known, rel=1e-5)
    data = uniform_lqr_log()
    log = JudgedLog.from_dataset(data, LQR_GAMMA)
    cost = replace(log, rewards=log.actions[:, 0] ** 2)
    config = small(updates=2500, learning_rate=3e-3, batch_size=128)
    policies = [actions_of(Proportional(k), data) for k in gains]
    found = fit_values(cost, policies, config, lambda *_: None, name="cost_1")
    squares = data.obs.numpy()[:, 0] ** 2
    for values, p in zip(found.own, known, strict=False):
        seen = np.isfinite(values)
        np.testing.assert_allclose(values[seen], p * squares[seen], atol=0.05)


@pytest.mark.slow
def test_workers_change_no_number_and_do_take_work_over() -> None:
    data = lqr_log(episodes=20)
    data = with_costs(data, wear=data.actions**2)
    quick = {**SETTINGS, "updates": 120, "model_updates": 100, "hidden_sizes": (8, 8), "rollout_starts": 5}
    found, told = [], {1: [], 3: []}
    for workers, seen in told.items():
        judgement = judge(
            Proportional(0.3),
            data,
            on_progress=lambda name, done, updates, seen=seen: seen.append((name, done)),
            workers=workers,
            **quick,
        )
        found.append({**judgement.to_dict(), "seconds": 0.0})
    assert found[0] == found[1]
    here = {workers: {name for name, done in seen if done == 0} for workers, seen in told.items()}
    assert here[3] == {"values"}
    assert here[1] >= {"values", "dynamics", "cost_1"}
    with pytest.raises(ConfigError, match="workers must be >= 1, got 0"):
        judge(Proportional(0.3), data, workers=0)


@pytest.fixture(scope="module")
def judged() -> Judgement:
    data = lqr_log(episodes=200)
    data = with_costs(data, wear=data.actions**2, work=data.actions**2)
    policies = {"calm": Proportional(0.3), "wild": Proportional(-0.9), "counts": Counting(0.3)}
    limits = {"wear": 0.08, "work": "1 per episode"}
    return judge(policies, data, limits=limits, **SETTINGS)


@pytest.mark.slow
def test_limits_per_step_and_per_episode_are_kept_and_broken(judged: Judgement) -> None:
    """Of states uniform in [-1, 1], where s^2 is a third on average; ten steps make an episode."""
    calm, wild = judged.policies[:2]
    by_step = [(1.0 - LQR_GAMMA) * known_cost(k) / 3.0 for k in (0.3, -0.9)]
    by_episode = [sum(k * k * (0.5 - 0.5 * k) ** (2 * t) for t in range(10)) / 3.0 for k in (0.3, -0.9)]
    assert by_step == pytest.approx([0.003372, 0.143806], rel=1e-3)
    assert by_episode == pytest.approx([0.034188, 1.776563], rel=1e-3)
    for policy, step, episode in zip((calm, wild), by_step, by_episode, strict=True):
        wear, work = policy.costs
        assert (wear.per, work.per) == ("step", "episode")
        assert wear.low <= step <= wear.high and abs(wear.value - step) < 0.02
        assert work.low <= episode <= work.high and abs(work.value - episode) < 0.35
        assert set(wear.estimates) == set(work.estimates) == {"fqe", "model"}
        assert abs(wear.estimates["model"].value - step) < 0.03
        assert abs(work.estimates["model"].value - episode) < 0.35
    assert [each.outcome for each in calm.costs] == ["keeps", "keeps"] and calm.limits == "keeps"
    assert [each.outcome for each in wild.costs] == ["breaks", "breaks"] and wild.limits == "breaks"
    assert "Keeps the limit of wear, 0.08 per step: " in calm.sentence
    assert "Breaks the limit of work, 1 per episode: " in wild.sentence
    assert all(each.excess < 0.0 for each in calm.costs) and all(each.excess > 0.0 for each in wild.costs)


@pytest.mark.slow
def test_what_counts_while_it_runs_is_not_said_to_keep_a_limit(judged: Judgement) -> None:
    """It acts here as the calm one does, but would not while it counts."""
    calm, _, counts = judged.policies
    assert [each.value for each in counts.costs] == pytest.approx([each.value for each in calm.costs], 1e-3)
    assert counts.limits == "cannot tell" and counts.verdict != "refused"
    assert "it acts by what an episode has cost so far" in counts.sentence
    assert counts.checks["counting"].outcome == "warned" and "counting" not in calm.checks


@pytest.mark.slow
def test_the_behaviour_stands_beside_with_what_was_logged(judged: Judgement) -> None:
    """Uniform actions: a^2 is a third."""
    wear, work = judged.behaviour.costs
    assert wear.low <= 1 / 3 <= wear.high and work.low <= 10 / 3 <= work.high
    assert judged.behaviour.limits == "breaks"
    logged = judged.logged_costs
    assert [each.limit for each in logged] == ["0.08 per step", "1 per episode"]
    assert logged[0].per_step == pytest.approx(1 / 3, abs=0.02)
    assert logged[1].per_episode == pytest.approx(10 / 3, abs=0.2)
    assert logged[0].episodes_within < 0.01 and logged[1].episodes_within < 0.05
    plain = judged.to_dict()
    assert plain["policies"][0]["limits"] == "keeps"
    assert plain["policies"][0]["costs"][0]["outcome"] == "keeps"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:limits.*nothing like this log can break it")
def test_what_keeps_comes_first_whatever_it_earns_and_rewards_are_valued_as_without_costs() -> None:
    data = lqr_log(episodes=60)
    policies = {"calm": Proportional(0.3), "best": Proportional(0.7)}
    settings = {**SETTINGS, "model_rollouts": False, "updates": 600, "coverage_limit": 0.5}
    plain = judge(policies, data, **settings)
    limited = judge(policies, with_costs(data, low=-(data.actions**2)), limits={"low": 10}, **settings)
    assert [each.value for each in plain.policies] == [each.value for each in limited.policies]
    assert {each.limits for each in plain.policies} == {None}
    first, second = plain.ranking()
    kept, broken = (replace(cost(), outcome=each) for each in ("keeps", "breaks"))
    mixed = replace(plain, policies=(replace(first, costs=(broken,)), replace(second, costs=(kept,))))
    assert [each.name for each in mixed.ranking()] == [second.name, first.name]
    assert [each.name for each in mixed.ties()] == [second.name]


@pytest.mark.slow
def test_per_step_counts_the_steps_before_an_end_alone() -> None:
    """Always to the right, from cells 0, 1, 2: what cell 2 costs is paid once in three, two and one steps."""
    data, gamma = corridor_log(), 0.8
    data = with_costs(data, edge=(data.obs[:, 0] == 2.0))

    class Right:
        def predict(self, obs: np.ndarray) -> np.ndarray:
            return np.ones((len(obs), 1), dtype=np.float32)

    settings = {**SETTINGS, "gamma": gamma, "updates": 800, "model_rollouts": False, "coverage_limit": 1.0}
    (policy,) = judge(Right(), data, limits={"edge": 0.3}, **settings).policies
    (edge,) = policy.costs
    paid, lived = (gamma**2 + gamma + 1) / 3, (3 + 2 * gamma + gamma**2) / 3
    assert paid / lived == pytest.approx(0.465649, rel=1e-5) and paid * (1 - gamma) < 0.3
    assert abs(edge.value - paid / lived) < 0.04 and edge.outcome == "breaks"


# ---- by hand


def values(found: list[float], members: list[float], limit: Limit, **changes: Any) -> CostValues:
    """One policy and the behaviour, whose networks say `members`; no drift, no residuals."""
    log = JudgedLog(
        *(np.zeros((20, 1), np.float32),) * 3,
        np.arange(20, dtype=np.float32),
        *(np.arange(20) % 2 == 1,) * 2,
        gamma=0.9,
    )
    each = np.array([members, members])
    fitted: Any = SimpleNamespace(
        values=each,
        level_error=lambda index, horizon: 0.0,
        drift=lambda index: 0.0,
        progress=9.0,
        updates=900,
    )
    passed = Check("passed", "")
    return CostValues(
        **{
            "name": "heat",
            "limit": limit,
            "log": log,
            "fitted": fitted,
            "steps": None,
            "found": np.array(found),
            "further": 1.0,
            "falsification": passed,
            **changes,
        }
    )


SEEN = [0.0] * 98 + [0.25, 0.75]
CONFIG = small(gamma=0.9)
FIELDS = ("obs", "actions", "rewards", "next_obs", "dones")


def test_what_one_log_cannot_exclude_is_never_excluded() -> None:
    """ln(20) of a hundred episodes like the two costly ones: 0.0299573 x 0.5."""
    surely = values(SEEN, [0.0, 0.0, 0.0], Limit("heat", 0.0149))
    found = surely.judge(0, CONFIG)
    assert found.high == pytest.approx(0.01497866, rel=1e-6) and found.outcome == "cannot tell"
    assert values(SEEN, [0.0] * 3, Limit("heat", 0.0151)).judge(0, CONFIG).outcome == "keeps"
    often = [0.0] * 90 + [0.25, 0.75] * 5
    assert values(often, [0.0] * 3, Limit("heat", 0.0001)).judge(0, CONFIG).outcome == "keeps"
    never = values([0.0] * 100, [0.0] * 3, Limit("heat", 0.5)).judge(0, CONFIG)
    assert never.outcome == "cannot tell" and "nothing is known of what leads to it" in never.sentence


def test_an_outcome_is_what_the_whole_interval_says() -> None:
    """Members 0.8, 1, 1.2 of a horizon of 10 steps: 0.1 per step, plus and minus 2.919986 x 0.02."""
    low, high = 0.1 - 2.919986 * 0.02, 0.1 + 2.919986 * 0.02
    for bound, outcome in (
        (0.159, "keeps"),
        (0.158, "cannot tell"),
        (0.042, "cannot tell"),
        (0.041, "breaks"),
    ):
        found = values(SEEN, [0.8, 1.0, 1.2], Limit("heat", bound)).judge(0, CONFIG)
        assert (found.low, found.high) == pytest.approx((low, high), rel=1e-5)
        assert found.outcome == outcome
    sums = values(SEEN, [0.8, 1.0, 1.2], Limit("heat", 3.0, "episode"), further=1.5).judge(0, CONFIG)
    assert sums.value == pytest.approx(1.5) and sums.outcome == "keeps"


def test_what_cannot_be_trusted_keeps_nothing() -> None:
    limit = Limit("heat", 0.9)
    sound = values(SEEN, [0.8, 1.0, 1.2], limit)
    assert sound.judge(0, CONFIG).outcome == "keeps"
    refused = sound.judge(0, CONFIG, doubt="the policy failed a check")
    assert refused.outcome == "cannot tell" and "the policy failed a check" in refused.sentence
    wrong = replace(sound, falsification=Check("refused", "Values are wrong."))
    told = wrong.judge(0, CONFIG)
    assert told.outcome == "cannot tell" and told.sentence.endswith("; values are wrong.")
    unsettled = replace(sound, fitted=SimpleNamespace(**{**vars(sound.fitted), "progress": 1.0}))
    assert unsettled.judge(0, CONFIG).outcome == "cannot tell"
    apart = sound.judge(0, CONFIG, worlds=np.array([0.95, 0.95, 0.95]))
    assert apart.outcome == "cannot tell" and apart.high > 0.95  # the second method says otherwise
    unknown = sound.judge(0, CONFIG, worlds=np.full(3, np.nan))
    assert set(unknown.estimates) == {"fqe"}


def cost(**changes: Any) -> CostJudgement:
    return CostJudgement(**{"name": "heat", "per": "step", "value": 0.1, "low": 0.0, "high": 0.2, **changes})


def test_all_limits_together_are_as_good_as_the_worst() -> None:
    kept, broken, unclear = (cost(limit=1.0, outcome=each) for each in ("keeps", "breaks", "cannot tell"))
    assert limits_kept([]) is None and limits_kept([cost()]) is None
    assert limits_kept([cost(), kept]) == "keeps"
    assert limits_kept([kept, unclear]) == "cannot tell"
    assert limits_kept([broken, unclear, kept]) == "breaks"
    assert cost(limit=0.1).excess == pytest.approx(1.0) and cost().excess == 0.0


def test_steps_left_are_seen_until_the_end() -> None:
    """An episode of three steps that ended by itself could have gone on for four, as the longest did."""
    ends, dones = np.zeros(7, bool), np.zeros(7, bool)
    ends[[2, 6]], dones[2] = True, True
    column = np.arange(7, dtype=np.float32)[:, None]
    log = JudgedLog(column, column, column + 1, column[:, 0], dones, ends, gamma=0.9)
    whole = until_the_end(log)
    assert whole.obs[:, 1].tolist() == [4, 3, 2, 4, 3, 2, 1]
    assert whole.next_obs[:, 1].tolist() == [3, 2, 1, 3, 2, 1, 0]
    assert whole.gamma == 1.0 and whole.dones.tolist() == ends.tolist()


def test_operators_act_until_the_end_of_an_episode() -> None:
    """Two of four rows, of which the first ended by itself: the second operator takes over in row 6."""
    ends, dones = np.zeros(8, bool), np.zeros(8, bool)
    ends[[3, 7]], dones[3] = True, True
    column = np.zeros((8, 1), np.float32)
    log = JudgedLog(column, column, column, column[:, 0], dones, ends, gamma=0.9)
    first = Operator("a", np.array([1, 1, 1, 1, 1, 0, 0, 0], bool), np.array([0, 4]))
    second = Operator("b", np.array([0, 0, 0, 0, 0, 0, 1, 0], bool), np.array([6]))
    late = Operator("c", np.zeros(8, bool), np.array([7]))
    found = with_last_rows([first, second, late], log)
    assert [np.flatnonzero(each.rows).tolist() for each in found] == [[0, 1, 2, 3, 4], [6, 7], [7]]


@pytest.mark.slow
def test_operators_cost_what_they_do_in_an_episode() -> None:
    """Ten steps of a^2 under a ~ N(-k s, sigma^2), from states uniform in [-1, 1]."""
    logs = [feedback_log(20, 10, seed=seed, k=k, sigma=0.3) for seed, k in enumerate((0.3, -0.6))]
    columns = [np.concatenate([getattr(each, name).numpy() for each in logs]) for name in FIELDS]
    who = torch.arange(2).repeat_interleave(200).int()
    data = TransitionDataset(*columns, truncations=np.arange(400) % 10 == 9)
    data = TransitionDataset.from_store(data.store.updated({"operators": who}), info=data.info)
    settings = {**SETTINGS, "model_rollouts": False}
    found = judge(
        Proportional(0.3),
        with_costs(data, work=data.actions**2),
        limits={"work": "9 per episode"},
        **settings,
    )
    sums = (columns[1].reshape(2, 20, 10) ** 2).sum(-1).mean(-1)
    for operator, logged in zip(found.operators, sums, strict=True):
        (work,) = operator.costs
        assert abs(work.value - logged) < 0.3 and work.low <= logged <= work.high


def test_limits_must_be_of_costs() -> None:
    data = with_costs(lqr_log(episodes=30), wear=np.ones(300))
    with pytest.raises(ConfigError, match=r"limits names 'waer', which is no cost .*did you mean 'wear'"):
        judge(Proportional(0.3), data, limits={"waer": 1.0}, gamma=0.9)
    with pytest.raises(ConfigError, match="limit of wear must be a number per step"):
        LoggedCosts.of(data, {"wear": "often"})
    told = LoggedCosts.of(data, {}).told
    assert (told[0].per_step, told[0].per_episode, told[0].episodes_within) == (1.0, 10.0, None)


def test_what_networks_say_means_what_such_rows_cost() -> None:
    """A threshold as a network tells it: errors of a hundredth where nothing is paid must not be paid."""
    told = np.array([0.01, -0.01, 0.02, 0.0, 0.6, 0.5, 0.9, 1.1])
    paid = np.array([0.0, 0.0, 0.0, 0.0, 2.0, 0.0, 2.0, 2.0])
    places, means = rising(told, paid)
    np.testing.assert_allclose(places, np.sort(told))
    np.testing.assert_allclose(means, [0, 0, 0, 0, 0, 2, 2, 2])
    places, means = rising(np.array([0.2, 0.1, 0.3]), np.array([0.0, 1.0, 5.0]))
    np.testing.assert_allclose(means, [0.5, 0.5, 5.0])  # where more was said and less was paid: the mean


def test_the_cost_of_a_row_is_learned_from_rows_that_a_network_has_not_seen() -> None:
    log = JudgedLog.from_dataset(feedback_log(20, 10), 0.9)
    every = np.ones(len(log), dtype=np.bool_)
    paid = (log.obs[:, 0] > 0.2).astype(np.float32)
    alone = replace(log, rewards=paid, dones=every, ends=every, gamma=1.0)
    learner = new_learner(alone, small(members=2, hidden_sizes=(8,)))
    rate = CostRate.of(learner, alone)
    unseen = learner.row_weights(alone.columns["episodes"]) == 0
    state, actions = log.columns["obs"].expand(3, -1, -1), log.columns["actions"].expand(3, -1, -1)
    found = rate(state, actions).numpy()
    for world, member in enumerate((0, 1, 0)):  # networks take turns where there are more worlds
        rows = unseen[member].numpy()
        assert found[world, rows].mean() == pytest.approx(paid[rows].mean(), abs=1e-6)
        assert found[world].min() >= 0.0 and found[world].max() <= 1.0
    assert len(rate.curves[0][0]) == int(unseen[0].sum())
