"""Cal-QL: the floor under the policy's values, and that nothing else differs from CQL."""

import math
from typing import Any

import pytest
import torch
from test_cql_update import chain, example, penalty_of

import learner_checks
from learner_checks import close, reached
from rl_training.algorithms.cal_ql import CalQL, cal_ql_loss
from rl_training.algorithms.cql import CQL, cql_loss
from toy_conservative import (
    StateTable,
    doubles,
    model_with_critic,
    noise_for,
    random_batch,
    small_model,
    train_with_falling_rate,
)

METRICS = {"calibrated_q1_mean", "calibrated_q2_mean", "returns_to_go_mean", "calibration_rate"}


def test_penalty_and_its_gradients() -> None:
    values = example(requires_grad=True)
    penalty = penalty_of(values, returns_to_go=doubles([0.9, 2.2]))
    close(penalty, 11.474244)
    close(penalty / 5.0, 2.294849)
    penalty.backward()
    close(values["q_random"].grad, [[0.784699, 0.175090], [0.785000, 0.106238]])
    close(values["q_next_policy"].grad, [[0.436595, 0.0], [0.0, 1.074262]])
    close(values["q_policy"].grad, [[0.0, 0.719823], [0.177574, 0.0]])
    close(values["q_data"].grad, [-2.5, -2.5])
    close(sum(value.grad.sum() for value in values.values()), -0.740720)  # upwards on balance


def test_no_floor_is_cql_in_value_and_gradient() -> None:
    plain, floored = example(requires_grad=True), example(requires_grad=True)
    without = penalty_of(plain)
    with_floor = penalty_of(floored, returns_to_go=doubles([-math.inf, -math.inf]))
    torch.testing.assert_close(with_floor, without, rtol=0, atol=0)
    without.backward()
    with_floor.backward()
    for name, value in plain.items():
        torch.testing.assert_close(floored[name].grad, value.grad, rtol=0, atol=0)


def test_high_floor_leaves_gradients_on_random_and_data_actions_only() -> None:
    values = example(requires_grad=True)
    penalty_of(values, returns_to_go=doubles([9.0, 9.0])).backward()
    assert values["q_policy"].grad.abs().max() == 0 and values["q_next_policy"].grad.abs().max() == 0
    assert (values["q_random"].grad > 0).all()
    close(values["q_data"].grad, [-2.5, -2.5])


@pytest.mark.parametrize(
    "keywords",
    [
        {},
        {"lagrange": True, "max_target_backup": True},
        {"importance_weights": False, "action_sources": ("uniform", "current"), "backup_entropy": True},
    ],
)
def test_learner_without_a_floor_is_cql(keywords: dict[str, Any]) -> None:
    cql, cal_ql = (kind(small_model(), num_cql_samples=3, **keywords) for kind in (CQL, CalQL))
    for step in range(5):
        batch = random_batch(seed=step)
        batch["returns_to_go"] = torch.full_like(batch["rewards"], -1e9)
        expected, found = (each.update(batch, global_step=step).metrics for each in (cql, cal_ql))
        assert {name: found[name] for name in expected} == dict(expected)
        assert set(found) - set(expected) == METRICS
        assert found["calibration_rate"] == 0.0
    for left, right in zip(cql.model.parameters(), cal_ql.model.parameters(), strict=True):
        assert torch.equal(left, right)


def test_only_the_policy_columns_are_floored() -> None:
    learner, batch = CalQL(small_model(), num_cql_samples=2), random_batch(rows=1)
    batch["returns_to_go"] = doubles([1.0])
    q = doubles([[[0.0, -1.0, 0.5, 2.0, 3.0, -4.0]], [[0.1, 0.2, 0.3, 0.4, 0.5, 1.5]]])
    floored, metrics = learner.calibrate(q, batch)
    close(floored[0, 0], [0.0, -1.0, 1.0, 2.0, 3.0, 1.0])
    close(floored[1, 0], [0.1, 0.2, 1.0, 1.0, 1.0, 1.5])
    close(metrics["calibrated_q1_mean"], 1.75)
    close(metrics["calibrated_q2_mean"], 1.125)
    close(metrics["calibration_rate"], 5 / 8)
    close(metrics["returns_to_go_mean"], 1.0)


