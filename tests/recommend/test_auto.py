"""From a log to one recommended policy, or to an honest no."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import rl_training
from rl_training.cli import main
from rl_training.config.limits import Limit
from rl_training.core.errors import ConfigError, DataError, RunFailed
from rl_training.core.spaces import FloatArray, Spaces
from rl_training.data import DataInfo, TransitionDataset
from rl_training.data.splits import episode_values, split_episodes
from rl_training.judging.candidates import sentence_of_dial
from rl_training.judging.verdict import (
    ActionComparison,
    BehaviourJudgement,
    CostJudgement,
    Evidence,
    Interval,
    Judgement,
    LimitOutcome,
    LoggedCost,
    OperatorJudgement,
    PolicyJudgement,
    Verdict,
)
from rl_training.policies.acting import ActingPolicy
from rl_training.recommend import auto as search
from rl_training.recommend import portfolio as portfolio_module
from rl_training.recommend.choice import Choice, choose, confirmed, what_to_log
from rl_training.recommend.portfolio import Recipe, affordable
from rl_training.report.auto_page import auto_page
from rl_training.sweeps.workers import RayAnswers

# ---- the choice


def judged(
    name: str,
    gain: float,
    verdict: Verdict = "better",
    *,
    away: float = 1.0,
    noise: float = 1.0,
    best: float = -99.0,
) -> PolicyJudgement:
    """A policy that gains so much, with actions so far from the log; `noise` decides what ties with it,
    and the log's `best` operator gains so much.
    """
    members = tuple(gain + noise * each for each in (-1.0, 0.0, 1.0))
    action = ActionComparison("valve", away, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    gap = Interval(gain, gain - 1.0, gain + 1.0)
    return PolicyJudgement(
        name, gain, gain - 1.0, gain + 1.0, gap, verdict, f"{name} says so.", (), {"fqe": gap}, {},
        Evidence(actions=(action,)), gain, members,
        operators={"Ada": Interval(gain - best, gain - best - 1.0, gain - best + 1.0)},
    )  # fmt: skip


def judgement(*policies: PolicyJudgement) -> Judgement:
    own = BehaviourJudgement(0.0, -1.0, 1.0, 0.0, {}, ())
    return Judgement(policies, own, {}, {"confidence": 0.9, "gamma": 0.9}, (), 1.0)


def test_the_first_of_the_order_is_taken() -> None:
    found = judgement(judged("iql", 5.0), judged("bc", 0.1, "indistinguishable"), judged("td3_bc", 9.0))
    assert choose(found, [10.0]).name == "td3_bc"


def test_of_those_that_cannot_be_told_apart_the_one_closest_to_the_log_is_taken() -> None:
    far, near = judged("far", 9.0, away=5.0, noise=3.0), judged("near", 8.5, away=2.0, noise=-3.0)
    chosen = choose(judgement(far, near), [10.0])
    assert chosen.name == "near" and chosen.sentence == (
        "Recommended: near. near says so. This log cannot tell it from far; it stays closest to what was "
        "logged."
    )
    little = judged("little", 4.0, away=0.1, noise=-3.0)
    assert choose(judgement(far, little), [10.0]).name == "far", "half of the gain is not nearly as much"
    less = judged("less", 8.5, away=0.1, noise=3.0)  # on every resample half a unit below
    assert choose(judgement(far, less), [10.0]).name == "far", "what is told apart does not stand in"


def test_what_is_worse_than_an_operator_is_not_recommended() -> None:
    found = judgement(judged("iql", 5.0, best=6.5), judged("bc", 2.0, best=6.5))
    none = choose(found, [10.0])
    assert none.name is None and none.reason == (
        "An operator of this log earns more than every candidate. iql comes closest: iql says so."
    )
    level = judgement(judged("iql", 5.0, best=6.5), judged("bold", 4.0, best=4.5))
    assert choose(level, [10.0]).name == "bold", "not told apart from the best operator is enough"


def test_nothing_is_recommended_where_nothing_is_better() -> None:
    found = judgement(
        judged("a", 99.0, "refused"), judged("b", 1.0, "indistinguishable"), judged("c", -5.0, "worse")
    )
    assert choose(found, [1.0]) == Choice(
        None,
        "Of 3 candidates none is better than what was logged: 1 cannot be judged, 1 cannot be told from "
        "what was logged, 1 are worse.",
    )


def test_what_is_not_better_on_fresh_resamples_is_not_recommended() -> None:
    first = choose(judgement(judged("iql", 5.0)), [1.0])
    assert confirmed(first, judgement(judged("iql", 5.0))) == first
    less = replace(judged("iql", 3.0), sentence="Better by 3.")
    told = confirmed(first, judgement(less)).sentence
    assert told == "Recommended: iql. Better by 3.", "what is told had no part in the choice"
    second = confirmed(first, judgement(judged("iql", 0.4, "indistinguishable")))
    assert second.name is None and "judged again on fresh resamples it is not better" in second.reason


def test_minutes_are_shared_by_the_measured_cost_of_an_update() -> None:
    # 10 minutes, 60 % of them for 3 trainings: 120 s each
    assert affordable([0.01, 0.05, 1.0], 10.0) == [12_000, 2_400, 1_000]
    assert affordable([1e-4], 10.0) == [20_000]
    # 240 s are taken by a training of fixed length: 40 s each are left
    assert affordable([0.01, 0.02, 0.002], 10.0, 240.0) == [4_000, 2_000, 20_000]
    assert affordable([0.01], 1.0, 500.0) == [1_000], "never less"


def test_a_training_in_stages_is_measured_stage_by_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    """An update takes 1 s in the first stage that is longer than one update."""
    seen = []
    (found,) = (each for each in portfolio_module.CONTINUOUS if each.name == "lion")
    lion = found.at_length({"model_updates": 2000, "behavior_updates": 1000, "policy_updates": 250})

    def seconds(config: Any, *_: Any) -> float:
        lengths = [config.algo_kwargs[name] for name in lion.stages]
        seen.append(lengths)
        return {0: 0.001, 1: 0.01, 2: 0.1}[next(i for i, length in enumerate(lengths) if length > 1)]

    monkeypatch.setattr(portfolio_module, "seconds_per_update", seconds)
    spaces = Spaces(2, (0.0,), (100.0,))
    common = portfolio_module.Common({"dataset_path": "log.csv"}, spaces, 0.9, 0, 0.2, 1.0)
    whole = plant_log()
    taken = portfolio_module.seconds_of_stages(lion, common, Path("runs"), whole, spaces)
    assert taken == pytest.approx(2_000 * 0.001 + 1_000 * 0.01 + 250 * 0.1)
    assert seen == [[2000, 1000, 250], [1, 1000, 250], [1, 1, 250]]


def test_few_minutes_try_less(tmp_path: Path) -> None:
    spaces = Spaces(2, (0.0,), (100.0,))
    tried = [portfolio_module.portfolio(spaces, minutes) for minutes in (4.9, 5.0)]
    names = [[each.name for each in recipes] for recipes in tried]
    assert names[0] == ["lion", "td3_bc", "td3_bc-bold", "iql"] and len(names[1]) == 6
    for minutes, early in ((4.9, 1000), (5.0, 500)):
        common = portfolio_module.Common({"dataset_path": "log.csv"}, spaces, 0.9, 0, 0.2, minutes)
        assert common.config(Recipe("iql", "iql", {}), tmp_path, 1000).checkpoint_interval == early
        assert common.config(Recipe("bc", "bc", {}), tmp_path, 1000).checkpoint_interval == 1000


# ---- limits


def costing(outcome: LimitOutcome, value: float | None = None) -> tuple[CostJudgement, ...]:
    """A cost with the limit 1."""
    if value is None:
        value = {"keeps": 0.5, "cannot tell": 1.0, "breaks": 1.5}[outcome]
    return (CostJudgement("heat", "step", value, value - 0.1, value + 0.1, 1.0, outcome),)


def limited(behaviour: LimitOutcome, *policies: PolicyJudgement, **costs: LimitOutcome) -> Judgement:
    """Policies by name keep the limit, break it, or nobody can tell; so does the log's own behaviour."""
    given = [replace(each, costs=costing(costs[each.name])) for each in policies]
    found = judgement(*given)
    return replace(found, behaviour=replace(found.behaviour, costs=costing(behaviour)))


