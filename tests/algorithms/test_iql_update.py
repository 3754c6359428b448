"""IQL: the numbers of its losses, the order of its update, and problems with known answers."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

import learner_checks as checks
import toy_bandit as toy
from learner_checks import close, numbers
from rl_training.algorithms import IQL, IQLAlgorithm, iql_loss, losses
from rl_training.algorithms.advantage import exp_weights, expectile_loss, weighted_regression
from rl_training.core.transforms import return_range_scale
from rl_training.models import MLPIQLModel
from rl_training.models.actors import TanhMeanGaussian
from rl_training.models.layers import dropout_scale
from rl_training.models.networks import MLP, NetworkPlan


def build(seed: int = 0, dropout: float = 0.0, **keywords: Any) -> IQL:
    return IQL(checks.model(MLPIQLModel, seed, actor_dropout=dropout), seed=seed, **keywords)


def bandit(**keywords: Any) -> IQL:
    return IQL(toy.small(MLPIQLModel), **toy.SETTINGS, **keywords)


# ---- losses on known numbers

Q, V = numbers(1.0, -0.5, 2.0, 0.3), numbers(0.6, 0.1, 2.5, 0.3)
ADVANTAGES = Q - V
WEIGHTS = numbers(3.320117, 0.165299, 0.223130, 1.0)
REWARDS, DONES, NEXT_V = (
    numbers(0.0, 1.0, 0.5, 0.2),
    numbers(0.0, 0.0, 1.0, 0.0),
    numbers(0.5, 0.4, 9.9, -0.2),
)
TARGET = numbers(0.495, 1.396, 0.5, 0.002)
TWIN_Q = numbers((0.9, -0.4, 2.1, 0.3), (1.1, -0.6, 1.9, 0.5))
RAW_MEANS, ACTIONS, LOG_STD = numbers(0.2, -0.3, 0.8, 0.0), numbers(0.1, -0.5, 0.9, 0.4), -0.7
LOGPROBS = numbers(-0.238164, -0.307241, -0.331833, -0.543355)


def exact_policy() -> TanhMeanGaussian:
    """A policy whose raw mean is the observation itself."""
    policy = TanhMeanGaussian(1, 1, NetworkPlan(hidden_sizes=())).double()
    with torch.no_grad():
        policy.net.output.weight.fill_(1.0)
        policy.net.output.bias.zero_()
        policy.free_log_std.fill_(LOG_STD)
    return policy


def test_the_value_loss_has_the_known_values_and_gradient() -> None:
    close(expectile_loss(ADVANTAGES, 0.7), 0.073750)
    close(expectile_loss(ADVANTAGES, 0.5), 0.096250)
    (gradient,) = checks.gradients_of(lambda v: expectile_loss(Q - v, 0.7), V)
    close(gradient, (-0.14, 0.09, 0.075, 0.0))


def test_weights_grow_with_beta_up_to_the_limit() -> None:
    close(exp_weights(ADVANTAGES, 3.0, 100.0), WEIGHTS)
    close(exp_weights(numbers(2.0), 10.0, 100.0), (100.0,))
    extreme = exp_weights(torch.tensor([1e4, -1e4, 0.0]), 10.0, 100.0)  # exp overflows in single precision
    assert extreme.tolist() == [100.0, 0.0, 1.0]


def test_the_critic_loss_has_the_known_target_value_and_gradient() -> None:
    close(losses.td_target(REWARDS, DONES, NEXT_V, 0.99), TARGET)
    close(losses.critic_mse(TWIN_Q, TARGET), 3.149122)
    (gradient,) = checks.gradients_of(lambda q: losses.critic_mse(q, TARGET), TWIN_Q)
    close(gradient, 2.0 * (TWIN_Q - TARGET) / 4)


def test_the_actor_loss_has_the_known_value_and_gradient() -> None:
    policy = exact_policy()
    obs, actions = RAW_MEANS.unsqueeze(-1).requires_grad_(True), ACTIONS.unsqueeze(-1)
    logprobs = policy.log_prob(obs, actions)
    close(logprobs, LOGPROBS)
    loss = weighted_regression(logprobs, WEIGHTS)
    close(loss, 0.364729)
    of_raw_mean, of_log_std = torch.autograd.grad(loss, [obs, policy.free_log_std])
    mean, variance = RAW_MEANS.tanh(), torch.tensor(2 * LOG_STD).double().exp()
    pull = (ACTIONS - mean) / variance
    close(of_raw_mean.squeeze(-1), -WEIGHTS * pull * (1 - mean**2) / 4)
    close(of_log_std.squeeze(), -(WEIGHTS * (pull * (ACTIONS - mean) - 1)).mean())


def test_the_public_helper_composes_the_same_numbers() -> None:
    inputs: dict[str, Any] = {
        "q1_values": TWIN_Q[0],
        "q2_values": TWIN_Q[1],
        "target_q_values": TARGET,
        "value_predictions": V,
        "target_state_values": Q,
        "behavior_logprobs": LOGPROBS,
        "advantage_weights": WEIGHTS,
    }
    values = iql_loss(inputs)
    expected = {"critic_loss": 3.149122, "value_loss": 0.07375, "actor_loss": 0.364729}
    expected |= {"target_q_mean": 0.59825, "advantage_weight_mean": 1.1771365}
    assert values.keys() == expected.keys()
    for name, number in expected.items():
        close(values[name], number)
    close(iql_loss({**inputs, "expectile": 0.5})["value_loss"], 0.09625)


def test_rewards_are_scaled_to_a_return_range_of_1000() -> None:
    returns = numbers(10.0, 250.0, 40.0).numpy()
    assert return_range_scale(returns) == pytest.approx(4.166667, rel=1e-6)


# ---- identities

ERRORS = torch.randn(64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_the_middle_expectile_is_half_the_squared_error() -> None:
    close(expectile_loss(ERRORS, 0.5), 0.5 * ERRORS.square().mean())


@pytest.mark.parametrize("expectile", [0.1, 0.7, 0.99])
def test_mirrored_errors_swap_the_expectile(expectile: float) -> None:
    close(expectile_loss(ERRORS, expectile), expectile_loss(-ERRORS, 1.0 - expectile))


def test_rows_of_weight_zero_do_not_move_the_actor() -> None:
    (gradient,) = checks.gradients_of(lambda x: weighted_regression(x, torch.zeros(64)), ERRORS)
    assert not gradient.any()


def test_weights_are_constants_for_the_gradient() -> None:
    advantages = ADVANTAGES.clone().requires_grad_(True)
    assert not exp_weights(advantages, 3.0, 100.0).requires_grad


# ---- the policy and the model


def test_samples_are_bounded_while_their_density_is_that_of_the_plain_gaussian() -> None:
    model = checks.model(MLPIQLModel)
    sample = model.sample_actions(torch.randn(500, checks.OBS), generator=torch.Generator().manual_seed(0))
    assert sample.actions.abs().max() == 1.0  # std 1: many samples are clipped
    assert sample.logprobs.shape == (500,)
    assert model.value(torch.zeros(7, checks.OBS)).shape == (7,)
    single = torch.zeros(checks.OBS)
    assert model.value(single).shape == (1,)
    assert [q.shape for q in model.q_values(single, torch.zeros(checks.ACTIONS))] == [(1,), (1,)]


def test_log_std_is_free_of_the_state_and_clamped() -> None:
    policy = exact_policy()
    for raw, expected in ((0.3, 0.3), (-9.0, -5.0), (4.0, 2.0)):
        policy.free_log_std.data.fill_(raw)
        close(policy.log_std().squeeze(), expected)


def test_every_layer_starts_orthogonal_with_gain_sqrt_2() -> None:
    model = checks.model(MLPIQLModel, hidden_sizes=(32, 32))
    for net in (model.actor.net, model.critic.net, model.value.net):
        for layer in (*net.hidden, net.output):
            for weight in layer.weight.reshape(-1, *layer.weight.shape[-2:]).double():
                gram = weight @ weight.T if weight.shape[0] < weight.shape[1] else weight.T @ weight
                torch.testing.assert_close(gram, 2.0 * torch.eye(len(gram)).double(), rtol=1e-5, atol=1e-5)
            assert not layer.bias.any()
    assert not model.actor.free_log_std.any()
    assert not torch.equal(model.critic.net.output.weight[0], model.critic.net.output.weight[1])


def test_dropout_drops_its_share_and_keeps_the_mean() -> None:
    uniform = torch.rand(100_000, generator=torch.Generator().manual_seed(0)) * 2.0 - 1.0
    scale = dropout_scale(uniform, 0.1)
    assert scale.unique().tolist() == pytest.approx([0.0, 1.0 / 0.9])
    assert scale.mean().item() == pytest.approx(1.0, abs=0.005)
    assert (dropout_scale(uniform, 0.0) == 1.0).all()


def test_dropout_scales_each_hidden_layer_after_its_activation() -> None:
    net, x = MLP(3, 2, NetworkPlan(hidden_sizes=(4, 5))), torch.randn(6, 3)
    keep = dropout_scale(torch.rand(6, 9) * 2.0 - 1.0, 0.5)
    first = torch.relu(net.hidden[0](x)) * keep[:, :4]
    second = torch.relu(net.hidden[1](first)) * keep[:, 4:]
    torch.testing.assert_close(net(x, keep), net.output(second))
    assert torch.equal(net(x, torch.ones(6, 9)), net(x))


def test_dropout_is_for_training_the_actor_only() -> None:
    learner = build(dropout=0.5)
    batch = checks.random_batch(0)
    assert learner.noise_shapes(checks.BATCH) == {"dropout": ("uniform", (checks.BATCH, 32))}
    assert build().noise_shapes(checks.BATCH) == {}
    noise = {"dropout": torch.rand(checks.BATCH, 32) * 2.0 - 1.0}
    plain = learner.actor.log_prob(batch["obs"], batch["actions"])
    assert not torch.allclose(learner.data_logprobs(batch, noise), plain)
    assert torch.equal(learner.acting().mode(batch["obs"]), learner.acting().mode(batch["obs"]))


# ---- the learner


def reference_updates(model: MLPIQLModel, updates: int) -> MLPIQLModel:
    """The official update written down plainly: V, then actor and Q with the new V, then the target."""
    target = copy.deepcopy(model.critic)
    parts = {"value": model.value, "actor": model.actor, "critic": model.critic}
    optimizers = {name: torch.optim.Adam(part.parameters(), 3e-4) for name, part in parts.items()}

    def descend(name: str, loss: Tensor) -> None:
        optimizers[name].zero_grad()
        loss.backward()
        optimizers[name].step()

    for step in range(updates):
        batch = checks.random_batch(step)
        q = target(batch["obs"], batch["actions"]).min(0).values.detach()
        error = q - model.value(batch["obs"])
        descend("value", (torch.where(error > 0, 0.8, 0.2) * error**2).mean())
        weights = ((q - model.value(batch["obs"])) * 2.0).exp().clamp(max=1.5).detach()
        policy = torch.distributions.Normal(
            model.actor.net(batch["obs"]).tanh(), model.actor.free_log_std.exp()
        )
        descend("actor", -(weights * policy.log_prob(batch["actions"]).sum(-1)).mean())
        y = batch["rewards"] + 0.9 * (1 - batch["dones"]) * model.value(batch["next_obs"]).detach()
        q1, q2 = model.critic(batch["obs"], batch["actions"])
        descend("critic", ((q1 - y) ** 2).mean() + ((q2 - y) ** 2).mean())
        for slow, fast in zip(target.parameters(), model.critic.parameters(), strict=True):
            slow.data.mul_(0.9).add_(0.1 * fast.data)
    return model


def test_the_update_follows_the_official_order() -> None:
    learner = build(expectile=0.8, beta=2.0, max_advantage_weight=1.5, gamma=0.9, tau=0.1)
    expected = reference_updates(copy.deepcopy(learner.model), 10)
    checks.run(learner, 10)
    for ours, theirs in zip(learner.model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_each_loss_reaches_only_what_it_trains() -> None:
    learner, batch = build(), checks.random_batch(0)
    values = torch.randn(checks.BATCH)
    assert checks.reached(learner, learner.value_loss(batch, values, learner.value)) == {"model.value"}
    logprobs = learner.data_logprobs(batch, {})
    assert checks.reached(learner, learner.actor_loss(logprobs, values)[0]) == {"model.actor"}
    assert checks.reached(learner, learner.critic_loss(batch, values)[0]) == {"model.critic"}
    assert checks.moved(learner) == {"model.value", "model.actor", "model.critic", "target.critic"}


def test_rows_with_their_own_discount_replace_gamma() -> None:
    batch = checks.random_batch(0, dones=torch.zeros(checks.BATCH), rewards=torch.zeros(checks.BATCH))
    plain = build(gamma=0.5).update(batch, global_step=0).metrics
    own = build().update({**batch, "discounts": torch.full((checks.BATCH,), 0.5)}, global_step=0).metrics
    assert plain["target_q_mean"] == own["target_q_mean"] != 0.0


def test_metrics_have_their_names() -> None:
    names = {"critic_loss", "value_loss", "actor_loss", "target_q_mean", "advantage_weight_mean"}
    assert checks.run(build(), 1).keys() >= names


@pytest.mark.slow
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_every_way_of_running_gives_the_same_learner(dropout: float) -> None:
    checks.check_stacked_equals_single(lambda seed: build(seed, dropout))
    checks.check_resumes_exactly(lambda seed: build(seed, dropout))
    backend = checks.WHOLE if dropout else checks.GRAPHS
    checks.check_compiled_equals_eager(lambda seed: build(seed, dropout), backend=backend)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"expectile": 0.0}, "expectile must be in (0, 1), got 0.0"),
        ({"expectile": 1.0}, "expectile must be in (0, 1), got 1.0"),
        ({"beta": 0.0}, "beta must be > 0, got 0.0"),
        ({"max_advantage_weight": -1.0}, "max_advantage_weight must be > 0, got -1.0"),
        ({"dropout": 1.0}, "actor_dropout must be in [0, 1), got 1.0"),
    ],
)
def test_bad_values_fail_at_construction(keywords: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError) as error:
        build(**keywords)
    assert str(error.value) == message


def test_the_learner_is_exported_under_both_names() -> None:
    assert IQLAlgorithm is IQL


# ---- problems with known answers


@pytest.mark.slow
@pytest.mark.parametrize(
    ("expectile", "beta", "share", "value"), [(0.7, 3.0, 0.5, 0.7), (0.9, 1.0, 0.5, 0.9)]
)
def test_bandit(expectile: float, beta: float, share: float, value: float) -> None:
    learner = bandit(expectile=expectile, beta=beta)
    toy.fit(learner, toy.bandit(share))
    assert learner.value(torch.ones(1, 1)).item() == pytest.approx(value, abs=0.03)
    toy.check_policy(learner, kappa=beta)


@pytest.mark.slow
def test_the_expectile_weighs_how_often_an_action_was_logged() -> None:
    learner = bandit(expectile=0.9)
    toy.fit(learner, toy.bandit(0.25))
    assert learner.value(torch.ones(1, 1)).item() == pytest.approx(0.75, abs=0.03)


@pytest.mark.slow
def test_chain() -> None:
    learner = IQL(toy.small(MLPIQLModel, obs_dim=2), gamma=0.9, **toy.SETTINGS)
    toy.fit(learner, toy.chain())
    toy.check_chain_values(learner)
    assert learner.value(torch.eye(2)).tolist() == pytest.approx([0.9, 1.0], abs=0.02)
