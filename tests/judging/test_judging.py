"""The judgement as a whole: verdicts on policies of known worth, refusals, and what a user gets wrong."""

import json
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from judging_problems import Proportional, lqr_log, lqr_value
from rl_training.core.errors import ConfigError, DataError, UserError
from rl_training.core.spaces import Spaces
from rl_training.data import DataInfo, TransitionDataset
from rl_training.judging import Interval, Judgement, judge, judge_policies
from rl_training.judging.checks import Coverage, coverage, enough_episodes, sample_size, second_opinion
from rl_training.judging.importance import checked_propensities, kernel_log_density
from rl_training.judging.log import JudgedLog
from rl_training.judging.policies import JudgedPolicy
from rl_training.judging.settings import JudgeConfig
from rl_training.judging.verdict import Check, combined, interval, sentence_of, verdict_of, weighted

QUICK: dict[str, Any] = {
    "gamma": 0.9,
    "hidden_sizes": (32, 32),
    "members": 4,
    "updates": 700,
    "learning_rate": 3e-3,
    "batch_size": 64,
    "model_updates": 1000,
    "model_hidden_sizes": (64, 64),
    "model_members": 4,
    "density_updates": 100,
    "rollout_starts": 50,
    "coverage_limit": 0.1,  # 1600 rows leave gaps between them
}
ONLY_VALUES = {**QUICK, "model_rollouts": False, "importance": False}


class Always:
    """One action: 0.6 drives the state away from what is rewarded, 3 is what the log has never seen."""

    def __init__(self, action: float) -> None:
        self.action = action

    def predict(self, obs: np.ndarray) -> np.ndarray:
        return np.full((len(obs), 1), self.action, np.float32)


@pytest.fixture(scope="module")
def log() -> TransitionDataset:
    return lqr_log(episodes=80, length=20)


@pytest.fixture(scope="module")
def judged(log: TransitionDataset) -> Judgement:
    policies = {"good": Proportional(0.7), "bad": Always(0.6), "far": Always(3.0)}
    return judge(policies, log, **QUICK)


@pytest.mark.slow
def test_good_bad_and_unknown_policies_are_told_apart(judged: Judgement, log: TransitionDataset) -> None:
    good, bad, far = judged.policies
    assert (good.verdict, bad.verdict, far.verdict) == ("better", "worse", "refused")
    squares = float((log.obs[::20] ** 2).mean())
    assert good.value == pytest.approx(-lqr_value(0.7) * squares, abs=0.15)
    assert good.low <= good.value <= good.high
    assert good.sentence.startswith("Better than the logged behaviour by ")
    assert bad.sentence.startswith("Worse than the logged behaviour by ")
    assert "further from anything logged" in far.sentence
    assert far.reasons and np.isfinite(far.value)
    assert [each.name for each in judged.ranking()] == ["good", "bad", "far"]


def test_the_answer_does_not_depend_on_the_number_of_threads(log: TransitionDataset) -> None:
    """Sums round by it, and threads that wait for each other made a judgement take many times as long."""
    asked: list[int] = []

    class Curious(Always):
        def predict(self, obs: np.ndarray) -> np.ndarray:
            asked.append(torch.get_num_threads())
            return super().predict(obs)

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        judge(Curious(0.1), log, **{**ONLY_VALUES, "updates": 2})
        assert set(asked) == {1} and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_several_methods_stand_beside_the_headline(judged: Judgement) -> None:
    good = judged.policies[0]
    assert set(good.estimates) == {"fqe", "model", "is", "wis", "pdis", "wpdis", "wdr"}
    assert good.estimates["model"].value == pytest.approx(good.value, abs=0.25)
    assert good.estimates["wdr"].value == pytest.approx(good.value, abs=0.25)
    assert "kernel" in good.estimates["wis"].note and "fitted" in good.estimates["wis"].note
    for name, each in good.estimates.items():
        assert each.low <= each.value <= each.high, name