def test_what_does_not_keep_a_limit_is_never_recommended_whatever_it_earns() -> None:
    policies = (judged("wild", 99.0), judged("odd", 50.0), judged("safe", 2.0))
    found = limited("keeps", *policies, wild="breaks", odd="cannot tell", safe="keeps")
    assert choose(found, [10.0]).name == "safe"
    none = choose(limited("keeps", *policies[:2], wild="breaks", odd="cannot tell"), [10.0])
    assert none.name is None and none.reason == (
        "Of 2 candidates none is better than what was logged and shown to keep limits. "
        "odd comes nearest: odd says so."
    )


def test_where_the_log_itself_breaks_a_limit_the_best_that_keeps_it_is_taken_also_if_it_earns_less() -> None:
    policies = (
        judged("wild", 99.0),
        judged("poor", -9.0, "worse"),
        judged("fair", -2.0, "indistinguishable"),
    )
    outcomes: dict[str, LimitOutcome] = {"wild": "breaks", "poor": "keeps", "fair": "keeps"}
    assert choose(limited("breaks", *policies, **outcomes), [10.0]).name == "fair"
    for behaviour in ("keeps", "cannot tell"):
        assert choose(limited(behaviour, *policies, **outcomes), [10.0]).name is None
    refused = replace(policies[2], verdict="refused")
    assert choose(limited("breaks", refused, policies[1], fair="keeps", poor="keeps"), [1.0]).name == "poor"


