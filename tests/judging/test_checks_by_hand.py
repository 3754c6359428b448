"""Checks, verdicts and rollouts on values that are made up, so that what must come out is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from judging_problems import Proportional, corridor_log, feedback_log, small, tripping_log
from rl_training.algorithms.dynamics import ColumnErrors
from rl_training.core.spaces import Spaces
from rl_training.data import TransitionDataset
from rl_training.judging import checks
from rl_training.judging.checks import Coverage
from rl_training.judging.fqe import FittedValues
from rl_training.judging.judge_policies import PolicyJudge
from rl_training.judging.log import JudgedLog
from rl_training.judging.model import errors_of_the_model, roll_out
from rl_training.judging.policies import JudgedPolicy, PolicyActions
from rl_training.judging.verdict import Interval, PolicyJudgement
from rl_training.models.dynamics import DynamicsEnsemble

MEMBERS = 5


def prepared(data: TransitionDataset, gamma: float = 0.9) -> JudgedLog:
    return JudgedLog.from_dataset(data, gamma)


def values_of(
    log: JudgedLog,
    members: Sequence[np.ndarray],
    *,
    behaviour: np.ndarray | None = None,
    residual: float = 0.0,
    history: Sequence[tuple[int, float]] = ((0, 0.0), (200, 0.0), (300, 0.0)),
) -> FittedValues:
    """Fitted values as stated; `behaviour` are its values of the logged rows."""
    rows, count = len(log), len(members)
    logged = np.zeros((count, rows))
    logged[-1] = np.zeros(rows) if behaviour is None else behaviour
    stood = np.stack(members)
    moved = [(step, stood + change) for step, change in history]
    residuals = np.full(stood.shape, residual)
    final = np.zeros((count - 1, log.episodes))
    return FittedValues(stood, moved, residuals, logged, logged, final, 300, 3.0)


def judge_of(log: JudgedLog, fitted: FittedValues, **changes: Any) -> PolicyJudge:
    config = small(members=MEMBERS, importance=False, **changes)
    spaces = Spaces(log.obs.shape[1], (-4.0,), (4.0,))
    covered = Coverage.of(log, config.neighbours, config.seed)

    def name_of(kind: str, index: int) -> str:
        return f"{kind} {index}"

    return PolicyJudge(
        log=log,
        config=config,
        fitted=fitted,
        operators=(),
        seldom={},
        spaces=spaces,
        name_of=name_of,
        covered=covered,
        dynamics=None,
        importance=None,
        critics={},
        shared={},
    )


def said(log: JudgedLog, fitted: FittedValues, **changes: Any) -> PolicyJudgement:
    policy = Proportional(0.3)
    actions = PolicyActions(policy.predict(log.obs)[:, None], policy.predict(log.next_obs)[:, None])
    return judge_of(log, fitted, **changes).judge(0, JudgedPolicy("p", policy, 1), actions)


NOISE = np.array([-4.0, -2.0, 0.0, 2.0, 4.0])


def test_a_difference_is_taken_network_by_network() -> None:
    """Both share their resamples: what lucky episodes do to both says nothing about which is better."""
    log = prepared(feedback_log())
    paired = said(log, values_of(log, [NOISE + 1.0 + 0.01 * NOISE, NOISE]))
    assert paired.verdict == "better"
    assert paired.difference.value == pytest.approx(1.0)
    assert paired.difference.low == pytest.approx(1.0 - 2.131847 * 0.01 * NOISE.std(ddof=1), rel=1e-5)
    crossed = said(log, values_of(log, [NOISE[::-1] + 1.0, NOISE]))
    assert crossed.verdict == "indistinguishable"


def test_an_error_of_the_level_widens_value_and_difference() -> None:
    """A mean residual of 0.3 over ten steps may be a level of 3."""
    log = prepared(feedback_log())
    still = said(log, values_of(log, [NOISE / 100 + 1.0, NOISE / 100]))
    off = said(log, values_of(log, [NOISE / 100 + 1.0, NOISE / 100], residual=0.3))
    assert (still.verdict, off.verdict) == ("better", "indistinguishable")
    for name in ("low", "high"):
        sign = 1.0 if name == "high" else -1.0
        assert getattr(off, name) - getattr(still, name) == pytest.approx(sign * 3.0)
        assert getattr(off.difference, name) - getattr(still.difference, name) == pytest.approx(sign * 3.0)


def test_a_value_that_still_moves_is_not_believed() -> None:
    log = prepared(feedback_log())
    spread = log.reward_scale.spread
    members = [NOISE / 100, NOISE / 100]

    def outcome(drift: float) -> str:
        moving = values_of(log, members, history=((0, -9.0), (200, -drift * spread), (300, 0.0)))
        return checks.convergence(log, moving, 0, small()).outcome

    assert [outcome(each) for each in (0.0, 0.4, -0.4, 0.6, -0.6)] == [
        "passed",
        "passed",
        "passed",
        "refused",
        "refused",
    ]


def test_draws_are_looked_at_in_the_states_that_they_were_drawn_in() -> None:
    log = prepared(feedback_log())
    judging = judge_of(log, values_of(log, [NOISE, NOISE]))
    # The first draw follows the state, the second is twice as strong.
    here = np.stack([-0.3 * log.obs, -0.6 * log.obs], axis=1)
    distances, _ = judging.coverage(PolicyActions(here, here))
    rows = judging.covered.rows
    for draw in range(2):
        alone = judging.covered.distances(log.obs[rows], here[rows, draw])
        np.testing.assert_allclose(distances[:, draw], alone, rtol=1e-5)


def test_a_distance_is_the_mean_over_the_nearest_rows() -> None:
    log = prepared(feedback_log())
    points = torch.tensor([[0.0, 0.0], [3.0, 4.0], [6.0, 8.0], [60.0, 80.0]])
    covered = replace(Coverage.of(log, 3, 0), reference=points, neighbours=3)
    obs, actions = log.obs_scale.undo(np.zeros((1, 1))), log.action_scale.undo(np.zeros((1, 1)))
    np.testing.assert_allclose(covered.distances(obs, actions), [(0.0 + 5.0 + 10.0) / 3.0], atol=1e-5)


# ---- falsification: the behaviour's values beside what its episodes went on to earn


def falsified(log: JudgedLog, behaviour: np.ndarray) -> str:
    fitted = values_of(log, [NOISE, NOISE], behaviour=behaviour)
    return checks.falsification(log, fitted, small()).outcome


@pytest.fixture(scope="module")
def ended() -> JudgedLog:
    """All episodes terminate: returns need no value of what comes after."""
    data = feedback_log(episodes=80, sigma=0.1)
    done = data.truncations
    assert done is not None
    return prepared(TransitionDataset(data.obs, data.actions, data.rewards, data.next_obs, done))


def test_right_values_pass_and_wrong_ones_do_not(ended: JudgedLog) -> None:
    returns = ended.returns(ended.rewards)
    draws = np.random.default_rng(0)
    right = returns + 0.1 * returns.std() * draws.normal(size=len(ended))
    assert falsified(ended, right) == "passed"
    assert falsified(ended, right + 2.0 * returns.std()) == "refused"
    assert falsified(ended, right - 2.0 * returns.std()) == "refused"
    assert falsified(ended, -right + 2.0 * returns.mean()) == "refused"
    assert falsified(ended, draws.permutation(right)) == "refused"
    assert falsified(ended, np.full(len(ended), returns.mean())) == "refused"


def test_values_that_plainly_follow_the_returns_need_not_add_up_from_row_to_row() -> None:
    """Operators, each of whom goes on as it began: what comes after a cut-off end tells them apart."""
    log = prepared(feedback_log(episodes=80, length=5))
    draws = np.random.default_rng(0)
    of_operators = 5.0 * log.reward_scale.spread * draws.normal(size=80)
    right = of_operators[log.numbers] + 0.5 * log.reward_scale.spread * draws.normal(size=len(log))
    assert falsified(log, right - right.mean() + log.reward_scale.level) == "passed"


def rare_log(episodes: int, costly: int, seed: int = 0) -> JudgedLog:
    """Episodes of ten rows that end; of a third, the risky ones, `costly` pay 1 in their fifth row."""
    draws = np.random.default_rng(seed)
    risky = np.arange(episodes) % 3 == 0
    obs = np.repeat(risky, 10)[:, None] + 0.01 * draws.normal(size=(10 * episodes, 1))
    rewards, dones = np.zeros(10 * episodes), np.arange(10 * episodes) % 10 == 9
    rewards[10 * draws.permutation(np.flatnonzero(risky))[:costly] + 4] = 1.0
    return prepared(TransitionDataset(obs, obs, rewards, obs, dones.astype(float)), gamma=0.9)


def told_of_cost(log: JudgedLog, exaggerated: float = 1.0, *, blind: bool = False) -> checks.Check:
    """The right values (the share of risky episodes that pay), exaggerated; or some that see no risk."""
    risky = log.obs[:, 0] > 0.5
    share = log.rewards.sum() / max(1, (log.starts % 30 == 0).sum())
    left = np.where(log.steps <= 4, 0.9 ** np.maximum(4 - log.steps, 0), 0.0)
    draws = np.random.default_rng(1)
    right = share * left * (draws.random(len(risky)) < 1 / 3 if blind else risky)
    values = right.mean() + exaggerated * (right - right.mean())
    fitted = values_of(log, [NOISE, NOISE], behaviour=values)
    return checks.falsification(log, fitted, small(), of_cost=True)


def test_values_of_a_rare_cost_are_held_against_its_noise() -> None:
    """Of a hundred risky episodes twelve pay: nothing that is known beforehand says which."""
    log = rare_log(300, costly=12)
    right = told_of_cost(log)
    assert right.outcome == "passed" and right.numbers["plain_correlation"] < 0.5
    assert right.numbers["proportion"] == pytest.approx(1.0, abs=0.1)
    assert (
        checks.falsification(  # as values of a reward that would be too little
            log, values_of(log, [NOISE, NOISE], behaviour=np.where(log.obs[:, 0] > 0.5, 0.1, 0.0)), small()
        ).outcome
        == "refused"
    )
    assert told_of_cost(log, exaggerated=5.0).outcome == "refused"  # a fifth of what is promised comes
    assert told_of_cost(log, blind=True).outcome == "refused"


def test_a_handful_of_costly_episodes_is_no_proof() -> None:
    assert told_of_cost(rare_log(300, costly=2)).outcome == "refused"


def test_the_proportion_of_what_comes_and_its_error() -> None:
    promised, earned = np.array([0.0, 2.0, 0.0, 2.0]), np.array([0.0, 1.0, 0.0, 3.0])
    slope, error = checks.proportion(promised, earned, np.array([0, 0, 1, 1]))
    # Around the means: promised -1 1 -1 1, earned -1 0 -1 2; products 4 of squares 4. What lies beside the
    # line is 0 -1 0 1, times the promises -1 and 1 by episode.
    assert slope == pytest.approx(1.0) and error == pytest.approx(2.0**0.5 / 4.0)


# ---- rollouts in a model whose laws are stated


class Laws(DynamicsEnsemble):
    """Networks that say what they are told: the state moves by `drift`, steps pay 1, one that ends `last`."""

    def __init__(self, log: JudgedLog, drift: float, ends_above: float | None = None) -> None:
        super().__init__(log.obs.shape[1], log.actions.shape[1], 2)
        self.set_scales(log.columns, scaled=True)
        self.change_spread.fill_(1.0)
        self.drift, self.ends_above, self.asked = drift, ends_above, list[np.ndarray]()
        self.pays = self.last = float(log.reward_scale.rewards(np.ones(1, np.float32))[0])

    @property
    def learner(self) -> Any:
        return SimpleNamespace(dynamics=self, has_ends=self.ends_above is not None)

    def forward(self, obs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        self.asked.append(obs.numpy().copy())
        mean = torch.cat([torch.full_like(obs, self.drift), torch.full_like(obs[..., :1], self.pays)], -1)
        return mean, torch.full_like(mean, -30.0)

    def ends(self, obs: Tensor, actions: Tensor, next_obs: Tensor) -> tuple[Tensor, Tensor]:
        odds = torch.where(next_obs[..., 0] > self.ends_above, 50.0, -50.0)
        return odds, torch.full_like(odds, self.last)


def test_rollouts_stay_in_what_was_seen_and_go_on_for_ever() -> None:
    log = prepared(feedback_log())
    laws = Laws(log, drift=0.5)
    rolled = roll_out(laws.learner, log, JudgedPolicy("p", Proportional(0.3), 1), small())
    np.testing.assert_allclose(rolled.values, 10.0, rtol=1e-4)  # 1 a step for ever, at 0.9
    seen = np.concatenate([log.columns["obs"].numpy(), log.columns["next_obs"].numpy()])
    reached = np.concatenate([each.reshape(-1) for each in laws.asked])
    assert reached.max() == pytest.approx(seen.max()) and reached.min() >= seen.min()


def test_an_end_is_asked_of_where_a_step_leads() -> None:
    """Ends above the middle: the step that leads there is the last one that pays."""
    log = prepared(corridor_log(), gamma=0.5)
    middle = float(log.obs_scale.apply(np.array([[1.5]]))[0, 0])
    step = float(log.obs_scale.apply(np.array([[1.0]]))[0, 0] - log.obs_scale.apply(np.array([[0.0]]))[0, 0])
    laws = Laws(log, drift=step, ends_above=middle)
    rolled = roll_out(laws.learner, log, JudgedPolicy("p", Proportional(0.3), 1), small(gamma=0.5))
    first = log.obs[log.starts, 0]
    # From cell 0 two steps pay (1 + 1/2), from 1 and 2 one does.
    draws = np.where(first == 0, 1.5, 1.0)
    assert abs(rolled.values.mean() - draws.mean()) < 0.1


def test_only_members_that_have_not_seen_an_episode_say_how_it_goes_on() -> None:
    """One says that nothing moves, the other that all drifts by 1; who has seen an episode is silent."""
    log = prepared(feedback_log())

    class Two(Laws):
        def forward(self, obs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
            mean, log_std = super().forward(obs, actions)
            mean[1, :, 0] = 1.0
            return mean, log_std

    laws = Two(log, drift=0.0)
    laws.lowest.fill_(-1e9)
    laws.highest.fill_(1e9)

    def told(seen: tuple[float, float]) -> ColumnErrors:
        learner: Any = SimpleNamespace(
            dynamics=laws,
            row_weights=lambda episodes: torch.tensor(seen)[:, None].expand(2, len(episodes)),
        )
        return errors_of_the_model(log, learner, lambda kind, index: kind, None)[0]

    still, moved = told((0.0, 1.0)), told((2.0, 0.0))
    assert still.column == "observation" and still.model == pytest.approx(still.unchanged)
    spread = float(log.obs_scale.spread[0])
    assert moved.model[1] > 5.0 * spread, "ten steps of 1, in the units of the log"


class Nothing:
    def predict(self, obs: np.ndarray) -> np.ndarray:
        return np.zeros((len(obs), 1), np.float32)


@pytest.mark.parametrize(("chance_ends", "value"), [(0, 1.75), (10, 1.0)])
def test_who_passes_a_bound_that_ends_episodes_has_ended(chance_ends: int, value: float) -> None:
    """Heat 0, .9, 1.8: three steps pay 1 + 1/2 + 1/4. A network that says otherwise is asked only where some
    ends lie elsewhere: here it ends everybody in the first step."""
    log = prepared(tripping_log(chance_ends=chance_ends), gamma=0.5)
    laws = Laws(log, drift=0.9 / float(log.obs_scale.spread[0]), ends_above=-1e9)
    rolled = roll_out(laws.learner, log, JudgedPolicy("p", Nothing(), 1), small(gamma=0.5))
    np.testing.assert_allclose(rolled.values, value, rtol=1e-5)
    laws.ends_above = 1e9  # it says that nobody ever ends
    rolled = roll_out(laws.learner, log, JudgedPolicy("p", Nothing(), 1), small(gamma=0.5))
    np.testing.assert_allclose(rolled.values, 1.75, rtol=1e-5)
    laws.last = float(log.reward_scale.rewards(np.full(1, -3.0, np.float32))[0])  # and an end costs 3
    rolled = roll_out(laws.learner, log, JudgedPolicy("p", Nothing(), 1), small(gamma=0.5))
    np.testing.assert_allclose(rolled.values, 1.0 + 0.5 - 0.75, rtol=1e-5)


def test_an_interval_of_one_method_holds_what_the_other_says() -> None:
    log = prepared(feedback_log())
    judging = judge_of(log, values_of(log, [NOISE / 100 + 1.0, NOISE / 100]), headline="fqe")
    own, difference = judging.headline(0, Interval(-2.0, -3.0, -1.0))
    assert own.low == pytest.approx(-3.75) and own.value == pytest.approx(1.0)
    assert difference.low == pytest.approx(-3.75) and difference.value == pytest.approx(1.0)