def test_target_and_actor_are_those_of_cql() -> None:
    cql, cal_ql = CQL(small_model()), CalQL(small_model())
    batch, noise = random_batch(), noise_for(cql, 12)
    torch.testing.assert_close(cal_ql.value_target(batch, noise), cql.value_target(batch, noise))
    losses = [each.actor_loss(batch, noise, "full")[0] for each in (cql, cal_ql)]
    torch.testing.assert_close(*losses)


def test_critic_loss_reaches_the_critics_alone() -> None:
    learner, batch = CalQL(small_model()), random_batch()
    loss, _ = learner.critic_loss(batch, noise_for(learner, 12))
    assert reached(learner, loss) == {"model.critic"}


@pytest.mark.slow
def test_two_step_chain_is_exact() -> None:
    learner = CalQL(
        model_with_critic(StateTable(2), obs_dim=2), learning_rate=0.05, gamma=0.9, tau=0.1, cql_alpha=5.0
    )
    train_with_falling_rate(learner, {**chain(), "returns_to_go": torch.tensor([0.9, 1.0])}, 300)
    assert learner.critic.values.detach().mean(0).tolist() == pytest.approx([0.9, 1.0], abs=0.02)


@pytest.mark.slow
def test_calibrated_values_stay_nearer_to_the_returns() -> None:
    """Without rewards to hold it up, CQL pushes the policy's value far below the data; Cal-QL stops there."""
    values = {}
    for kind in (CQL, CalQL):
        learner = kind(small_model(), learning_rate=3e-3, num_cql_samples=4, gamma=0.0, cql_alpha=5.0)
        batch = random_batch(rows=32) | {"rewards": torch.zeros(32), "returns_to_go": torch.zeros(32)}
        for step in range(150):
            learner.update(batch, global_step=step)
        actions = learner.acting().mode(batch["obs"])
        values[kind] = learner.critic(batch["obs"], actions).mean().item()
    assert values[CQL] < values[CalQL]


def test_stacked_learners_equal_single_ones() -> None:
    learner_checks.check_stacked_equals_single(
        lambda seed: CalQL(small_model(seed=seed), seed=seed, num_cql_samples=2),
        batch=lambda seed: random_batch(seed=seed),
    )


@pytest.mark.slow
def test_compiled_updates_equal_eager_ones() -> None:
    learner_checks.check_compiled_equals_eager(
        lambda seed: CalQL(small_model(seed=seed), seed=seed, num_cql_samples=2),
        batch=lambda step: random_batch(seed=step),
    )


def test_one_critic_reports_one_calibrated_value() -> None:
    metrics = CalQL(small_model(num_critics=1)).update(random_batch(), global_step=0).metrics
    assert "calibrated_q1_mean" in metrics and "calibrated_q2_mean" not in metrics


def test_loss_helper_adds_the_calibration_metrics() -> None:
    rows = {
        name: doubles([1.0, 2.0])
        for name in ("q1_values", "q2_values", "target_q_values", "sampled_logprobs", "sampled_q1")
    }
    inputs = {**rows, "sampled_q2": doubles([0.5, 3.0]), "alpha": 0.2, "cql_alpha": 5.0}
    inputs |= {"cql_penalty_q1": doubles(2.0), "cql_penalty_q2": 1.0}
    extra = {"calibrated_q1": doubles([1.0, 3.0]), "calibrated_q2": doubles([4.0, 4.0])}
    found = cal_ql_loss({**inputs, **extra, "returns_to_go": doubles([0.0, 1.0])})
    for name, value in cql_loss(inputs).items():
        close(found[name], value.item())
    close(found["critic_loss"], 15.0)
    close(found["calibrated_q1_mean"], 2.0)
    close(found["calibrated_q2_mean"], 4.0)
    close(found["returns_to_go_mean"], 0.5)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"cql_alpha": 0.0}, "cql_alpha must be > 0, got 0.0"),
        ({"num_cql_samples": 0}, "num_cql_samples must be >= 1, got 0"),
        ({"action_sources": ("uniform",)}, "action_sources must name current or next"),
    ],
)
def test_mistakes_are_named(keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        CalQL(small_model(), **keywords)
    assert message in str(caught.value)


def test_a_batch_without_returns_is_refused() -> None:
    batch = random_batch()
    del batch["returns_to_go"]
    with pytest.raises(ValueError, match=r"CalQL needs the batch field\(s\) \['returns_to_go'\]"):
        CalQL(small_model()).update(batch, global_step=0)
