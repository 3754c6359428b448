"""TD3+BC: its numbers, its limits, its delay, and a bandit with a closed-form answer."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import learner_checks as checks
import toy_control as toy
from learner_checks import close, numbers
from rl_training.algorithms import TD3BC, td3_bc_loss
from rl_training.algorithms.bc import imitation_error
from rl_training.algorithms.td3_bc import smoothed_actions, value_weight, weighted_actor_loss
from rl_training.core.transforms import ObservationNormalizer
from rl_training.models import MLPTD3Model

ACTOR_Q = numbers(3.0, -1.0, 2.0, 4.0)
POLICY = numbers((0.5, -0.2), (0.1, 0.3), (-0.4, 0.6), (0.0, 0.9))
DATA = numbers((0.4, -0.1), (0.3, 0.3), (-0.5, 0.2), (0.2, 1.0))


def actor_loss(q: Tensor, policy: Tensor, alpha: float) -> Tensor:
    return weighted_actor_loss(q, imitation_error(policy, DATA), value_weight(q, alpha))


def build(seed: int = 0, **keywords: Any) -> TD3BC:
    return TD3BC(checks.model(MLPTD3Model, seed), seed=seed, **keywords)


# ---- known numbers


def test_values_are_weighted_by_their_own_size() -> None:
    close(value_weight(ACTOR_Q, 2.5), 1.0)
    close(imitation_error(POLICY, DATA), 0.035)
    close(actor_loss(ACTOR_Q, POLICY, 2.5), -1.965)


def test_the_gradient_takes_the_weight_for_a_constant() -> None:
    of_q, of_policy = checks.gradients_of(lambda q, policy: actor_loss(q, policy, 2.5), ACTOR_Q, POLICY)
    close(of_q, (-0.25,) * 4)  # -lambda / B
    close(of_policy, (POLICY - DATA) / 4)


def test_the_next_action_has_clipped_noise_and_stays_in_bounds() -> None:
    close(smoothed_actions(numbers(0.4, 0.7), numbers(1.0, 4.0), 0.2, 0.5), (0.6, 1.0))
    close(smoothed_actions(numbers(0.0, 0.0), numbers(4.0, -4.0), 0.2, 0.5), (0.5, -0.5))


def test_the_public_helper_composes_the_same_numbers() -> None:
    values = td3_bc_loss(
        {
            "q1_values": numbers(2.0, 1.0),
            "q2_values": numbers(3.0, 0.0),
            "target_q_values": numbers(2.6236, 0.5),
            "actor_q_values": ACTOR_Q,
            "policy_actions": POLICY,
            "actions": DATA,
            "alpha": 2.5,
        }
    )
    close(values["critic_loss"], 0.515277)
    close(values["actor_loss"], -1.965)
    close(values["bc_loss"], 0.035)
    close(values["q_weight"], 1.0)
    close(values["target_q_mean"], 1.5618)


def test_observations_are_normalised_with_the_population_spread() -> None:
    obs = numbers((1.0, 10.0), (2.0, 10.0), (4.0, 10.0))
    normalizer = ObservationNormalizer(obs.mean(0), obs.std(0, unbiased=False))
    close(normalizer.apply(obs), ((-1.068189, 0.0), (-0.267047, 0.0), (1.335236, 0.0)))


# ---- identities


def test_the_loss_does_not_depend_on_the_scale_of_the_values() -> None:
    close(actor_loss(7.0 * ACTOR_Q, POLICY, 2.5), -1.965)
    assert torch.isfinite(actor_loss(0.0 * ACTOR_Q, POLICY, 2.5))


@pytest.mark.parametrize(("alpha", "follows"), [(1e6, "values"), (1e-6, "data")])
def test_the_weight_turns_the_actor_to_the_values_or_to_the_data(alpha: float, follows: str) -> None:
    slope = torch.randn(4, 2, generator=torch.Generator().manual_seed(0)).double()

    def loss(policy: Tensor) -> Tensor:
        return actor_loss((slope * policy).sum(-1), policy, alpha)

    (gradient,) = checks.gradients_of(loss, POLICY)
    expected = -slope if follows == "values" else POLICY - DATA
    assert torch.cosine_similarity(gradient.flatten(), expected.flatten(), dim=0) > 0.999


def test_the_target_takes_the_target_actor_and_the_lower_critic() -> None:
    next_q = numbers((2.0, 3.0), (1.5, 4.0))
    learner = TD3BC(checks.table_model(MLPTD3Model, 2, next_q))
    batch = {
        "rewards": numbers(1.0, 0.5),
        "dones": numbers(0.0, 1.0),
        "next_obs": torch.eye(2, dtype=torch.float64),
    }
    close(learner.value_target(batch, {"next": numbers((0.0,), (0.0,))}), (2.485, 0.5))
    with torch.no_grad():
        for parameter in learner.actor.parameters():
            parameter.fill_(3.0)
        learner.target_critic.net.output.weight[:, 2] = 1.0  # type: ignore[union-attr]
    calm = learner.target_actor.mode(batch["next_obs"])
    target = learner.value_target({**batch, "dones": numbers(0.0, 0.0)}, {"next": numbers((0.0,), (0.0,))})
    close(target, batch["rewards"] + 0.99 * (next_q.amin(0) + calm.squeeze(-1)))


def test_the_actor_climbs_the_first_critic_alone() -> None:
    learner = build()
    batch = checks.random_batch(0)
    loss, metrics = learner.actor_loss(batch)
    actions = learner.actor.mode(batch["obs"])
    first = learner.critic(batch["obs"], actions)[0]
    expected = imitation_error(actions, batch["actions"]) - 2.5 * first.mean() / first.abs().mean()
    torch.testing.assert_close(loss, expected)
    assert metrics.keys() == {"actor_loss", "bc_loss", "q_weight"}


# ---- the learner


def test_actor_and_targets_move_on_every_second_update() -> None:
    learner = build()
    everything = {"model.actor", "model.critic", "target.actor", "target.critic"}
    assert checks.moved(learner) == {"model.critic"}
    assert checks.moved(learner) == everything
    assert checks.moved(learner) == {"model.critic"}
    assert learner.optimizers["actor"].step_count.item() == 1


def test_targets_take_over_their_share() -> None:
    learner = build(tau=0.25, policy_delay=1)
    before = {name: value.clone() for name, value in learner.tensors().items()}
    checks.run(learner, 1)
    after = learner.tensors()
    for part in ("actor.net.output.weight", "critic.net.output.weight"):
        expected = before[f"target.{part}"] + 0.25 * (after[f"model.{part}"] - before[f"target.{part}"])
        torch.testing.assert_close(after[f"target.{part}"], expected.detach())


def test_the_critic_loss_reaches_the_critics_alone() -> None:
    learner = build()
    batch = checks.random_batch(0)
    target = learner.value_target(batch, {"next": torch.zeros(checks.BATCH, checks.ACTIONS)})
    assert not learner.target_actor.net.output.weight.requires_grad
    loss = (learner.critic(batch["obs"], batch["actions"]) - target.detach()).square().mean()
    assert checks.reached(learner, loss) == {"model.critic"}
    assert checks.reached(learner, learner.actor_loss(batch)[0]) == {"model.actor"}


def test_all_metrics_are_there_from_the_first_update_on() -> None:
    metrics = checks.run(build(), 1)
    assert metrics.keys() >= {"critic_loss", "actor_loss", "bc_loss", "target_q_mean"}
    assert metrics["actor_loss"] == 0.0  # the actor has not been updated yet


@pytest.mark.slow
@pytest.mark.parametrize("policy_delay", [1, 2, 3])
def test_every_way_of_running_gives_the_same_learner(policy_delay: int) -> None:
    checks.check_stacked_equals_single(lambda seed: build(seed, policy_delay=policy_delay))
    checks.check_resumes_exactly(lambda seed: build(seed, policy_delay=policy_delay))
    backend = checks.WHOLE if policy_delay == 2 else checks.GRAPHS
    checks.check_compiled_equals_eager(lambda seed: build(seed, policy_delay=policy_delay), backend=backend)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"alpha": 0.0}, "alpha must be > 0, got 0.0"),
        ({"policy_delay": 0}, "policy_delay must be >= 1, got 0"),
        ({"policy_noise": -0.1}, "policy_noise must be >= 0, got -0.1"),
        ({"noise_clip": -0.5}, "noise_clip must be >= 0, got -0.5"),
        ({"tau": 0.0}, "tau must be in (0, 1], got 0.0"),
    ],
)
def test_bad_values_fail_at_construction(keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as error:
        build(**keywords)
    assert str(error.value) == message


# ---- r = a + 2 for uniform actions: between the data's mean, 0, and the best action, 1


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [2.5, 1.0, 1e6, 1e-6])
def test_the_bandit_settles_between_data_and_value(alpha: float) -> None:
    state, actions = torch.ones(toy.ROWS), torch.linspace(-1.0, 1.0, toy.ROWS)
    learner = TD3BC(toy.small(MLPTD3Model, hidden_sizes=(64, 64)), alpha=alpha, tau=0.1, learning_rate=3e-3)
    toy.fit(learner, toy.rows(state, actions, actions + 2.0, state, done=1.0), updates=2000, batch_size=128)
    best = min(1.0, (-4.0 + math.sqrt(16.0 + 8.0 * alpha)) / 4.0)
    assert learner.acting().mode(torch.ones(1, 1)).item() == pytest.approx(best, abs=0.03)