def test_the_behaviour_is_never_left_out(judged: Judgement) -> None:
    """Cut-off episodes of 20 steps return less than they would have gone on to earn or lose."""
    own = judged.behaviour
    assert own.low < own.value < own.high
    assert own.value < own.mean_return < 0.0
    assert own.checks["falsification"].numbers["correlation"] > 0.5
    assert len(own.calibration) == 10
    values = [value for value, _ in own.calibration]
    assert values == sorted(values)


def test_the_further_a_policy_leads_out_of_the_log_the_less_it_earns_in_the_ranking(
    judged: Judgement, log: TransitionDataset
) -> None:
    for each in judged.policies:
        outside = each.checks["rollout_coverage"].numbers["share_outside"]
        doubt = min(max((outside - 0.4) / 0.4, 0.0), 1.0)
        fitted, model = each.estimates["fqe"], each.estimates["model"]
        lower = min(fitted.value, model.value)
        assert each.score == pytest.approx((1.0 - doubt) * weighted(fitted, model) + doubt * lower, rel=1e-6)
    good, _, far = judged.policies
    assert far.verdict == "refused" and far.checks["rollout_coverage"].numbers["share_outside"] > 0.5
    assert good.verdict == "better" and good.checks["rollout_coverage"].numbers["share_outside"] > 0.0
    # Without a model of where a policy leads, the lower end of what is fitted.
    (alone,) = judge(Always(0.1), log, **{**ONLY_VALUES, "updates": 2}).policies
    assert alone.score == alone.low


@pytest.mark.parametrize(("outside", "score"), [(0.0, 8.0), (0.4, 8.0), (0.6, 6.0), (0.8, 4.0), (1.0, 4.0)])
def test_who_leaves_the_log_is_worth_the_lower_of_both_methods(outside: float, score: float) -> None:
    """Together they say 8, the narrow one 9 and the wide one 4."""
    data = SimpleNamespace(worst_value=-100.0)
    check = {"rollout_coverage": Check("passed", "far", {"share_outside": outside})}
    narrow, wide = Interval(9.0, 8.5, 9.5), Interval(4.0, 2.0, 6.0)
    for first, second in ((narrow, wide), (wide, narrow)):
        found = judge_policies.PolicyJudge.score_of(SimpleNamespace(log=data), first, second, check)  # type: ignore[arg-type]
        assert found == pytest.approx(score)


def test_the_worst_value_is_that_of_the_lowest_rewards() -> None:
    rewards = np.arange(101, dtype=np.float32)
    obs, ends = np.zeros((101, 1), np.float32), np.arange(101) == 100
    never = TransitionDataset(obs, obs, rewards, obs, np.zeros(101), truncations=ends)
    assert JudgedLog.from_dataset(never, 0.5).worst_value == pytest.approx(1.0 * 2.0)
    ended = TransitionDataset(obs, obs, rewards, obs, ends.astype(np.float32))
    assert JudgedLog.from_dataset(ended, 0.5).worst_value == 0.0  # an end comes before any reward
    assert JudgedLog.from_dataset(replace_rewards(ended, rewards - 11.0), 0.5).worst_value == -20.0


def replace_rewards(data: TransitionDataset, rewards: np.ndarray) -> TransitionDataset:
    return TransitionDataset(data.obs, data.actions, rewards, data.next_obs, data.dones)


def test_everything_is_plain_data(judged: Judgement) -> None:
    told = json.loads(json.dumps(judged.to_dict()))
    good = told["policies"][0]
    assert good["verdict"] == "better"
    assert good["per_step"] == pytest.approx(0.1 * good["value"])
    assert told["settings"]["gamma"] == 0.9
    assert told["data"]["episodes"] == 80