def test_an_operator_above_a_limit_is_no_standard() -> None:
    found = limited("keeps", judged("safe", 5.0, best=6.5), safe="keeps")
    assert choose(found, [10.0]).name is None
    ada = OperatorJudgement("Ada", 6.5, 6.0, 7.0, 20, costing("cannot tell", value=1.05))
    assert choose(replace(found, operators=(ada,)), [10.0]).name == "safe"
    within = replace(ada, costs=costing("cannot tell", value=0.95))
    assert choose(replace(found, operators=(within,)), [10.0]).name is None


def test_a_limit_must_be_kept_on_fresh_resamples_too() -> None:
    first = choose(limited("keeps", judged("iql", 5.0), iql="keeps"), [1.0])
    again = confirmed(first, limited("keeps", judged("iql", 5.0), iql="cannot tell"))
    assert again.name is None and "it is not shown to keep the limits: iql says so" in again.reason


def test_weights_follow_from_rewards_limits_and_costs() -> None:
    """Rewards 0 and 2 have a standard deviation of 1; half of the rows cost 1, ten rows make an episode."""
    whole = costly_log()
    spread = float(whole.rewards.double().std())
    for limit, level in (
        (Limit("heat", 0.1), 0.5),
        (Limit("heat", 2.0), 2.0),
        (Limit("heat", 1.0, "episode"), 0.5),
        (Limit("heat", 8.0, "episode"), 0.8),
    ):
        (weight,) = portfolio_module.penalties(whole, [limit], 5.0).values()
        assert weight == pytest.approx(5.0 * spread / level, rel=1e-2)
    spaces = Spaces(1, (0.0,), (1.0,))
    assert portfolio_module.portfolio(spaces, 20.0, whole, ()) == portfolio_module.CONTINUOUS
    plain, limit = {each.name for each in portfolio_module.CONTINUOUS}, Limit("heat", 0.1)
    tried = {each.name: each for each in portfolio_module.portfolio(spaces, 20.0, whole, [limit])}
    assert {"lion-careful", "iql-strict", "td3_bc-bold-careful"} <= set(tried) - plain
    assert tried["caps"].settings == {"episode_steps": 10}
    two = whole.with_costs({"heat": "heat", "more": "2 * heat"})
    assert "caps" not in {each.name for each in portfolio_module.portfolio(spaces, 20.0, two, [limit])}
    light, heavy = (tried[f"iql-{word}"].settings["penalty"]["heat"] for word in ("careful", "strict"))
    assert heavy == pytest.approx(10 * light, rel=1e-2)
    assert "bc-safe" not in tried  # no episode keeps it
    kept = portfolio_module.portfolio(spaces, 2.0, whole, [Limit("heat", 0.5)])
    few = {each.name for each in kept}  # minutes
    assert {"bc-safe", "iql-strict"} < few and not {"iql-careful", "bc", "caps"} & few


def costly_log() -> TransitionDataset:
    rows = 400
    given = np.zeros((rows, 1)), np.zeros((rows, 1)), 2.0 * (np.arange(rows) % 2), np.zeros((rows, 1))
    info = DataInfo(cost_names=("heat",))
    ends = np.arange(rows) % 10 == 9
    return TransitionDataset(*given, np.zeros(rows), truncations=ends, costs=np.arange(rows) % 2.0, info=info)


