"""CRR: the numbers of its weights, its target networks and acting, and problems with known answers."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import learner_checks as checks
import toy_bandit as toy
from learner_checks import close, numbers
from rl_training.algorithms import CRR, CRRAlgorithm, crr_loss, losses
from rl_training.algorithms.advantage import weighted_regression
from rl_training.algorithms.learner import unpack_noise
from rl_training.models import MLPIQLModel, MLPSACModel
from rl_training.models.actors import CriticWeighted, resample, squashed_log_prob


def build(seed: int = 0, num_critics: int = 2, **keywords: Any) -> CRR:
    return CRR(checks.model(MLPSACModel, seed, num_critics=num_critics), seed=seed, **keywords)


def bandit(**keywords: Any) -> CRR:
    return CRR(toy.small(MLPSACModel), target_update="soft", **toy.SETTINGS, **keywords)


# ---- losses on known numbers

SAMPLED_Q, DATA_Q = numbers((0.5, 0.7, 0.2, 1.0), (0.0, 0.3, -0.2, 0.1)), numbers(0.65, 4.0)
LOGPROBS = numbers(-1.2, 0.4)


@pytest.mark.parametrize(
    ("weight_type", "advantage_type", "advantages", "weights", "loss"),
    [
        ("binary", "mean", (0.05, 3.95), (1.0, 1.0), 0.4),
        ("binary", "max", (-0.35, 3.7), (0.0, 1.0), -0.2),
        ("exp", "mean", (0.05, 3.95), (1.051271, 20.0), -3.369237),
        ("exp", "max", (-0.35, 3.7), (0.704688, 20.0), -3.577187),
    ],
)
def test_advantages_weights_and_loss_have_the_known_values(
    weight_type: str, advantage_type: str, advantages: Any, weights: Any, loss: float
) -> None:
    learner = build(weight_type=weight_type, advantage_type=advantage_type)
    found = DATA_Q - learner.baseline(SAMPLED_Q)
    close(found, advantages)
    close(learner.weights(found), weights)
    close(weighted_regression(LOGPROBS, learner.weights(found)), loss)
    (gradient,) = checks.gradients_of(lambda x: weighted_regression(x, learner.weights(found)), LOGPROBS)
    close(gradient, -numbers(*weights) / 2)


def test_the_critic_loss_is_the_whole_squared_error() -> None:
    q, target = numbers((1.0, 2.0)), numbers(1.5, 1.0)
    close(losses.critic_mse(q, target), 2 * 0.312500)  # the reference halves it
    (gradient,) = checks.gradients_of(lambda x: losses.critic_mse(x, target), q)
    close(gradient, ((-0.5, 1.0),))


def test_the_public_helper_returns_exactly_the_six_metrics() -> None:
    values = crr_loss(
        {
            "q1_values": numbers(1.0, 2.0),
            "q2_values": numbers(1.5, 0.0),
            "target_q_values": numbers(1.5, 1.0),
            "behavior_logprobs": LOGPROBS,
            "advantages": numbers(0.05, 3.95),
            "advantage_weights": numbers(1.051271, 20.0),
        }
    )
    expected = {"critic_loss": 1.125, "actor_loss": -3.369237, "target_q_mean": 1.25, "advantage_mean": 2.0}
    expected |= {"advantage_weight_mean": 10.5256355, "behavior_logprob_mean": -0.4}
    assert values.keys() == expected.keys()
    for name, number in expected.items():
        close(values[name], number)


# ---- identities


def test_binary_weights_do_not_see_the_scale_of_q() -> None:
    learner = build(weight_type="binary")
    advantages = torch.randn(100, generator=torch.Generator().manual_seed(0))
    assert torch.equal(learner.weights(advantages), learner.weights(1e-3 * advantages))
    assert learner.weights(torch.zeros(1)).item() == 0.0  # no gain, no imitation


def test_constant_weights_are_plain_imitation() -> None:
    learner, batch = build(beta=1e9), checks.random_batch(0)
    logprobs = learner.actor.log_prob(batch["obs"], batch["actions"])
    loss, _ = learner.actor_loss(logprobs, torch.randn(checks.BATCH))
    expected = -squashed_log_prob(batch["actions"], *learner.actor.distribution(batch["obs"])).mean()
    torch.testing.assert_close(loss, expected)


# ---- the learner


def reference_updates(learner: CRR, updates: int) -> MLPSACModel:
    """The reference's update with twin critics, written down plainly: all losses on the old networks."""
    model, target = copy.deepcopy(learner.model), copy.deepcopy(learner.model)
    adams = [torch.optim.Adam(part.parameters(), 3e-4) for part in (model.critic, model.actor)]
    for step in range(updates):
        batch, shapes = checks.random_batch(step), learner.noise_shapes(checks.BATCH)
        count = sum(math.prod(shape) for _, shape in shapes.values())
        noise = unpack_noise({"normal": learner.streams["normal"].next(count)}, shapes)
        with torch.no_grad():
            next_actions = target.actor.draw(batch["next_obs"], noise["next"])
            next_q = target.critic(batch["next_obs"], next_actions).min(0).values
            y = batch["rewards"] + 0.9 * (1 - batch["dones"]) * next_q
            own = [model.actor.draw(batch["obs"], noise["current"][:, k]) for k in range(4)]
            own_q = torch.stack([model.critic(batch["obs"], a).min(0).values for a in own])
            q = model.critic(batch["obs"], batch["actions"]).min(0).values
            weights = ((q - own_q.mean(0)) / 0.5).exp().clamp(max=1.2)
        q1, q2 = model.critic(batch["obs"], batch["actions"])
        critic_loss = ((q1 - y) ** 2).mean() + ((q2 - y) ** 2).mean()
        actor_loss = -(weights * model.actor.log_prob(batch["obs"], batch["actions"])).mean()
        for adam, loss in zip(adams, (critic_loss, actor_loss), strict=True):
            adam.zero_grad()
            loss.backward()
            adam.step()
        if (step + 1) % 4 == 0:
            target.load_state_dict(model.state_dict())
    return model