def test_a_choice_within_noise_is_a_tie(judged: Judgement) -> None:
    """Members are compared in pairs: what sets all values of one resample apart does not count."""
    assert [each.name for each in judged.ties()] == ["good"]
    good, bad, far = judged.policies
    noise = 5.0 * np.arange(len(good.members))
    first = replace(good, members=tuple(noise + 1.0))
    close = replace(bad, members=tuple(noise + 1.0 + np.array([-0.1, 0.1, -0.1, 0.1])))
    assert [each.name for each in replace(judged, policies=(first, close, far)).ties()] == ["good", "bad"]
    clear = replace(bad, members=tuple(noise + np.array([-0.1, 0.1, -0.1, 0.1])))
    assert [each.name for each in replace(judged, policies=(first, clear, far)).ties()] == ["good"]


def test_evidence_is_in_the_users_units(judged: Judgement, log: TransitionDataset) -> None:
    (action,) = judged.policies[0].evidence.actions
    obs, logged = log.obs.numpy(), log.actions.numpy()
    assert action.name == "action 0"
    assert action.mean_difference == pytest.approx(float(np.abs(-0.7 * obs - logged).mean()), rel=1e-4)
    assert action.logged_mean == pytest.approx(float(logged.mean()), abs=1e-5)
    far = judged.policies[2].evidence
    assert all(state.action == {"action 0": 3.0} for state in far.uncovered)
    assert far.map_outside and not far.map_inside


def test_judging_twice_gives_the_same_bytes(log: TransitionDataset) -> None:
    settings = {**QUICK, "updates": 40, "model_updates": 40, "density_updates": 40}
    first, again = (judge(Proportional(0.3), log, **settings).to_dict() for _ in range(2))
    first["seconds"] = again["seconds"] = 0.0
    assert json.dumps(first) == json.dumps(again)


@pytest.mark.parametrize(
    ("episodes", "settings", "message"),
    [
        (19, {}, "The log has only 19 episodes; log more of them: 20 are the least that can tell"),
        (4, {"min_episodes": 5}, "only 4 episodes; log more of them: 5 are the least"),
        (1, {"min_episodes": 2}, "The log is one single episode; if it holds several, mark where each"),
    ],
)
def test_few_episodes_are_refused_before_anything_is_fitted(
    episodes: int, settings: dict[str, int], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judge_policies, "actions_in_the_log", None)
    with pytest.raises(DataError, match=message):
        judge(Proportional(0.7), lqr_log(episodes=episodes, length=20), **{**ONLY_VALUES, **settings})


@pytest.mark.filterwarnings("error")
def test_the_fewest_episodes_leak_no_warning() -> None:
    (policy,) = judge(
        Proportional(0.7), lqr_log(2, 20), **{**QUICK, "updates": 20, "min_episodes": 2}
    ).policies
    assert policy.verdict == "refused"
    with pytest.raises(ConfigError, match="min_episodes must be >= 2, got 1"):
        judge(Proportional(0.7), lqr_log(2, 20), min_episodes=1)


def test_a_log_without_ends_is_told_what_it_lacks(log: TransitionDataset) -> None:
    endless = TransitionDataset(log.obs, log.actions, log.rewards, log.next_obs, log.dones)
    check = enough_episodes(JudgedLog.from_dataset(endless, 0.9), JudgeConfig())
    assert check.outcome == "refused"
    assert check.reason.startswith("The log is one single episode; if it holds several, mark where each")


def test_a_log_without_rewards_is_refused(log: TransitionDataset) -> None:
    blind = TransitionDataset.from_store(log.store, info=replace(log.info, rewards_known=False))
    with pytest.raises(DataError, match="the log has no rewards"):
        judge(Proportional(0.3), blind, **ONLY_VALUES)


def test_rewards_that_belong_to_other_rows_are_noticed(log: TransitionDataset) -> None:
    order = torch.randperm(len(log), generator=torch.Generator().manual_seed(0))
    shuffled = log.with_columns({"rewards": log.rewards[order]})
    (policy,) = judge(Proportional(0.7), shuffled, **ONLY_VALUES).policies
    assert policy.verdict == "refused"
    assert policy.checks["falsification"].outcome == "refused"


