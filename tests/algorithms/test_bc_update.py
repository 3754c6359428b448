"""BC: its two losses on known numbers, and imitation with a known answer."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import learner_checks as checks
import toy_control as toy
from learner_checks import close, numbers
from rl_training.algorithms import BC, bc_loss
from rl_training.algorithms.bc import imitation_error, negative_log_likelihood
from rl_training.models import MLPBCModel, MLPSACModel, MLPTD3Model

POLICY = numbers((0.5, -0.2), (0.1, 0.3), (-0.4, 0.6), (0.0, 0.9))
DATA = numbers((0.4, -0.1), (0.3, 0.3), (-0.5, 0.2), (0.2, 1.0))

NETWORKS: list[tuple[Any, dict[str, Any]]] = [
    (MLPBCModel, {}),
    (MLPBCModel, {"policy": "gaussian"}),
    (MLPSACModel, {}),
    (MLPTD3Model, {}),
]


def build(seed: int, model_class: Any, keywords: dict[str, Any]) -> BC:
    return BC(checks.model(model_class, seed, **keywords), seed=seed)


def test_the_squared_error_is_a_mean_over_rows_and_dimensions() -> None:
    close(imitation_error(POLICY, DATA), 0.035)
    (gradient,) = checks.gradients_of(lambda actions: imitation_error(actions, DATA), POLICY)
    close(gradient, (POLICY - DATA) / 4)  # 2 (pi - a) / (B A)
    close(bc_loss({"policy_actions": POLICY, "actions": DATA})["actor_loss"], 0.035)


def test_the_likelihood_is_that_of_a_gaussian_around_a_tanh_mean() -> None:
    logprobs = numbers(-0.238164, -0.307241, -0.331833, -0.543355)
    model = MLPBCModel(4, 1, policy="gaussian", hidden_sizes=()).double()
    with torch.no_grad():
        model.actor.net.output.weight.copy_(numbers((0.2,), (-0.3,), (0.8,), (0.0,)))  # type: ignore[union-attr]
        model.actor.net.output.bias.zero_()  # type: ignore[union-attr]
        model.actor.free_log_std.fill_(-0.7)  # type: ignore[operator, union-attr]
    batch = {"obs": torch.eye(4, dtype=torch.float64), "actions": numbers((0.1,), (-0.5,), (0.9,), (0.4,))}
    torch.testing.assert_close(BC(model).actor_loss(batch).item(), -logprobs.mean().item(), rtol=1e-5, atol=0)
    close(bc_loss({"behavior_logprobs": logprobs})["actor_loss"], -logprobs.mean())
    (gradient,) = checks.gradients_of(negative_log_likelihood, logprobs)
    close(gradient, torch.full((4,), -0.25))


def test_a_shape_that_would_broadcast_is_refused() -> None:
    with pytest.raises(ValueError, match="equal shapes"):
        imitation_error(POLICY, DATA[:1])


@pytest.mark.parametrize(("model_class", "keywords"), NETWORKS)
def test_only_the_actor_moves(model_class: Any, keywords: dict[str, Any]) -> None:
    learner = build(0, model_class, keywords)
    assert checks.reached(learner, learner.actor_loss(checks.random_batch(0))) == {"model.actor"}
    assert checks.moved(learner) == {"model.actor"}
    assert set(learner.last_metrics) == {"actor_loss"}


@pytest.mark.slow
@pytest.mark.parametrize(("model_class", "keywords"), NETWORKS)
def test_every_way_of_running_gives_the_same_learner(model_class: Any, keywords: dict[str, Any]) -> None:
    checks.check_stacked_equals_single(lambda seed: build(seed, model_class, keywords))
    checks.check_resumes_exactly(lambda seed: build(seed, model_class, keywords))
    checks.check_compiled_equals_eager(lambda seed: build(seed, model_class, keywords))


def test_an_unknown_policy_fails_at_construction() -> None:
    with pytest.raises(ValueError, match="policy must be 'deterministic' or 'gaussian', got 'tanh'"):
        MLPBCModel(3, 1, policy="tanh")
    with pytest.raises(ValueError, match="learning_rate must be > 0, got 0"):
        BC(MLPBCModel(3, 1), learning_rate=0.0)


def test_a_deterministic_policy_samples_its_own_action() -> None:
    model = MLPBCModel(obs_dim=3, action_dim=2, hidden_sizes=(16, 16))
    obs = torch.randn(5, 3)
    sampled = model.sample_actions(obs)
    assert torch.equal(sampled.actions, model.actor.mode(obs)) and sampled.actions.abs().max() <= 1.0
    assert torch.equal(sampled.logprobs, torch.zeros(5))
    assert torch.equal(model.actor.draw(obs, torch.randn(5, 2)), model.actor.mode(obs))


# ---- imitation of two equally frequent actions, a = -0.5 and a = 0.5


def two_actions() -> toy.Rows:
    state = torch.ones(toy.ROWS)
    actions = torch.tensor([-0.5, 0.5]).repeat(toy.ROWS // 2)
    return toy.rows(state, actions, actions + 0.5, state, done=1.0)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["deterministic", "gaussian"])
def test_imitation_settles_on_the_mean_and_the_spread_of_the_data(policy: str) -> None:
    learner = BC(toy.small(MLPBCModel, policy=policy), learning_rate=5e-3)
    toy.fit(learner, two_actions(), updates=1200, batch_size=256)
    state = torch.ones(1, 1)
    with torch.no_grad():
        assert learner.acting().mode(state).abs().item() < 0.03
        if policy == "gaussian":
            _, log_std = learner.actor.distribution(state)  # type: ignore[operator]
            assert log_std.exp().item() == pytest.approx(0.5, abs=0.03)
