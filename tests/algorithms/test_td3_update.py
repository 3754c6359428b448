"""TD3: its numbers, its delay, its exploration, and a regulator with a closed-form answer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import learner_checks as checks
import toy_control as toy
from learner_checks import close, numbers
from rl_training.algorithms import TD3, TD3BC, td3_loss
from rl_training.algorithms.td3 import value_loss
from rl_training.core.spaces import unit_spaces
from rl_training.models import MLPTD3Model
from rl_training.models.actors import NoisyActor
from rl_training.policies.policy import Policy, pack_policy, unpack_policy

ACTOR_Q = numbers(3.0, -1.0, 2.0, 4.0)


def build(seed: int = 0, **keywords: Any) -> TD3:
    return TD3(checks.model(MLPTD3Model, seed), seed=seed, **keywords)


# ---- known numbers


def test_the_public_helper_composes_known_numbers() -> None:
    values = td3_loss(
        {
            "q1_values": numbers(2.0, 1.0),
            "q2_values": numbers(3.0, 0.0),
            "target_q_values": numbers(2.6236, 0.5),
            "actor_q_values": ACTOR_Q,
        }
    )
    close(values["critic_loss"], 0.515277)
    close(values["actor_loss"], -2.0)
    close(values["target_q_mean"], 1.5618)


def test_every_row_pulls_equally() -> None:
    close(checks.gradients_of(value_loss, ACTOR_Q)[0], (-0.25,) * 4)


def test_the_target_takes_the_target_actor_and_the_lower_critic() -> None:
    learner = TD3(checks.table_model(MLPTD3Model, 2, numbers((2.0, 3.0), (1.5, 4.0))))
    batch = {
        "rewards": numbers(1.0, 0.5),
        "dones": numbers(0.0, 1.0),
        "next_obs": torch.eye(2, dtype=torch.float64),
    }
    close(learner.value_target(batch, {"next": numbers((0.0,), (0.0,))}), (2.485, 0.5))


def test_the_actor_climbs_the_first_critic_alone() -> None:
    learner = build()
    batch = checks.random_batch(0)
    loss, metrics = learner.actor_loss(batch)
    first = learner.critic(batch["obs"], learner.actor.mode(batch["obs"]))[0]
    torch.testing.assert_close(loss, -first.mean())
    assert metrics.keys() == {"actor_loss"}
    assert checks.reached(learner, loss) == {"model.actor"}


def test_td3_bc_is_td3_with_a_pull() -> None:
    plain, pulled = build(), TD3BC(checks.model(MLPTD3Model, 0), seed=0, alpha=2.5)
    batch = checks.random_batch(0)
    loss, metrics = pulled.actor_loss(batch)
    expected = metrics["bc_loss"] + metrics["q_weight"] * plain.actor_loss(batch)[0]
    torch.testing.assert_close(loss, expected)
    noise = {"next": torch.randn(checks.BATCH, checks.ACTIONS)}
    assert torch.equal(plain.value_target(batch, noise), pulled.value_target(batch, noise))


# ---- the learner


def test_actor_and_targets_move_on_every_second_update() -> None:
    learner = build()
    assert checks.moved(learner) == {"model.critic"}
    assert checks.moved(learner) == {"model.actor", "model.critic", "target.actor", "target.critic"}
    assert checks.moved(learner) == {"model.critic"}


def test_targets_take_over_what_the_step_left() -> None:
    learner = build(tau=0.25, policy_delay=1)
    before = {name: value.clone() for name, value in learner.tensors().items()}
    checks.run(learner, 1)
    after = learner.tensors()
    for part in ("actor.net.output.weight", "critic.net.output.weight"):
        expected = before[f"target.{part}"] + 0.25 * (after[f"model.{part}"] - before[f"target.{part}"])
        torch.testing.assert_close(after[f"target.{part}"], expected.detach())


@pytest.mark.slow
def test_every_way_of_running_gives_the_same_learner() -> None:
    checks.check_stacked_equals_single(build)
    checks.check_resumes_exactly(build)
    checks.check_compiled_equals_eager(build, updates=8)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"exploration_noise": -0.1}, "exploration_noise must be >= 0, got -0.1"),
        ({"policy_delay": 0}, "policy_delay must be >= 1, got 0"),
    ],
)
def test_bad_values_fail_at_construction(keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as error:
        build(**keywords)
    assert str(error.value) == message


# ---- exploration


def test_a_random_action_is_the_deterministic_one_with_clipped_noise() -> None:
    learner = build(exploration_noise=0.5)
    actor = learner.acting()
    obs = torch.randn(3, checks.OBS)
    mode = learner.actor.mode(obs)
    assert torch.equal(actor.mode(obs), mode)
    noise = torch.tensor([[0.2, -0.4], [10.0, -10.0], [0.0, 0.0]])
    expected = torch.stack([mode[0] + 0.5 * noise[0], torch.tensor([1.0, -1.0]), mode[2]])
    torch.testing.assert_close(actor.draw(obs, noise), expected)


def test_exploration_has_the_spread_that_is_set() -> None:
    learner = build(exploration_noise=0.1)
    with torch.no_grad():
        for parameter in learner.actor.parameters():
            parameter.zero_()
    drawn = learner.policy.act(np.zeros((20_000, checks.OBS)), deterministic=False)
    assert abs(drawn.mean()) < 0.003 and abs(drawn.std() - 0.1) < 0.003
    assert (learner.policy.act(np.zeros((5, checks.OBS))) == 0.0).all()


def test_without_noise_the_actor_acts_itself() -> None:
    learner = build(exploration_noise=0.0)
    assert learner.acting() is learner.actor
    assert isinstance(build().acting(), NoisyActor)


def test_the_noisy_policy_survives_packing() -> None:
    learner = build(exploration_noise=0.3)
    again = unpack_policy(pack_policy(learner.policy))
    assert isinstance(again.actor, NoisyActor) and again.actor.sigma == 0.3
    obs = np.random.default_rng(0).normal(size=(4, checks.OBS))
    assert (again.act(obs) == learner.policy.act(obs)).all()
    fresh = Policy(learner.acting(), unit_spaces(checks.OBS, checks.ACTIONS))
    assert (again.act(obs, False) == fresh.act(obs, False)).all()  # both generators are at their start


# ---- s' = (s + a) / 2, r = -(s^2 + a^2 / 10): a = -K s


@pytest.mark.slow
def test_the_regulator_is_found() -> None:
    settings = {"gamma": 0.9, "tau": 0.1, "learning_rate": 3e-3, "policy_noise": 0.0}
    learner = TD3(toy.small(MLPTD3Model, hidden_sizes=(64, 64)), **settings)
    toy.fit(learner, toy.closed_regulator(), updates=1800, batch_size=128)
    states = torch.linspace(-0.8, 0.8, 9)
    with torch.no_grad():
        actions = learner.actor.mode(states.unsqueeze(-1)).squeeze(-1)
        gain = -(states * actions).sum() / states.square().sum()
        s, a = (grid.flatten() for grid in torch.meshgrid(states, states, indexing="ij"))
        q = learner.actor_value(s.unsqueeze(-1), a.unsqueeze(-1))
    assert abs(gain - toy.REGULATOR_GAIN) < 0.12, gain
    exact = -(s.square() + 0.1 * a.square()) - 0.9 * toy.REGULATOR_COST * (0.5 * (s + a)).square()
    assert (q - exact).abs().max() < 0.15, (q - exact).abs().max()