def test_too_few_updates_are_refused(log: TransitionDataset) -> None:
    (policy,) = judge(Proportional(0.7), log, **{**ONLY_VALUES, "updates": 100}).policies
    assert policy.checks["convergence"].outcome == "refused"
    assert "100 updates are too few for this discount; 600 are needed" in policy.sentence


def test_logged_propensities_are_used_where_there_are_any(log: TransitionDataset) -> None:
    """Uniform on [-1, 1] in the data's units: log 1/2, here with a little noise as a logger rounds."""
    noise = torch.linspace(-1e-3, 1e-3, len(log))
    column = {"behavior_logprobs": np.log(0.5) + noise}
    store = log.store.updated(column)
    with_them = TransitionDataset.from_store(store, info=log.info)
    settings = {**QUICK, "updates": 20, "model_rollouts": False}
    (policy,) = judge(Proportional(0.3), with_them, **settings).policies
    assert "as logged" in policy.estimates["wis"].note


@pytest.mark.parametrize(
    ("values", "complaint"),
    [([0.1, np.inf], "finite log-densities"), ([-0.7, -0.7], "are all -0.7")],
)
def test_propensities_that_are_no_densities_are_refused(values: list[float], complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        checked_propensities(np.array(values), Spaces(1, (-1.0,), (1.0,)), "log.csv")


def test_propensities_change_units_with_the_actions() -> None:
    found = checked_propensities(np.array([-1.0, -2.0]), Spaces(1, (0.0,), (100.0,)), "log.csv")
    np.testing.assert_allclose(found, np.array([-1.0, -2.0]) + np.log(50.0))


class Wrong:
    def __init__(self, actions: np.ndarray) -> None:
        self.actions = actions

    def predict(self, obs: np.ndarray) -> np.ndarray:
        return np.repeat(self.actions[None], len(obs), axis=0)


class Bounded(Proportional):
    def __init__(self, spaces: Spaces) -> None:
        super().__init__(0.3)
        self.spaces = spaces


@pytest.mark.parametrize(
    ("policy", "complaint"),
    [
        (Wrong(np.zeros(2)), r"predict must give shape \(1600, 1\)"),
        (Wrong(np.array([np.nan])), "gave NaN or infinity"),
        (Bounded(Spaces(3, (-1.0,), (1.0,))), "has 3 observations and 1 actions, data in memory has 1 and 1"),
        (Bounded(Spaces(1, (-0.1,), (0.1,))), "are the units the same"),
        ("runs/RUN", "policies must have predict"),
        ([], "at least one policy"),
    ],
)
def test_policies_that_do_not_fit_are_named(log: TransitionDataset, policy: Any, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        judge(policy, log, **ONLY_VALUES)


def test_bounds_of_the_data_are_compared_with_the_policys(log: TransitionDataset) -> None:
    stated = TransitionDataset.from_store(log.store, info=DataInfo(spaces=Spaces(1, (-1.0,), (1.0,))))
    with pytest.raises(DataError, match=r"states the bounds \[-1, 1\]: are the units the same"):
        judge(Bounded(Spaces(1, (-2.0,), (2.0,))), stated, **ONLY_VALUES)


def test_settings_are_checked(log: TransitionDataset) -> None:
    with pytest.raises(ConfigError, match="members must be >= 2, got 1"):
        judge(Proportional(0.3), log, members=1)
    with pytest.raises(ConfigError, match="did you mean"):
        judge(Proportional(0.3), log, gama=0.9)


def test_torn_and_broken_data_is_named(log: TransitionDataset) -> None:
    with pytest.raises(DataError, match="torn apart"):
        judge(Proportional(0.3), log.select_rows(torch.arange(50)), **ONLY_VALUES)
    rewards = log.rewards.clone()
    rewards[7] = float("nan")
    with pytest.raises(DataError, match="rewards must be finite"):
        judge(Proportional(0.3), log.with_columns({"rewards": rewards}), **ONLY_VALUES)


# ---- the parts


def passing(**more: Check) -> Mapping[str, Check]:
    return {"episodes": Check("passed", "Enough."), **more}


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0.1, 2.0, "better"), (-2.0, -0.1, "worse"), (-1.0, 1.0, "indistinguishable")],
)
def test_a_verdict_follows_from_the_difference(low: float, high: float, expected: str) -> None:
    difference = Interval((low + high) / 2, low, high)
    assert verdict_of(difference, passing()) == expected
    assert verdict_of(difference, passing(coverage=Check("refused", "Far."))) == "refused"
    assert verdict_of(difference, passing(actions=Check("warned", "Chatters."))) == expected