def test_the_update_follows_the_reference() -> None:
    keywords: dict[str, Any] = {"gamma": 0.9, "beta": 0.5, "max_weight": 1.2, "target_update_interval": 4}
    learner = build(**keywords)
    expected = reference_updates(build(**keywords), 10)
    checks.run(learner, 10)
    for ours, theirs in zip(learner.model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def same(first: nn.Module, second: nn.Module) -> bool:
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def test_hard_targets_are_copied_at_their_interval_and_not_between() -> None:
    learner = build(target_update_interval=3)
    online = {"model.actor", "model.critic"}
    assert checks.moved(learner) == online
    assert checks.moved(learner) == online
    assert checks.moved(learner) == {*online, "target.actor", "target.critic"}
    assert same(learner.target_actor, learner.actor) and same(learner.target_critic, learner.critic)
    assert checks.moved(learner) == online


def test_soft_targets_take_over_their_share_at_each_update() -> None:
    learner = build(target_update="soft", tau=0.25)
    before = [parameter.clone() for parameter in learner.target_actor.parameters()]
    checks.run(learner, 1)
    for old, new, source in zip(
        before, learner.target_actor.parameters(), learner.actor.parameters(), strict=True
    ):
        torch.testing.assert_close(new, 0.75 * old + 0.25 * source)


def test_the_next_action_comes_from_the_target_actor() -> None:
    learner, batch = build(), checks.random_batch(0)
    noise = {"next": torch.randn(checks.BATCH, checks.ACTIONS)}
    before = learner.value_target(batch, noise)
    for parameter in learner.actor.parameters():
        parameter.data.add_(1.0)
    torch.testing.assert_close(learner.value_target(batch, noise), before)
    learner.pull_targets(1.0)
    assert not torch.allclose(learner.value_target(batch, noise), before)


def test_one_critic_is_enough() -> None:
    learner = build(num_critics=1)
    (q,) = learner.model.q_values(torch.zeros(1, checks.OBS), torch.zeros(1, checks.ACTIONS))
    assert q.shape == (1,)
    assert checks.moved(learner) == {"model.actor", "model.critic"}


def test_each_loss_reaches_only_what_it_trains() -> None:
    learner, batch = build(), checks.random_batch(0)
    values = torch.randn(checks.BATCH)
    logprobs = learner.actor.log_prob(batch["obs"], batch["actions"])
    assert checks.reached(learner, learner.actor_loss(logprobs, values)[0]) == {"model.actor"}
    assert checks.reached(learner, learner.critic_loss(batch, values)[0]) == {"model.critic"}


def test_metrics_are_the_six_of_the_helper() -> None:
    names = {"critic_loss", "actor_loss", "target_q_mean", "advantage_mean", "advantage_weight_mean"}
    assert checks.run(build(), 1).keys() == {*names, "behavior_logprob_mean"}


# ---- acting


def moved_apart(**keywords: Any) -> CRR:
    """A learner whose online networks have left their targets."""
    learner = build(**keywords)
    checks.run(learner, 5)
    return learner


def test_the_mode_of_the_target_or_of_the_online_actor() -> None:
    obs = checks.random_batch(0)["obs"]
    learner = moved_apart()
    assert torch.equal(learner.acting().mode(obs), learner.target_actor.mode(obs))
    assert not torch.equal(learner.acting().mode(obs), learner.actor.mode(obs))
    online = moved_apart(act_with_target=False)
    assert torch.equal(online.acting().mode(obs), online.actor.mode(obs))
    noise = torch.randn(checks.BATCH, online.acting().noise_size)
    drawn = online.actor(obs, noise)[0].clamp(-1.0, 1.0)
    assert torch.equal(online.acting().draw(obs, noise), drawn)


class RowCritic:
    """A critic that gives every state the first row of the known numbers."""

    def many(self, obs: Tensor, actions: Tensor) -> Tensor:
        return SAMPLED_Q[0].expand(1, len(obs), 4)


def test_critic_weighted_probabilities_have_the_known_values() -> None:
    critic: Any = RowCritic()
    acting = CriticWeighted(build().actor, build().critic, samples=4, temperature=1.0)
    acting.__dict__["critic"], acting._modules = critic, {"actor": acting.actor}
    found = acting.probabilities(torch.zeros(1, checks.OBS), torch.zeros(1, 4, checks.ACTIONS))
    close(found, ((0.216875, 0.264892, 0.160665, 0.357567),))


def test_resampling_follows_the_probabilities() -> None:
    rows = 100_000
    candidates = torch.arange(4.0).reshape(1, 4, 1).expand(rows, 4, 1)
    probabilities = torch.softmax(SAMPLED_Q[0].float(), -1).expand(rows, 4)
    normal = torch.randn(rows, generator=torch.Generator().manual_seed(0))
    chosen = resample(candidates, probabilities, normal).squeeze(-1).long()
    shares = torch.bincount(chosen, minlength=4) / rows
    torch.testing.assert_close(shares, probabilities[0], rtol=0, atol=0.01)
    extreme = resample(candidates[:2], probabilities[:2], torch.tensor([-50.0, 50.0]))
    assert extreme.flatten().tolist() == [0.0, 3.0]


def test_the_critic_weighted_policy_prefers_what_the_critic_prefers() -> None:
    obs = torch.randn(2000, checks.OBS, generator=torch.Generator().manual_seed(1))
    learner = moved_apart(critic_weighted=True, beta=0.01, n_action_samples=8)
    plain = moved_apart(beta=0.01, n_action_samples=8)
    assert learner.acting().noise_size == 8 * checks.ACTIONS + 1
    noise = torch.randn(2000, learner.acting().noise_size, generator=torch.Generator().manual_seed(2))

    def value(actions: Tensor) -> float:
        return learner.target_critic(obs, actions).amin(-2).mean().item()

    chosen = learner.acting().draw(obs, noise)
    assert chosen.shape == (2000, checks.ACTIONS) and chosen.abs().max() <= 1.0
    assert value(chosen) > value(plain.acting().draw(obs, noise[:, : checks.ACTIONS])) + 0.02
    assert torch.equal(learner.acting().mode(obs), plain.acting().mode(obs))  # without noise: the mode


# ---- every way of running, bad input


@pytest.mark.slow
@pytest.mark.parametrize(
    "keywords",
    [
        {"target_update_interval": 2},
        {"target_update": "soft", "weight_type": "binary", "advantage_type": "max", "num_critics": 1},
    ],
)
def test_every_way_of_running_gives_the_same_learner(keywords: dict[str, Any]) -> None:
    checks.check_stacked_equals_single(lambda seed: build(seed, **keywords))
    checks.check_resumes_exactly(lambda seed: build(seed, **keywords))
    backend = checks.WHOLE if "weight_type" in keywords else checks.GRAPHS
    checks.check_compiled_equals_eager(lambda seed: build(seed, **keywords), backend=backend)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"beta": 0.0}, "beta must be > 0, got 0.0"),
        ({"n_action_samples": 0}, "n_action_samples must be >= 1, got 0"),
        ({"max_weight": -20.0}, "max_weight must be > 0, got -20.0"),
        ({"target_update_interval": 0}, "target_update_interval must be >= 1, got 0"),
        ({"advantage_type": "min"}, "advantage_type must be 'mean' or 'max', got 'min'"),
    ],
)
def test_bad_values_fail_at_construction(keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as error:
        build(**keywords)
    assert str(error.value).startswith(message)


def test_logged_actions_on_the_boundary_keep_the_loss_finite() -> None:
    learner = build()
    actions = torch.ones(checks.BATCH, checks.ACTIONS)
    result = learner.update(checks.random_batch(0, actions=actions), global_step=0)
    assert math.isfinite(result.metrics["actor_loss"]) and learner.is_finite()


def test_the_learner_is_exported_under_both_names() -> None:
    assert CRRAlgorithm is CRR


# ---- problems with known answers


@pytest.mark.slow
@pytest.mark.parametrize("advantage_type", ["mean", "max"])
@pytest.mark.parametrize("kappa", [3.0, 1.0])
def test_bandit(advantage_type: str, kappa: float) -> None:
    learner = bandit(advantage_type=advantage_type, beta=1.0 / kappa)
    toy.fit(learner, toy.bandit())
    toy.check_policy(learner, kappa, unit=math.atanh(0.5))


@pytest.mark.slow
def test_bandit_with_an_unsquashed_policy() -> None:
    learner = CRR(toy.small(MLPIQLModel), target_update="soft", **toy.SETTINGS)
    toy.fit(learner, toy.bandit())
    toy.check_policy(learner, 1.0)


@pytest.mark.slow
def test_binary_weights_imitate_the_better_action_alone() -> None:
    learner = bandit(weight_type="binary")
    toy.fit(learner, toy.bandit())
    assert learner.acting().mode(torch.ones(1, 1)).item() == pytest.approx(0.5, abs=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("num_critics", [1, 2])
def test_chain(num_critics: int) -> None:
    model = toy.small(MLPSACModel, obs_dim=2, num_critics=num_critics)
    learner = CRR(model, gamma=0.9, target_update_interval=20, **toy.SETTINGS)
    toy.fit(learner, toy.chain())
    toy.check_chain_values(learner)