# ---- what to log next


def test_where_nothing_is_recommended_something_can_be_logged() -> None:
    unclear, worse = judged("iql", 2.0, "indistinguishable"), judged("bc", -5.0, "worse")
    # the interval reaches from 2 down to -1.9: (3.9 / 2)² is less than 4
    wide = replace(unclear, difference=Interval(2.0, -1.9, 5.9))
    assert what_to_log(judgement(wide, worse)) == (
        "iql seems to gain 2: if so, about 4 times as many episodes would show it.",
    )
    hopeless = replace(unclear, difference=Interval(0.1, -5.0, 5.2))
    assert what_to_log(replace(judgement(hopeless), advice=("Log more episodes.",))) == (
        "Log more episodes.",
    )
    assert "small deliberate changes" in what_to_log(judgement(worse, worse))[0]
    (beaten,) = what_to_log(judgement(judged("iql", 5.0, best=6.5), worse))
    assert beaten.startswith("Log more runs of Ada, who earns more than every candidate")
    (again,) = what_to_log(judgement(judged("iql", 5.0)), fell_back=True)
    assert "a second look did not find it again" in again


def test_what_would_show_that_a_limit_is_kept_can_be_logged() -> None:
    """From 0.9 up to 1.05, the limit is 1: (0.15 / 0.1) squared is more than two."""
    unclear = CostJudgement("heat", "step", 0.9, 0.75, 1.05, 1.0, "cannot tell")
    found = limited("keeps", judged("iql", 5.0), judged("bold", 9.0), iql="keeps", bold="breaks")
    iql, bold = found.policies
    (told,) = what_to_log(replace(found, policies=(replace(iql, costs=(unclear,)), bold)))
    assert told == "iql seems to keep the limit of heat: if so, about 3 times as many episodes would show it."
    logged = LoggedCost("heat", 1.0, 10.0, 30, "1 per step", 0.1)
    worst = limited("breaks", judged("iql", 5.0), judged("bold", 9.0), iql="breaks", bold="breaks")
    (told,) = what_to_log(replace(worst, logged_costs=(logged,)))
    assert told.startswith("Log runs that keep the limit of heat on purpose")


def test_limits_reach_every_training_and_the_judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(search.run_judge, "judge", lambda *_, **settings: asked.append(settings))
    silent = lambda *_: None  # noqa: E731
    fields = {"costs": {"high": "level > 1"}, "limits": {"high": "3 per episode"}}
    whole, place, _ = search.settle_data(plant_log(2000), None, fields, tmp_path, silent)
    assert whole.cost_names == ("high",) and place["limits"] == fields["limits"]
    spaces = Spaces(2, (0.0,), (100.0,))
    looked = search.Search(tmp_path, search.AutoConfig(minutes=2.0), whole, spaces, place, (), silent, silent)
    looked.judge({"bc": Steep()}, whole, 0, "fits")
    assert asked[0]["limits"] == fields["limits"]
    recipes = {each.name: each for each in looked.recipes}
    settings: Any = looked.common.config(recipes["iql-strict"], tmp_path, 100).run_config()
    assert settings.limits == fields["limits"] and settings.penalty.keys() == {"high"}
    assert "--limit 'high: 3 per episode'" in looked.commands([], None)[0]
    with pytest.raises(ConfigError, match="limits names 'hihg', which is no cost"):
        search.settle_data(plant_log(2000), None, {**fields, "limits": {"hihg": 1.0}}, tmp_path, silent)


def test_value_against_dial_is_shown_for_what_has_one() -> None:
    gains = ((0.0, 0.5), (0.25, 1.0), (0.5, 6.0), (1.0, 3.0))
    positions = [judged(f"lion dial {at:g}", gain) for at, gain in gains]
    runs: Any = [SimpleNamespace(name="bc"), SimpleNamespace(name="lion")]
    (curve,) = search.dial_curves(judgement(judged("bc", 0.0), *positions), runs)
    assert curve.name == "lion" and [each.dial for each in curve.positions] == [0.0, 0.25, 0.5, 1.0]
    assert [each.value for each in curve.positions] == [0.5, 1.0, 6.0, 3.0] and curve.recommended == 0.5