def test_sentences_give_sizes_and_bounds_in_order() -> None:
    worse = Interval(-2.0, -3.0, -1.0)
    assert sentence_of("worse", worse, -0.02, {}) == (
        "Worse than the logged behaviour by 2 [1, 3], 0.02 per step."
    )
    unsure = Interval(0.5, -1.0, 2.0)
    assert sentence_of("indistinguishable", unsure, 0.0, {}).endswith("with this data: +0.5 [-1, 2].")


def test_intervals_use_student_and_widen() -> None:
    members = np.array([1.0, 2.0, 3.0])
    found = interval(members, 0.9)
    assert (found.value, found.high) == pytest.approx((2.0, 2.0 + 2.919986), rel=1e-6)
    wider = interval(members, 0.9, extra=1.0)
    assert wider.low == pytest.approx(found.low - 1.0)
    of_mean = interval(members, 0.9, of_mean=True)
    assert of_mean.high == pytest.approx(2.0 + 2.919986 / np.sqrt(3), rel=1e-6)


def test_coverage_counts_what_lies_beyond_the_logs_own_distances(log: TransitionDataset) -> None:
    prepared = JudgedLog.from_dataset(log, 0.9)
    covered = Coverage.of(prepared, neighbours=5, seed=0)
    rows = covered.rows
    assert covered.share_outside(covered.logged) == pytest.approx(0.01, abs=0.005)
    moved = covered.distances(prepared.obs[rows], prepared.actions[rows] + 3.0)
    assert covered.share_outside(moved) == 1.0
    for share, decides, wanted in (
        (0.2, True, "refused"),
        (0.2, False, "warned"),
        (0.04, True, "passed"),
        (0.04, False, "passed"),
    ):
        assert coverage(share, 0.05, reached=False, decides=decides).outcome == wanted


def test_methods_that_point_apart_refuse() -> None:
    config, behaviour = JudgeConfig(), 0.0
    own = Interval(2.0, 1.0, 3.0)
    assert second_opinion(own, Interval(-2.0, -3.0, -1.0), behaviour, 1.0, config).outcome == "refused"
    assert second_opinion(own, Interval(9.0, 8.0, 10.0), behaviour, 1.0, config).outcome == "refused"
    assert second_opinion(own, Interval(9.0, 8.0, 10.0), behaviour, 9.0, config).outcome == "warned"
    assert second_opinion(own, Interval(9.0, 2.5, 15.5), behaviour, 1.0, config).outcome == "passed"
    assert second_opinion(own, Interval(2.5, 1.5, 3.5), behaviour, 1.0, config).outcome == "passed"
    # Both grant 20 at least: 7 apart is little, 15 is not; nor is it where they do not agree on the side.
    far = Interval(20.0, 19.0, 21.0)
    assert second_opinion(far, Interval(27.0, 26.0, 28.0), behaviour, 5.0, config).outcome == "warned"
    assert second_opinion(far, Interval(35.0, 34.0, 36.0), behaviour, 5.0, config).outcome == "refused"
    # Both clearly worse: by how much is another question.
    worse = Interval(-2.0, -3.0, -1.0), Interval(-90.0, -91.0, -89.0)
    assert second_opinion(*worse, behaviour, 1.0, config).outcome == "warned"


