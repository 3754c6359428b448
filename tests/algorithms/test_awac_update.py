"""AWAC: the numbers of both published weightings, the order of its update, problems with known answers."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor

import learner_checks as checks
import toy_bandit as toy
from learner_checks import close, numbers
from rl_training.algorithms import AWAC, AWACAlgorithm, awac_loss
from rl_training.algorithms.advantage import exp_weights, softmax_weights, weighted_regression
from rl_training.algorithms.learner import unpack_noise
from rl_training.models import MLPAWACModel, MLPSACModel
from rl_training.models.actors import SigmoidStdGaussian, UnboundedGaussian

RLKIT: dict[str, Any] = {"weighting": "softmax", "temperature": 2.0, "update_order": "together"}
RLKIT |= {"actor_weight_decay": 1e-4, "baseline": "mean_action", "max_advantage": 0.5}
RLKIT_MODEL: dict[str, Any] = {"policy": "tanh_mean", "init": "small_output", "max_q_value": 0.0}


def build(seed: int = 0, **keywords: Any) -> AWAC:
    return AWAC(checks.model(MLPAWACModel, seed), seed=seed, **keywords)


def build_rlkit(seed: int = 0) -> AWAC:
    return AWAC(checks.model(MLPAWACModel, seed, **RLKIT_MODEL), seed=seed, **RLKIT)


def build_on_sac_model(seed: int = 0) -> AWAC:
    return AWAC(checks.model(MLPSACModel, seed), seed=seed, n_action_samples=3)


# ---- losses on known numbers

ADVANTAGES = numbers(0.4, -0.6, -0.5, 0.0)
LOGPROBS = numbers(-0.238164, -0.307241, -0.331833, -0.543355)
SOFTMAX_WEIGHTS = numbers(1.636146, 0.601905, 0.665207, 1.096742)


def test_the_exp_form_has_the_known_value_and_gradient() -> None:
    weights = build(temperature=1.0 / 3.0).weights(ADVANTAGES)
    close(weights, (3.320117, 0.165299, 0.223130, 1.0))
    close(weighted_regression(LOGPROBS, weights), 0.364729)
    (gradient,) = checks.gradients_of(lambda x: weighted_regression(x, weights), LOGPROBS)
    close(gradient, -weights / 4)


def test_the_softmax_form_has_the_known_value_and_gradient() -> None:
    weights = build(weighting="softmax", temperature=1.0).weights(ADVANTAGES)
    close(weights, SOFTMAX_WEIGHTS)
    close(weighted_regression(LOGPROBS, weights), 0.347815)
    (gradient,) = checks.gradients_of(lambda x: weighted_regression(x, weights), LOGPROBS)
    close(gradient, -SOFTMAX_WEIGHTS / 4)


def test_the_public_helper_composes_the_same_numbers() -> None:
    values = awac_loss(
        {
            "q1_values": numbers(2.0, 1.0, 0.0, 0.0),
            "q2_values": numbers(3.0, 0.0, 0.0, 0.0),
            "target_q_values": numbers(2.0, 0.0, 0.0, 0.0),
            "behavior_logprobs": LOGPROBS,
            "advantage_weights": SOFTMAX_WEIGHTS,
        }
    )
    close(values["critic_loss"], 0.5)
    close(values["actor_loss"], 0.347815)
    close(values["advantage_weight_mean"], 1.0)
    close(values["target_q_mean"], 0.5)


def test_advantages_are_cut_before_they_are_divided() -> None:
    learner = build(temperature=0.5, max_advantage=0.2)
    close(learner.weights(ADVANTAGES), (numbers(0.2, -0.6, -0.5, 0.0) / 0.5).exp())


# ---- identities


def test_a_high_temperature_is_plain_imitation() -> None:
    for weights in (exp_weights(ADVANTAGES, 1e-9, 100.0), softmax_weights(ADVANTAGES, 1e-9)):
        close(weighted_regression(LOGPROBS, weights), -LOGPROBS.mean())


def test_a_constant_added_to_all_advantages_matters_to_the_exp_form_only() -> None:
    close(softmax_weights(ADVANTAGES + 7.0, 1.0), SOFTMAX_WEIGHTS)
    close(exp_weights(ADVANTAGES + 7.0, 1.0, 1e9), ADVANTAGES.exp() * math.exp(7.0))
    close(exp_weights(ADVANTAGES + 7.0, 1.0, 100.0), numbers(100.0, 100.0, 100.0, 100.0))


def test_softmax_weights_belong_to_one_seed_each() -> None:
    together = softmax_weights(torch.stack([ADVANTAGES, 3.0 * ADVANTAGES]), 1.0)
    close(together[0], SOFTMAX_WEIGHTS)
    close(together[1], softmax_weights(3.0 * ADVANTAGES, 1.0))


# ---- the models


def test_the_unbounded_policy_is_a_plain_gaussian_clipped_only_to_act() -> None:
    model = checks.model(MLPAWACModel)
    model.actor.net.output.bias.data.fill_(3.0)
    obs = torch.zeros(5, checks.OBS)
    mean, log_std = model.actor.distribution(obs)
    assert isinstance(model.actor, UnboundedGaussian) and mean.min() > 1.0 and not log_std.any()
    assert (model.actor.mode(obs) == 1.0).all()
    expected = torch.distributions.Normal(mean, 1.0).log_prob(torch.zeros_like(mean)).sum(-1)
    torch.testing.assert_close(model.actor.log_prob(obs, torch.zeros_like(mean)), expected)
    assert model.sample_actions(obs).actions.abs().max() <= 1.0


def test_the_rlkit_policy_starts_narrow_and_near_zero() -> None:
    model = checks.model(MLPAWACModel, **RLKIT_MODEL)
    assert isinstance(model.actor, SigmoidStdGaussian)
    mean, log_std = model.actor.distribution(torch.randn(100, checks.OBS))
    assert (log_std == -3.0).all() and log_std.exp()[0, 0].item() == pytest.approx(0.049787, rel=1e-5)
    assert 0.0 < mean.abs().max() < 0.02
    model.actor.free_log_std.data.fill_(50.0)
    assert (model.actor.log_std() == 0.0).all()
    model.actor.free_log_std.data.fill_(-50.0)
    assert (model.actor.log_std() == -6.0).all()


def test_capped_critics_never_exceed_the_limit() -> None:
    model = checks.model(MLPAWACModel, max_q_value=0.0)
    obs, actions = torch.randn(200, checks.OBS), torch.rand(200, checks.ACTIONS)
    assert torch.stack(model.q_values(obs, actions)).max() == 0.0
    assert model.critic.many(obs, actions.unsqueeze(-2)).max() == 0.0


# ---- the learner


def reference_updates(learner: AWAC, updates: int) -> MLPAWACModel:
    """The same update written down plainly, with the learner's own noise."""
    model, config = copy.deepcopy(learner.model), learner.config
    target = copy.deepcopy(model.critic)
    critic_adam = torch.optim.Adam(model.critic.parameters(), 3e-4)
    actor_adam = torch.optim.Adam(model.actor.parameters(), 3e-4, weight_decay=config.actor_weight_decay)
    for step in range(updates):
        batch, shapes = checks.random_batch(step), learner.noise_shapes(checks.BATCH)
        count = sum(math.prod(shape) for _, shape in shapes.values())
        noise = unpack_noise({"normal": learner.streams["normal"].next(count)}, shapes)

        def sample(obs: Tensor, draws: Tensor) -> Tensor:
            return (model.actor.net(obs) + model.actor.free_log_std.exp() * draws).clamp(-1, 1).detach()

        next_actions = sample(batch["next_obs"], noise["next"])
        next_q = target(batch["next_obs"], next_actions).min(0).values
        y = batch["rewards"] + 0.9 * (1 - batch["dones"]) * next_q
        q1, q2 = model.critic(batch["obs"], batch["actions"])
        critic_adam.zero_grad()
        (((q1 - y) ** 2).mean() + ((q2 - y) ** 2).mean()).backward()
        if config.update_order == "critic_first":
            critic_adam.step()
        own = sample(batch["obs"], noise["current"][:, 0])
        q_data = model.critic(batch["obs"], batch["actions"]).min(0).values
        advantages = (q_data - model.critic(batch["obs"], own).min(0).values).detach()
        weights = (advantages / config.temperature).exp().clamp(max=1.1)
        policy = torch.distributions.Normal(model.actor.net(batch["obs"]), model.actor.free_log_std.exp())
        actor_adam.zero_grad()
        (-(weights * policy.log_prob(batch["actions"]).sum(-1)).mean()).backward()
        actor_adam.step()
        if config.update_order == "together":
            critic_adam.step()
        for slow, fast in zip(target.parameters(), model.critic.parameters(), strict=True):
            slow.data.mul_(0.9).add_(0.1 * fast.data)
    return model