def test_a_dial_is_left_where_it_is_recommended_and_nowhere_else() -> None:
    positions = [judged(f"lion dial {at:g}", 10.0 * at) for at in (0.0, 0.5, 1.0)]
    (curve,) = search.dial_curves(judgement(*positions), [SimpleNamespace(name="lion")])  # type: ignore[list-item]
    assert search.left_at(curve, Choice("lion dial 0.5", "")).recommended == 0.5
    for other in (None, "iql"):
        left = search.left_at(curve, Choice(other, ""))
        assert sentence_of_dial(left) == "lion: no position of its dial is recommended."


def test_the_page_says_first_what_helps(tmp_path: Path) -> None:
    """Where none is recommended, what to log next; else the candidates, and one policy by its second look."""
    told = {"rows": 10, "episodes": 2, "source": "log.csv", "mean_length": 5.0}
    settings = {"confidence": 0.9, "gamma": 0.9, "action_draws": 0, "discount_by_time": False}
    unclear = judged("iql", 2.0, "indistinguishable")
    first = replace(judgement(unclear), data=told, settings=settings, advice=("Log more episodes.",))
    none = search.AutoResult(tmp_path, first, Choice(None, "No."), None, {}, (), 1.0, 200.0)
    page = auto_page(none)
    assert [each.title for each in page.sections[:2]] == ["What to log next", "Candidates"]
    assert page.facts[-1] == "The search took 1 s, and 3 min of processor time."
    again = replace(first, policies=(replace(judged("bold", 3.0), sentence="Again."),))
    choice, file = Choice("bold", "Again."), tmp_path / "policy.onnx"
    found = search.AutoResult(tmp_path, first, choice, file, {}, (), 1.0, 2.0, (), again)
    titles = [each.title for each in auto_page(found).sections]
    assert titles[0] == "Candidates" and "bold" in titles and "iql" not in titles


def test_minutes_that_are_too_few_are_told_before_anything_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four trainings: LION's 4,300 updates at 0.01 s are 43 s, three times 1,000 of the others 30."""
    monkeypatch.setattr(search, "seconds_per_update", lambda *_: 0.01)
    monkeypatch.setattr(portfolio_module, "seconds_per_update", lambda *_: 0.01)
    told: list[str] = []
    spaces, silent = Spaces(2, (0.0,), (100.0,)), (lambda *_: None)
    for minutes, expected in (
        (
            1.0,
            ["4 trainings, about 1.2 minutes", "Less than that is not worth judging: it will be more than 1"],
        ),
        (4.0, ["4 trainings, about 2.4 minutes"]),
    ):
        told.clear()
        config, place = search.AutoConfig(minutes=minutes), {"dataset_path": "log.csv"}
        out = tmp_path / f"{minutes}"
        out.mkdir()
        search.Search(out, config, plant_log(2000), spaces, place, (), told.append, silent).plan()
        assert len(told) == len(expected), told
        assert all(line.startswith(start) for line, start in zip(told, expected, strict=True)), told


class Steep(ActingPolicy):
    """valve 60 where the level is above 1.4, else as logged (20); the second column does not matter."""

    def __init__(self) -> None:
        self.spaces = Spaces(2, (0.0,), (100.0,))

    def act(self, obs: Any, deterministic: bool = True, **inputs: Any) -> FloatArray:
        return np.where(obs[:, :1] > 1.4, 60.0, 20.0).astype(np.float32)

    def act_with_novelty(self, obs: Any, **inputs: Any) -> tuple[FloatArray, FloatArray]:
        raise NotImplementedError


def plant_log(rows: int = 1000) -> TransitionDataset:
    rng = np.random.default_rng(0)
    obs = rng.uniform(0.0, 2.0, (rows, 2)).astype(np.float32)
    info = DataInfo(observation_names=("level", "inflow"), action_names=("valve",), units={"level": "m"})
    ends = np.arange(rows) % 50 == 49
    given = obs, np.full((rows, 1), 20.0), obs[:, 0], np.roll(obs, -1, axis=0), np.zeros(rows)
    return TransitionDataset(*given, truncations=ends, info=info)


# ---- the whole way


LOG = ("--obs", "T,level", "--action", "valve", "--reward", "score", "--episode", "run")