def test_sample_size_says_where_weights_stop_carrying() -> None:
    even = [np.zeros(4) for _ in range(30)]
    assert sample_size(even, 30).outcome == "passed"
    one_sided = [np.array([0.0, 0.0, 9.0, 0.0]), *even[1:]]
    found = sample_size(one_sided, 30)
    assert found.outcome == "warned" and "after step 2" in found.reason


class Drawn:
    """A policy with a distribution of its own."""

    spaces = Spaces(1, (-1.0,), (1.0,))
    has_distribution = True

    def __init__(self, head: str) -> None:
        self.metadata = {"actor": {"kind": head}}

    def predict(self, obs: np.ndarray) -> np.ndarray:
        return np.zeros((len(obs), 1), np.float32)

    def distribution(self, obs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.full((len(obs), 1), 0.2), np.full((len(obs), 1), -1.0)


@pytest.mark.parametrize("head", ["unbounded", "tanh_mean", "squashed"])
def test_the_density_follows_the_head(head: str) -> None:
    """log N(0.5; 0.2, e^-1), and for the squashed one the density of atanh(0.5) over 1 - 0.25."""
    obs, actions = np.zeros((1, 1), np.float32), np.array([[0.5]], np.float32)
    (found,) = JudgedPolicy("p", Drawn(head), 1).log_density(obs, actions)
    spread = np.exp(-1.0)

    def normal(x: float) -> float:
        return -0.5 * ((x - 0.2) / spread) ** 2 + 1.0 - 0.5 * np.log(2 * np.pi)

    expected = normal(np.arctanh(0.5)) - np.log(0.75) if head == "squashed" else normal(0.5)
    assert found == pytest.approx(expected, rel=1e-5)


def test_a_policy_without_a_density_has_a_kernel() -> None:
    assert JudgedPolicy("p", Proportional(0.3), 1).log_density(np.zeros((1, 1)), np.zeros((1, 1))) is None
    found = kernel_log_density(np.array([[0.5]], np.float32), np.array([[0.1]], np.float32), np.array([0.2]))
    assert found == pytest.approx(-0.5 * 4.0 - np.log(0.2) - 0.5 * np.log(2 * np.pi), rel=1e-5)


def test_hidden_fields_do_not_reach_the_judge(log: TransitionDataset) -> None:
    """Rows of n steps have discounts of their own, which a judgement does not follow."""
    with_discounts = log.with_columns({"discounts": torch.full((len(log),), 0.81)})
    with pytest.raises(DataError, match="discounts of their own"):
        judge(Proportional(0.3), with_discounts, **ONLY_VALUES)


def test_two_methods_make_one_interval_that_spans_both() -> None:
    """Together, one that is 2 wide counts 7/9 beside one that is 7 wide; a quarter of the way is added."""
    first, second = Interval(2.0, 1.0, 3.0), Interval(4.0, 0.5, 7.5)
    found = combined(first, second, together=True)
    assert (found.value, found.low, found.high) == (pytest.approx((7 * 2.0 + 2 * 4.0) / 9), 0.0, 8.0)
    assert combined(Interval(2.0), second, together=True) == Interval(3.0)
    assert combined(first, replace(second, value=2.0), together=True) == Interval(2.0, 0.5, 7.5)
    found = combined(first, second, together=False)
    assert (found.value, found.low, found.high) == (2.0, 0.0, 8.0)


def test_the_headline_is_the_users_choice(judged: Judgement, log: TransitionDataset) -> None:
    good = judged.policies[0]
    fitted, model = good.estimates["fqe"], good.estimates["model"]
    assert good.value == weighted(fitted, model)
    beyond = abs(fitted.value - model.value) / 4.0
    bounds = min(fitted.low, model.low) - beyond, max(fitted.high, model.high) + beyond
    assert (good.low, good.high) == pytest.approx(bounds)
    quick = {**QUICK, "updates": 20, "model_updates": 20, "importance": False}
    (alone,) = judge(Proportional(0.7), log, headline="fqe", **quick).policies
    assert alone.value == alone.estimates["fqe"].value