@pytest.mark.parametrize("order", ["critic_first", "together"])
def test_the_update_follows_its_order(order: str) -> None:
    keywords = {"max_advantage_weight": 1.1, "gamma": 0.9, "tau": 0.1, "actor_weight_decay": 0.01}
    learner = build(update_order=order, **keywords)
    expected = reference_updates(build(update_order=order, **keywords), 10)
    checks.run(learner, 10)
    for ours, theirs in zip(learner.model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_the_next_action_comes_from_the_online_actor_without_entropy() -> None:
    learner, batch = build(), checks.random_batch(0)
    learner.model.actor.free_log_std.data.fill_(-20.0)  # samples are the mean
    noise = {"next": torch.ones(checks.BATCH, checks.ACTIONS)}
    next_q = learner.target_critic(batch["next_obs"], learner.model.actor.mode(batch["next_obs"])).amin(-2)
    target = learner.value_target(batch, noise)
    torch.testing.assert_close(target, batch["rewards"] + 0.99 * (1.0 - batch["dones"]) * next_q)
    assert torch.equal(target[batch["dones"] == 1.0], batch["rewards"][batch["dones"] == 1.0])
    assert set(learner.targets) == {"critic"}


def test_the_baseline_may_be_the_mean_action() -> None:
    learner, batch = build(baseline="mean_action"), checks.random_batch(0)
    assert set(learner.noise_shapes(checks.BATCH)) == {"next"}
    expected = learner.critic(batch["obs"], learner.model.actor.mode(batch["obs"])).amin(-2)
    own = learner.own_actions(learner.actor.distribution(batch["obs"]), {})
    torch.testing.assert_close(learner.baseline(learner.critic.many(batch["obs"], own).amin(-3)), expected)


def test_advantages_compare_the_logged_action_with_drawn_ones() -> None:
    learner, batch = build(n_action_samples=3), checks.random_batch(0)
    obs, actions = batch["obs"], batch["actions"]
    noise = {
        "current": torch.randn(checks.BATCH, 3, checks.ACTIONS, generator=torch.Generator().manual_seed(3))
    }
    policy = learner.actor.distribution(obs)
    drawn = [
        (policy[0] + policy[1].exp() * noise["current"][:, index]).clamp(-1.0, 1.0) for index in range(3)
    ]
    q = learner.critic(obs, actions)
    expected = q.amin(-2) - torch.stack([learner.critic(obs, each).amin(-2) for each in drawn]).mean(0)
    for known in (None, q):
        torch.testing.assert_close(learner.advantages(batch, policy, noise, known), expected)


def test_each_loss_reaches_only_what_it_trains() -> None:
    for learner in (build(), build_rlkit(), build_on_sac_model()):
        batch, values = checks.random_batch(0), -torch.rand(checks.BATCH)
        logprobs = learner.actor.log_prob(batch["obs"], batch["actions"])
        assert checks.reached(learner, learner.actor_loss(logprobs, values)[0]) == {"model.actor"}
        assert checks.reached(learner, learner.critic_loss(batch, values)[0]) == {"model.critic"}
        assert checks.moved(learner) == {"model.actor", "model.critic", "target.critic"}


def test_metrics_have_their_names() -> None:
    assert checks.run(build(), 1).keys() >= {"critic_loss", "actor_loss", "advantage_weight_mean"}


@pytest.mark.slow
@pytest.mark.parametrize("variant", [build, build_rlkit, build_on_sac_model])
def test_every_way_of_running_gives_the_same_learner(variant: Any) -> None:
    checks.check_stacked_equals_single(variant)
    checks.check_resumes_exactly(variant)
    checks.check_compiled_equals_eager(variant, backend=checks.WHOLE if variant is build else checks.GRAPHS)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"temperature": 0.0}, "temperature must be > 0, got 0.0"),
        ({"max_advantage_weight": 0.0}, "max_advantage_weight must be > 0, got 0.0"),
        ({"n_action_samples": 0}, "n_action_samples must be >= 1, got 0"),
        ({"weighting": "soft"}, "weighting must be 'exp' or 'softmax', got 'soft' (did you mean 'softmax'?)"),
    ],
)
def test_bad_values_fail_at_construction(keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as error:
        build(**keywords)
    assert str(error.value) == message


def test_the_learner_is_exported_under_both_names() -> None:
    assert AWACAlgorithm is AWAC


# ---- problems with known answers


@pytest.mark.slow
@pytest.mark.parametrize("weighting", ["exp", "softmax"])
@pytest.mark.parametrize("kappa", [3.0, 1.0, 1e-6])
def test_bandit(weighting: str, kappa: float) -> None:
    learner = AWAC(toy.small(MLPAWACModel), weighting=weighting, temperature=1.0 / kappa, **toy.SETTINGS)
    toy.fit(learner, toy.bandit())
    toy.check_policy(learner, kappa)


@pytest.mark.slow
def test_bandit_with_a_squashed_policy() -> None:
    learner = AWAC(toy.small(MLPSACModel), temperature=1.0, **toy.SETTINGS)
    toy.fit(learner, toy.bandit())
    toy.check_policy(learner, 1.0, unit=math.atanh(0.5))


@pytest.mark.slow
def test_chain() -> None:
    learner = AWAC(toy.small(MLPAWACModel, obs_dim=2), gamma=0.9, **toy.SETTINGS)
    toy.fit(learner, toy.chain())
    toy.check_chain_values(learner)