def write_log(path: Path, *, episodes: int = 200, reward: str = "close") -> Path:
    """Operators open a valve at random; the reward is nearness of T to 50, which the valve moves."""
    rng = np.random.default_rng(3)
    lines = ["run,T,level,valve,score"]
    for run in range(episodes):
        T = rng.uniform(35, 65)
        for _ in range(12):
            valve, level = rng.uniform(0, 100), rng.uniform(0, 2)
            scores = {"close": -abs(T - 50) / 10, "same": 1.0}
            lines.append(f"{run},{T:.4f},{level:.3f},{valve:.3f},{scores[reward]:.4f}")
            T += 0.2 * (valve - 50) + rng.normal()
    path.write_text("\n".join(lines))
    return path


@pytest.mark.slow
def test_a_policy_of_choices_is_found_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pump pays where the level is low; beside it a valve that pays where it is wide open."""
    monkeypatch.setattr(portfolio_module, "WITH_CHOICES", (Recipe("iql", "iql", {"beta": 10.0}),))
    monkeypatch.setattr(portfolio_module, "WIDTHS", (32,))
    light = {"updates": 500, "model_updates": 500, "members": 3, "importance": False}
    monkeypatch.setattr(search.run_judge, "judge", partial(search.run_judge.judge, **light))
    draws = np.random.default_rng(0)
    level, pump = draws.uniform(-1, 1, 1200), draws.choice(["off", "on"], 1200)
    for actions, bounds in ((["pump{off,on}"], {}), (["pump{off,on}", "valve"], {"action_low": 0.0})):
        valve = draws.uniform(0.0, 10.0, 1200)
        pays = ((level < 0) == (pump == "on")) + valve / 10.0 * (len(actions) - 1)
        frame = {"run": np.arange(1200) // 10, "level": level, "pump": pump, "valve": valve, "pays": pays}
        columns = {"observations": ["level"], "actions": actions, "reward": "pays", "episode": "run"}
        told: list[str] = []
        out = tmp_path / str(len(actions))
        found = search.auto(
            frame, columns=columns, fields=bounds, out=out, gamma=0.01, minutes=0.05, say=told.append
        )
        assert found.recommended, found.sentence
        answer = rl_training.load_policy(found.policy).predict([[-0.5], [0.5]])
        assert answer[:, 0].tolist() == ["on", "off"]
        assert any("Bounds of the actions" in each for each in told) == bool(bounds)


def test_bounds_where_every_action_is_a_choice_are_refused(tmp_path: Path) -> None:
    frame = {"run": np.arange(80) // 2, "level": np.arange(80.0), "pump": np.arange(80) % 2}
    columns = {"observations": ["level"], "actions": ["pump{0,1}"], "reward": "level", "episode": "run"}
    with pytest.raises(ConfigError, match="action_low must be null, where every action is a choice"):
        search.auto(frame, columns=columns, fields={"action_low": 0.0}, out=tmp_path)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two short trainings, and a judge with few updates."""
    recipes = (Recipe("bc", "bc", {}, updates=20), Recipe("td3_bc", "td3_bc", {"alpha": 40.0}, updates=1500))
    monkeypatch.setattr(portfolio_module, "CONTINUOUS", recipes)
    monkeypatch.setattr(portfolio_module, "WIDTHS", (32, 32))
    light = {"updates": 600, "model_updates": 500, "members": 3, "importance": False}
    monkeypatch.setattr(search.run_judge, "judge", partial(search.run_judge.judge, **light))


