"""CAPS: its numbers, which half moves what, the switch between its heads, and what is spent meanwhile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import learner_checks as checks
import toy_bandit as toy
from helpers import BARE_STATE, tiny_config, train
from learner_checks import close, numbers
from rl_training import TransitionDataset
from rl_training.algorithms import CAPS, IQL, caps_loss, iql_loss
from rl_training.algorithms.advantage import exp_weights
from rl_training.algorithms.caps import CAPSConfig, CAPSRunConfig, heads_loss
from rl_training.cli import main
from rl_training.config.run import TrainConfig
from rl_training.core.errors import ConfigError, UserError
from rl_training.core.spaces import Choice, Spaces, unit_spaces
from rl_training.data.formulas import counted_signals
from rl_training.models import MLPCAPSModel, MLPIQLModel
from rl_training.models.switching import Budget, SwitchingActor, second_head
from rl_training.policies.export.torchscript import torchscript_outputs
from rl_training.policies.files import load_policy
from rl_training.policies.inputs import SignalMemory
from rl_training.policies.opened import DeployedPolicy
from rl_training.policies.policy import Policy, pack_policy, unpack_policy
from rl_training.runs.export import export_policy
from rl_training.serve.sessions import Served, Sessions


def build(seed: int = 0, dropout: float = 0.0, **keywords: Any) -> CAPS:
    return CAPS(checks.model(MLPCAPSModel, seed, actor_dropout=dropout), seed=seed, **keywords)


def batch(seed: int = 0) -> dict[str, Tensor]:
    plain = checks.random_batch(seed)
    return {**plain, "costs": (plain["next_obs"][:, :1] > 0).float()}


def run(learner: CAPS, updates: int, first: int = 0) -> dict[str, float]:
    result = None
    for step in range(first, first + updates):
        result = learner.update(batch(step), global_step=step)
    assert result is not None
    return dict(result.metrics)


# ---- known numbers


def test_targets_follow_fast_enough_for_costs_to_be_known_after_a_short_training() -> None:
    """A cost of 1 in every step, for ever, gamma .9: 10 in all. With a tau of .005 it would be 3 by then."""
    learner, rows = build(gamma=0.9, limit=0.1, learning_rate=1e-3), batch()
    ones = torch.ones(len(rows["obs"]))
    rows |= {"next_obs": rows["obs"], "costs": ones.unsqueeze(-1), "dones": 0.0 * ones}
    for step in range(800):
        learner.update(rows, global_step=step)
    with torch.no_grad():
        assert 8.0 < -float(learner.cost_values.value(rows["obs"]).mean()) < 12.0


def test_what_is_left_becomes_a_discounted_budget() -> None:
    """N20: an episode of 300 steps, 10 left in its first, 101st and last step, and overspent."""
    budget = Budget(gamma=0.99, steps=300, per="episode")
    steps, spent = numbers(0.0, 100.0, 299.0, 50.0), numbers(0.0, 0.0, 0.0, 11.0)
    found = budget.discounted(torch.full_like(steps, 10.0), spent, steps)
    close(found, (3.169864, 4.330102, 10.0, 0.0))
    # a limit of each step stands for as many steps as the episode has
    per_step = Budget(gamma=0.99, steps=300, per="step")
    close(per_step.discounted(torch.full_like(steps, 10.0 / 300.0), spent, steps), found)


def test_without_a_discount_all_that_is_left_may_be_spent() -> None:
    for gamma, known in ((1.0, (7.0, 7.0)), (0.0, (0.7, 7.0))):
        budget = Budget(gamma=gamma, steps=10, per="episode")
        close(budget.discounted(numbers(9.0, 9.0), numbers(2.0, 2.0), numbers(0.0, 9.0)), known)


def test_an_episode_that_goes_on_is_given_the_limit_again() -> None:
    """After 10 of 10 steps with 9 of 10 spent: 11 are left for the next ten, as at their beginning."""
    budget = Budget(gamma=1.0, steps=10, per="episode")
    close(budget.discounted(numbers(10.0, 10.0), numbers(9.0, 19.0), numbers(10.0, 25.0)), (11.0, 11.0))


def test_the_head_that_acts() -> None:
    """N20: heads 0, 1, 1; and where one alone is below the budget, that one."""
    rewards = numbers(2.0, 2.0, 0.5, 2.0, 1.0), numbers(1.0, 1.0, 1.0, 1.0, 2.0)
    costs = numbers(3.0, 6.0, 1.0, 5.0, 1.0), numbers(1.0, 5.0, 0.5, 1.0, 4.0)
    close(second_head(rewards, costs, torch.full_like(costs[0], 4.0)), (0.0, 1.0, 1.0, 1.0, 0.0))


ADVANTAGES = numbers((0.5, -1.0, 0.2), (-0.3, 0.4, 0.1))
LOGPROBS = numbers((-1.0, -2.0, -0.5), (-1.5, -0.7, -0.9))


def test_the_actors_loss_is_the_mean_over_its_heads() -> None:
    """N20, with weights of β 3."""
    weights = exp_weights(ADVANTAGES, 3.0, 100.0)
    close(heads_loss(LOGPROBS, weights), 1.606855)
    halves = {"q1_values": numbers(0.9, -0.4, 0.0), "q2_values": numbers(1.1, -0.6, 0.0)}
    halves |= {name: numbers(0.5, 1.4, 0.1) for name in ("target_q_values", "value_predictions")}
    halves["target_state_values"] = numbers(1.0, -0.5, 0.2)
    own = [
        {**halves, "behavior_logprobs": logprobs, "advantage_weights": each}
        for logprobs, each in zip(LOGPROBS, weights, strict=True)
    ]
    own[1] |= {"q1_values": numbers(0.0, 0.0, 0.0)}
    found = caps_loss({**own[0], **{f"cost_{name}": value for name, value in own[1].items()}})
    alone = [iql_loss(each) for each in own]
    close(found["actor_loss"], 1.606855)
    for name in ("critic_loss", "value_loss", "target_q_mean", "advantage_weight_mean"):
        close(found[name], alone[0][name])
        close(found[f"cost_{name}"], alone[1][name])
    assert found["critic_loss"] != found["cost_critic_loss"]


# ---- the learner


def test_each_half_moves_what_is_its_own() -> None:
    learner = build()
    before = {name: tensor.detach().clone() for name, tensor in learner.tensors().items()}
    run(learner, 1)
    moved = {
        name.split(".net")[0]
        for name, tensor in learner.tensors().items()
        if not torch.equal(before[name], tensor)
    }
    parts = {"actor.heads", "actor.critic", "actor.cost_critic", "value", "cost_value"}
    assert {each for each in moved if each.startswith("model")} >= {f"model.{each}" for each in parts}
    assert {each for each in moved if each.startswith("target")} == {"target.critic", "target.cost_critic"}
    rows = batch()
    values = torch.randn(checks.BATCH)
    assert checks.reached(learner, learner.value_loss(rows, values, learner.cost_values.value)) == {
        "model.cost_value"
    }


def test_the_rewards_half_is_iql() -> None:
    """Same first weights, same batches: critics, targets and V of the reward are those of IQL."""
    ours, theirs = build(gamma=0.9), IQL(checks.model(MLPIQLModel), gamma=0.9, tau=CAPSConfig().tau)
    pairs = [(ours.critic, theirs.critic), (ours.value, theirs.value)]
    pairs.append((ours.target_critic, theirs.target_critic))
    for left, right in pairs:
        right.load_state_dict(left.state_dict())
    run(ours, 5)
    for step in range(5):
        theirs.update(checks.random_batch(step), global_step=step)
    for left, right in pairs:
        for name, tensor in left.state_dict().items():
            torch.testing.assert_close(tensor, right.state_dict()[name], rtol=1e-5, atol=1e-7)


def test_the_costs_half_is_that_of_the_reward_on_negative_costs() -> None:
    learner = build(gamma=0.9)
    for one, other in (
        (learner.critic, learner.model.cost_critic),
        (learner.value, learner.model.cost_value),
    ):
        other.load_state_dict(one.state_dict())
    learner.targets["cost_critic"].load_state_dict(learner.critic.state_dict())
    for step in range(5):
        rows = batch(step)
        learner.update({**rows, "costs": -rows["rewards"].unsqueeze(-1)}, global_step=step)
    for one, other in (
        (learner.critic, learner.model.cost_critic),
        (learner.value, learner.model.cost_value),
    ):
        for name, tensor in one.state_dict().items():
            assert torch.equal(tensor, other.state_dict()[name])


@pytest.mark.slow
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_every_way_of_running_gives_the_same_learner(dropout: float) -> None:
    checks.check_stacked_equals_single(lambda seed: build(seed, dropout), batch=batch)
    checks.check_compiled_equals_eager(lambda seed: build(seed, dropout), batch=batch)
    first, second = build(0, dropout), build(1, dropout)
    run(first, 3)
    second.load_state_dict(first.state_dict())
    for learner in (first, second):
        run(learner, 3, first=3)
    assert all(torch.equal(tensor, second.tensors()[name]) for name, tensor in first.tensors().items())


def test_a_bandit_whose_better_action_costs() -> None:
    """Action .5 earns 1 and costs 1, action -.5 neither: what may be spent decides."""
    model = toy.small(MLPCAPSModel)
    learner = CAPS(model, **toy.SETTINGS, gamma=0.9, limit="1 per episode", episode_steps=1)
    rows = toy.bandit()
    rows["costs"] = (rows["rewards"] > 0.5).float().unsqueeze(-1)
    toy.fit(learner, rows, updates=300)
    policy = learner.policy.snapshot()
    acts = {limit: policy.predict(np.ones((1, 1)), limit=limit)[0, 0] for limit in (0.0, 0.3, 2.0)}
    mean = 0.5 * np.tanh(3.0 / 2.0)
    assert acts[2.0] == pytest.approx(mean, abs=0.08)
    assert acts[0.0] == acts[0.3] == pytest.approx(-mean, abs=0.08)
    assert policy.predict(np.ones((1, 1)), limit=2.0, spent=1.7)[0, 0] < 0.0  # little is left


# ---- what is chosen and counted while it runs

SEEN = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32)


def switching_policy(**keywords: Any) -> Policy:
    """What earns, costs: heads are far apart, and critics disagree about them."""
    learner = build(**{"limit": "3 per episode", "episode_steps": 10, "learning_rate": 1e-2, **keywords})
    for step in range(60):
        rows = batch(step)
        earned = rows["actions"][:, 0] + rows["obs"][:, 0]
        learner.update(
            {**rows, "rewards": earned, "costs": 0.5 * earned.unsqueeze(-1) + 0.5}, global_step=step
        )
    return learner.policy


def counting(policy: Policy, text: str = "obs_0 > 0 or action_1 > 0.1") -> Policy:
    columns, actions = [f"obs_{i}" for i in range(3)], ["action_0", "action_1"]
    signals = counted_signals({"c": text}, columns, actions, (0.0, 0.0))
    assert signals is not None
    policy.counter = SignalMemory.of(signals)
    return policy


def test_both_heads_act() -> None:
    policy = switching_policy().snapshot()
    actor = policy.actor
    assert isinstance(actor, SwitchingActor)
    heads = actor.heads.mode(torch.from_numpy(SEEN).double()).float().numpy()
    ample, none = policy.predict(SEEN, limit=100.0), policy.predict(SEEN, limit=0.0)
    either = [np.abs(each[:, None] - heads.reshape(12, 2, 2)).max(-1).argmin(1) for each in (ample, none)]
    assert 0 in either[0] and 1 in either[1] and (either[0] != either[1]).any()
    np.testing.assert_allclose(ample, heads.reshape(12, 2, 2)[np.arange(12), either[0]], atol=1e-6)


def test_a_controller_counts_what_the_columns_tell() -> None:
    policy = counting(switching_policy().snapshot())
    controller, spent = policy.controller(), 0.0
    for step, obs in enumerate(SEEN):
        if step == 8:
            controller.reset()
            spent = 0.0
        wanted = policy.predict(obs, spent=spent, steps=step % 8)
        decided = controller.act(obs).action
        np.testing.assert_array_equal(decided, wanted)
        spent += float(obs[0] > 0 or decided[1] > 0.1)
    assert spent > 0


def test_what_was_really_done_counts_and_what_is_told_wins() -> None:
    policy = counting(switching_policy().snapshot(), "action_1 > 0.1")
    controller = policy.controller()
    controller.act(SEEN[0])
    step = controller.act(SEEN[1], applied=[0.0, 1.0])
    np.testing.assert_array_equal(step.action, policy.predict(SEEN[1], spent=1.0, steps=1))
    told = {"spent": 100.0, "steps": 0.0, "limit": 90.0}
    found = np.stack([controller.act(obs, **told).action for obs in SEEN])
    np.testing.assert_array_equal(found, policy.predict(SEEN, **told))
    assert (found != policy.predict(SEEN, spent=0.0, limit=90.0)).any()


def test_without_counting_every_step_is_as_the_first_of_an_episode(tmp_path: Path) -> None:
    policy = counting(switching_policy().snapshot())
    steady = policy.without_counting().with_inputs(limit=1.5)
    state = {**BARE_STATE, "config": {**BARE_STATE["config"], "algo_kwargs": {}}}
    file = export_policy(steady, state, tmp_path / "policy.onnx")
    for each in (steady, load_policy(file)):
        controller = each.controller()
        for obs in SEEN:
            np.testing.assert_allclose(
                controller.act(obs).action, policy.predict(obs, limit=1.5, spent=0.0, steps=0), atol=1e-6
            )
    assert policy.counter is not None and any(each.counted for each in policy.inputs)


def test_rows_are_counted_apart_and_taken_up_in_the_middle() -> None:
    policy = counting(switching_policy().snapshot())
    together, again = policy.controller(4), policy.controller(4)
    for step in range(3):
        together.act(np.roll(SEEN, step, 0)[:4])
        together.reset(rows=np.array([False, step == 1, False, False]))
    again.load_state_dict(together.state_dict())
    for step in range(3, 6):
        rows = np.roll(SEEN, step, 0)[:4]
        np.testing.assert_array_equal(together.act(rows).action, again.act(rows).action)
    counted = together.counts(SEEN[:4])
    assert np.asarray(counted["steps"])[:, 0].tolist() == [6, 4, 6, 6]
    alone = policy.controller()
    whole = alone.act(SEEN[:4])
    single = policy.controller()
    np.testing.assert_array_equal(whole.action, [single.act(row).action for row in SEEN[:4]])


@pytest.mark.parametrize("text", ["cost", "next(obs_0) > 0", "pressure > 3"])
def test_what_the_columns_do_not_tell_is_not_counted(text: str) -> None:
    assert counted_signals({"c": text}, ("obs_0",), ("action_0",), (0.0,)) is None
    policy = switching_policy().snapshot()
    assert policy.counter is None
    controller = policy.controller()
    for obs in SEEN[:3]:  # the share of a step in what an episode may cost, all along
        np.testing.assert_array_equal(controller.act(obs).action, policy.predict(obs, spent=0, steps=0))


def test_counts_are_those_of_the_log() -> None:
    """Costs of rows as data computes them, added up before each row."""
    values = np.random.default_rng(1).normal(size=(20, 2)).astype(np.float32)
    actions = np.random.default_rng(2).uniform(-1, 1, size=(20, 1)).astype(np.float32)
    ends = np.arange(20) % 10 == 9
    for text in ("obs_0 > 0.3", "abs(action_0)", "abs(action_0 - lag(action_0)) > 0.5", "mean(obs_1, 3)"):
        data = TransitionDataset.from_dict(
            {
                "obs": values,
                "actions": actions,
                "rewards": np.zeros(20),
                "next_obs": np.roll(values, -1, axis=0),
                "dones": np.zeros(20),
                "truncations": ends.astype(np.float32),
            }
        ).with_costs({"c": text})
        costs = data.store.whole("costs")[:, 0].numpy()
        signals = counted_signals({"c": text}, ("obs_0", "obs_1"), ("action_0",), (float(actions.mean()),))
        assert signals is not None
        found = signals.program.over_log(values, actions, np.arange(20) % 10, signals.first_action)
        before = np.concatenate([np.cumsum(part) - part for part in costs.reshape(2, 10)])
        np.testing.assert_allclose(found[:, 0], before, atol=1e-5)
        assert found[:, 1].tolist() == [*range(10), *range(10)]


def test_it_is_packed_with_its_budget_and_its_counter() -> None:
    policy = counting(switching_policy())
    opened = unpack_policy(pack_policy(policy)).snapshot()
    exact = policy.snapshot()
    for limit in (0.0, 1.0, 5.0, 300.0):
        np.testing.assert_array_equal(opened.predict(SEEN, limit=limit), exact.predict(SEEN, limit=limit))
    assert isinstance(opened.actor, SwitchingActor)
    assert opened.actor.budget == Budget(gamma=0.99, steps=10, per="episode")
    assert opened.counter is not None and opened.counter.to_dict() == policy.counter.to_dict()  # type: ignore[union-attr]
    assert [(each.name, each.default, each.counted) for each in opened.inputs] == [
        ("limit", 3.0, False),
        ("spent", 0.0, True),
        ("steps", 0.0, True),
    ]


@pytest.mark.parametrize("suffix", [".safetensors", ".onnx", ".pt"])
def test_files_switch_as_the_policy_does(suffix: str, tmp_path: Path) -> None:
    policy = counting(switching_policy()).snapshot()
    state = {**BARE_STATE, "config": {**BARE_STATE["config"], "algo_kwargs": {}}}
    path = export_policy(policy, state, tmp_path / f"policy{suffix}")
    rows = np.random.default_rng(3).normal(size=(200, 3)).astype(np.float32)
    chosen = {"limit": 4.0, "spent": np.linspace(-1, 5, 200), "steps": np.arange(200) % 12}
    wanted = policy.predict(rows, **chosen)
    assert len(np.unique((wanted - policy.predict(rows, limit=0.0)).any(1))) == 2
    if suffix == ".pt":
        columns = {name: np.broadcast_to(np.asarray(each, np.float32), 200) for name, each in chosen.items()}
        found = torchscript_outputs(path.read_bytes(), ["action"])(rows, columns)["action"]
        np.testing.assert_allclose(found, wanted, atol=1e-6)
        return
    filed = load_policy(path)
    np.testing.assert_allclose(filed.predict(rows, **chosen), wanted, atol=1e-6)
    controllers = filed.controller(), policy.controller()
    for obs in SEEN:
        actions = [each.act(obs).action for each in controllers]
        np.testing.assert_allclose(*actions, atol=1e-6)


def test_a_service_counts_and_lets_the_limit_alone_be_chosen(tmp_path: Path) -> None:
    policy = counting(switching_policy()).snapshot()
    state = {**BARE_STATE, "config": {**BARE_STATE["config"], "algo_kwargs": {}}}
    filed = load_policy(export_policy(policy, state, tmp_path / "policy.onnx"))
    assert isinstance(filed, DeployedPolicy)
    sessions, controller = Sessions(Served(filed, "0" * 16), "act"), filed.controller()
    assert sessions.inputs == {"limit": 3.0}
    for step, obs in enumerate(SEEN):
        if step == 6:
            sessions.choose({"limit": 1.0})
        told = sessions.act(dict(zip(sessions.served.observations, obs.tolist(), strict=True))).reply
        wanted = controller.act(obs, limit=3.0 if step < 6 else 1.0).action
        assert list(told["action"].values()) == pytest.approx(wanted.tolist(), abs=1e-6)
    with pytest.raises(UserError, match="this policy has no spent"):
        sessions.choose({"spent": 0.0})


# ---- runs


def test_a_run_takes_the_limit_from_limits_and_counts_in_it(tmp_path: Path) -> None:
    limits = {"costs": {"fast": "abs(obs_2) > 1"}, "limits": {"fast": "20 per episode"}}
    result = train(tiny_config("caps", tmp_path, algo_kwargs={**limits, "episode_steps": 200}))
    policy = load_policy(result.run_dir)
    assert policy.inputs[0].default == 20.0
    assert policy.counter is not None and policy.counter.program.columns == ("obs_0", "obs_1", "obs_2")


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"limits": {"a": 1, "b": 2}}, "limits must be of one cost for caps, got a, b"),
        ({"limits": {"a": 1}, "limit": 2}, r"limit must be that of limits \(1 per step\), got 2 per step"),
        ({"limit": -1.0}, "limit must be >= 0, got -1.0"),
        ({"limit": "often"}, "limit of the cost must be a number per step"),
    ],
)
def test_limits_that_make_no_sense_are_refused(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        CAPSRunConfig.build(settings)


def test_what_caps_cannot_do_is_said() -> None:
    with pytest.raises(ConfigError, match=r"online_timesteps must be 0 for caps, .* got 10"):
        TrainConfig(algo="caps", env_id="Pendulum-v1", total_timesteps=50, online_timesteps=10)
    with pytest.raises(ConfigError, match="caps learns from one cost, the data has 2"):
        build().update({**batch(), "costs": torch.zeros(checks.BATCH, 2)}, global_step=0)
    with pytest.raises(ConfigError, match="CAPS takes actions of numbers"):
        CAPS(MLPCAPSModel(3, 2, spaces=Spaces.of(3, [Choice((0.0, 1.0))])))
    with pytest.raises(UserError, match="limit must be a number from 0 to 300"):
        switching_policy().predict(SEEN, limit=301.0)
    assert CAPS(MLPCAPSModel(3, 2, spaces=unit_spaces(3, 2))).policy.inputs[0].high == 1.0


@pytest.mark.filterwarnings("ignore:limits.far is")
def test_the_command_line_takes_a_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changes = {"costs": {"far": "obs_0 > 0"}, "limits": {"far": "3 per episode"}, "episode_steps": 10}
    result = train(tiny_config("caps", tmp_path, algo_kwargs=changes))
    run_dir, file = str(result.run_dir), str(tmp_path / "p.onnx")
    live = load_policy(run_dir)
    for where, stands in (
        (["predict", "-k", run_dir], 3.0),
        (["predict", "-k", run_dir, "--limit", "9"], 9.0),
    ):
        assert main([*where, "--obs", "0.1, 0.2, 0.3"]) == 0
        wanted = live.predict([0.1, 0.2, 0.3], limit=stands)
        assert json.loads(capsys.readouterr().out) == pytest.approx(wanted.tolist(), abs=1e-6)
    assert main(["export", "-k", run_dir, "--out", file, "--limit", "7"]) == 0
    assert load_policy(file).inputs[0].default == 7.0
    assert main(["evaluate", "-k", run_dir, "-n", "1", "--limit", "5"]) == 0
    assert main(["predict", "-k", run_dir, "--obs", "1 2 3", "--limit", "1e6"]) == 2
    assert "limit must be a number from 0 to 300" in capsys.readouterr().err