@pytest.mark.slow
def test_from_a_log_to_a_policy_and_again_without_training_again(
    small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log, out = write_log(tmp_path / "log.csv"), tmp_path / "found"
    bounds = ("--action-low", "0", "--action-high", "100")
    call = ["auto", str(log), *LOG, "--gamma", ".8", "--out", str(out), *bounds]
    finish = search.Search.finish

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(search.Search, "finish", killed)
    assert main(call) != 0
    trained = {path: path.stat().st_mtime_ns for path in out.glob("runs/*/*/checkpoints/*")}
    assert len(trained) == 3 and not (out / "auto.html").exists()
    monkeypatch.setattr(search.Search, "finish", finish)
    assert main([*call, "--copy-to", f"file://{tmp_path}/bucket"]) == 0
    assert (tmp_path / "bucket" / "policy.onnx").read_bytes() == (out / "policy.onnx").read_bytes()
    assert {path: path.stat().st_mtime_ns for path in trained} == trained
    told = capsys.readouterr()
    assert "Going on with the search" in told.err and "Recommended: td3_bc" in told.out, told.out
    answer = json.loads((out / "auto.json").read_text())
    assert answer["recommended"].startswith("td3_bc") and answer["policy"] == "policy.onnx"
    policy = rl_training.load_policy(out / "policy.onnx")
    hot, cold = policy.predict([[60.0, 1.0], [40.0, 1.0]])[:, 0]
    assert hot < 45 and cold > 55 and policy.guard_facts.fallback.kind == "rate"
    text = (out / "auto.html").read_text()
    assert "Where it differs from the log" in text and "<script" not in text
    assert main([*call, "--minutes", "5"]) == 2, "another search does not go on here"


def test_what_a_log_cannot_carry_is_refused_before_anything_is_fitted(tmp_path: Path) -> None:
    columns = {"observations": ["T", "level"], "actions": ["valve"], "reward": "score", "episode": "run"}
    few = write_log(tmp_path / "few.csv", episodes=30)
    with pytest.raises(DataError, match="has 30 episodes; 40 are the least"):
        search.auto(few, columns=columns, out=tmp_path / "a")
    same = write_log(tmp_path / "same.csv", reward="same")
    with pytest.raises(DataError, match="every reward is 1, so that no policy is better"):
        search.auto(same, columns=columns, out=tmp_path / "a")
    with pytest.raises(DataError, match="the log has no rewards"):
        search.auto(few, columns={**columns, "reward": None}, out=tmp_path / "a")
    with pytest.raises(ConfigError, match="minuts is not a known key"):
        search.auto(few, columns=columns, out=tmp_path / "a", minuts=3)
    with pytest.raises(ConfigError, match="workers 2 has no effect with ray"):
        search.auto(few, columns=columns, out=tmp_path / "a", workers=2, ray="auto")
    with pytest.raises(DataError, match="copy_to must be an address such as s3://"):
        search.auto(few, columns=columns, out=tmp_path / "a", copy_to="results")
    assert not (tmp_path / "a").exists()


def test_columns_that_nobody_named_are_told_with_the_line_to_give(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = write_log(tmp_path / "log.csv")
    assert main(["auto", str(log)]) == 2
    assert "--obs T,level --action valve --reward score --episode run" in capsys.readouterr().err


def test_rows_in_memory_become_a_file_that_trainings_can_read(tmp_path: Path) -> None:
    dataset = plant_log(2000)
    who = torch.arange(2000) // 50 % 2
    dataset = dataset.with_columns({"operators": who.float(), "durations": torch.full((2000,), 2.0)})
    whole, place, _ = search.settle_data(dataset, None, {}, tmp_path, print)
    again = rl_training.read_log(place["dataset_path"])
    assert len(whole) == len(again) == 2000 and again.info.name_of("observation", 0) == "level (m)"
    assert int(again.episode_ends("x").sum()) == int(dataset.episode_ends("x").sum()) == 40
    for kept in (whole, again):
        assert torch.equal(kept.store.whole("operators"), who.float()), "who acted is not lost"
        assert kept.store.whole("durations").unique().tolist() == [2.0]


def test_every_operator_has_enough_episodes_for_the_judge(tmp_path: Path) -> None:
    dataset, silent = plant_log(6000), (lambda *_: None)  # 120 episodes, every fourth is Ben's
    acted = (torch.arange(6000) // 50 % 4 == 3).float()
    spaces, config = Spaces(2, (0.0,), (100.0,)), search.AutoConfig()

    def looked(whole: TransitionDataset) -> float:
        return search.Search(tmp_path, config, whole, spaces, {}, (), silent, silent).held_out

    assert looked(dataset) == 0.2
    assert looked(dataset.with_columns({"operators": acted})) == 10 / 30
    rare = (torch.arange(6000) // 50 < 19).float()
    assert looked(dataset.with_columns({"operators": rare})) == 0.2, "half of 19 would not be enough either"


def test_of_whole_days_so_many_are_held_out_that_every_operator_can_be_judged(tmp_path: Path) -> None:
    """Twelve days of ten episodes; Ben acts twice a day, but on the first two all day long."""
    dataset, silent = plant_log(6000), (lambda *_: None)
    episodes = np.arange(6000) // 50
    days = torch.from_numpy(episodes // 10).float()
    acted = torch.from_numpy((episodes % 10 < 2) | (episodes < 20)).float()
    whole = dataset.with_columns({"operators": acted, "days": days})
    spaces, config = Spaces(2, (0.0,), (100.0,)), search.AutoConfig(seed=0)
    share = search.Search(tmp_path, config, whole, spaces, {}, (), silent, silent).held_out
    for tried, enough in ((0.25, False), (share, True)):
        _, held = split_episodes(whole, tried, 0)
        who = episode_values(held, "operators")
        assert who is not None and (int((who == 1).sum()) >= 10) is enough, tried
    assert 0.25 < share <= 0.5


def test_the_judge_sees_the_episodes_that_no_training_sees_and_then_other_resamples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[TransitionDataset, int]] = []
    resamples: list[int | None] = []

    def judge(policies: Any, log: TransitionDataset, **settings: Any) -> Judgement:
        asked.append((log, settings["seed"]))
        resamples.append(settings.get("members"))
        return judgement(judged("bc", 5.0))

    monkeypatch.setattr(search.run_judge, "judge", judge)
    monkeypatch.setattr(search, "candidates", lambda runs: [("bc", Steep())])
    monkeypatch.setattr(search.Search, "export", lambda *_: tmp_path / "policy.onnx")
    monkeypatch.setattr(search, "write_auto_page", lambda *_: None)
    whole, config = plant_log(5000), search.AutoConfig(seed=7)
    spaces, silent = Spaces(2, (0.0,), (100.0,)), (lambda *_: None)
    looked = search.Search(tmp_path, config, whole, spaces, {"dataset_path": "log.csv"}, (), silent, silent)
    assert looked.finish([], search.Clock.read()).choice.name == "bc"
    settings: Any = looked.common.config(Recipe("bc", "bc", {}), tmp_path, 100).run_config()
    trained, _ = split_episodes(whole, settings.validation_share, settings.dataset_seed)
    (first, seed), (second, other) = asked
    assert (seed, other) == (7, 8) and resamples == [None, 6], "twice as many as the first look's three"
    for log in (first, second):
        assert int(log.episode_ends("a test").sum()) == 20 and len(trained) + len(log) == len(whole)
        assert not {*log.obs[:, 0].tolist()} & {*trained.obs[:, 0].tolist()}


def test_a_cluster_judges_a_few_candidates_at_a_time_on_the_same_resamples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[list[str], int, str]] = []

    def judge(policies: Any, log: TransitionDataset, checkpoints: str, **settings: Any) -> Judgement:
        asked.append((list(policies), settings["seed"], Path(checkpoints).name))
        return judgement(*(judged(name, 1.0) for name in policies))

    def call(function: Any, calls: Any, *, address: str, retries: int, watch: Any) -> RayAnswers[Judgement]:
        assert address == "auto" and retries > 0
        watch(range(len(calls)))
        return RayAnswers({index: function(*each) for index, each in enumerate(calls)}, {}, None)

    monkeypatch.setattr(search.run_judge, "judge", judge)
    monkeypatch.setattr(search, "call_on_ray", call)
    spaces, silent = Spaces(2, (0.0,), (100.0,)), (lambda *_: None)
    found = (tmp_path, search.AutoConfig(), plant_log(), spaces, {}, (), silent, silent)
    looked = search.Search(*found, ray="auto")
    policies: Any = {name: Steep() for name in "abcde"}
    together = looked.judge(policies, looked.whole, 3, "fits")
    assert [each.name for each in together.policies] == list("abcde")
    assert asked == [(["a", "b", "c", "d"], 3, "0"), (["e"], 3, "1")]
    lost = RayAnswers[Judgement]({0: together}, {1: "the node is gone"}, None)
    monkeypatch.setattr(search, "call_on_ray", lambda *_, **__: lost)
    with pytest.raises(RunFailed, match=r"^e could not be judged: the node is gone$"):
        looked.judge(policies, looked.whole, 3, "fits")
    monkeypatch.setattr(search, "call_on_ray", lambda *_, **__: RayAnswers({}, {}, 15))
    with pytest.raises(RunFailed, match="stopped by signal 15; what was done is kept"):
        looked.judge(policies, looked.whole, 3, "fits")
