"""ReBRAC: its numbers, the exact way to TD3+BC and TD3, and problems with closed-form answers."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import learner_checks as checks
import toy_control as toy
from learner_checks import close, numbers
from rl_training.algorithms import TD3, ReBRAC, rebrac_loss, td3_bc_loss
from rl_training.algorithms.losses import reduce_critics, td_target, value_weight
from rl_training.algorithms.rebrac import penalised_value, squared_distance
from rl_training.algorithms.td3_bc import weighted_actor_loss
from rl_training.config.run import load_config
from rl_training.core.errors import ConfigError
from rl_training.models import MLPReBRACModel, MLPTD3Model

Q1, Q2 = numbers(3.0, -1.0, 2.0, 4.0), numbers(2.5, -0.5, 2.2, 3.0)
POLICY = numbers((0.5, -0.2), (0.1, 0.3), (-0.4, 0.6), (0.0, 0.9))
DATA = numbers((0.4, -0.1), (0.3, 0.3), (-0.5, 0.2), (0.2, 1.0))
CRITICS = {
    "q1_values": numbers(2.0, 1.0),
    "q2_values": numbers(3.0, 0.0),
    "target_q_values": numbers(2.6236, 0.5),
}
ACTORS = {"policy_actions": POLICY, "actions": DATA}


def build(seed: int = 0, **keywords: Any) -> ReBRAC:
    return ReBRAC(checks.model(MLPReBRACModel, seed), seed=seed, **keywords)


# ---- known numbers


def test_distances_are_summed_over_action_dimensions() -> None:
    close(squared_distance(POLICY, DATA), (0.02, 0.04, 0.17, 0.05))
    with pytest.raises(ValueError, match="equal shapes"):
        squared_distance(POLICY, DATA[:1])


@pytest.mark.parametrize(("normalize", "weight", "loss"), [(True, 0.470588, -0.729706), (False, 1.0, -1.59)])
def test_the_actor_loss_has_the_known_value(normalize: bool, weight: float, loss: float) -> None:
    values = rebrac_loss(
        {
            **CRITICS,
            **ACTORS,
            "actor_q1_values": Q1,
            "actor_q2_values": Q2,
            "actor_bc_coef": 0.5,
            "normalize_q": normalize,
        }
    )
    close(values["q_weight"], weight)
    close(values["bc_loss"], 0.07)
    close(values["actor_loss"], loss)
    close(values["critic_loss"], 0.515277)
    close(values["target_q_mean"], 1.5618)


def test_the_gradient_takes_the_lowest_critic_and_the_weight_for_a_constant() -> None:
    def loss(q1: Tensor, q2: Tensor, policy: Tensor) -> Tensor:
        q = torch.minimum(q1, q2)
        pull = 0.5 * squared_distance(policy, DATA).mean()
        return weighted_actor_loss(q, pull, value_weight(q, 1.0))

    of_q1, of_q2, of_policy = checks.gradients_of(loss, Q1, Q2, POLICY)
    share = -0.470588 / 4
    close(of_q1, (0.0, share, share, 0.0))
    close(of_q2, (share, 0.0, 0.0, share))
    close(of_policy, (POLICY - DATA) / 4)  # 0.5 * 2 (pi - a) / B


def test_the_target_pays_for_leaving_the_logged_next_action() -> None:
    next_q = reduce_critics(numbers((2.0, 3.0), (1.5, 4.0)), "min")
    penalty = squared_distance(numbers((0.6, 1.0), (-0.2, 0.1)), numbers((0.5, 0.8), (-0.3, 0.4)))
    close(penalty, (0.05, 0.1))
    value = penalised_value(next_q, penalty, 0.5)
    close(td_target(numbers(1.0, 0.5), numbers(0.0, 1.0), value, 0.99), (2.46025, 0.5))


def test_the_learner_composes_that_target() -> None:
    model = checks.table_model(MLPReBRACModel, 2, numbers((2.0, 3.0), (1.5, 4.0)))
    learner = ReBRAC(model, critic_bc_coef=0.5)
    with torch.no_grad():
        learner.target_actor.net.output.weight.zero_()  # type: ignore[union-attr]
        learner.target_actor.net.output.bias.zero_()  # type: ignore[union-attr]
    batch = {
        "rewards": numbers(1.0, 0.5),
        "dones": numbers(0.0, 1.0),
        "next_obs": torch.eye(2, dtype=torch.float64),
        "next_actions": numbers((0.3,), (0.5,)),
    }
    # the next action is 0.2 (one unit of noise): 1.5 - 0.5 * 0.1^2
    target = learner.value_target(batch, {"next": numbers((1.0,), (0.0,))})
    close(target, (1.0 + 0.99 * 1.495, 0.5))


# ---- identities


@pytest.mark.parametrize("alpha", [0.5, 2.5])
def test_td3_bc_is_alpha_times_rebrac_with_one_critic(alpha: float) -> None:
    """L_TD3+BC(alpha) = alpha L_ReBRAC(beta_1) with beta_1 = 1 / (alpha |A|): mean against sum over dims."""
    ours = rebrac_loss(
        {**CRITICS, **ACTORS, "actor_q1_values": Q1, "actor_q2_values": Q1, "actor_bc_coef": 1 / (2 * alpha)}
    )
    theirs = td3_bc_loss({**CRITICS, **ACTORS, "actor_q_values": Q1, "alpha": alpha})
    close(alpha * ours["actor_loss"], theirs["actor_loss"])


def test_without_pulls_and_with_equal_critics_it_is_td3() -> None:
    def twins() -> MLPTD3Model:
        model: MLPTD3Model = checks.model(MLPTD3Model)
        with torch.no_grad():
            for parameter in model.critic.parameters():
                parameter[1] = parameter[0]
        return model

    free = {"actor_bc_coef": 0.0, "critic_bc_coef": 0.0, "normalize_q": False}
    settings = {"learning_rate": 1e-3, "policy_delay": 1}
    rebrac, td3 = ReBRAC(twins(), **free, **settings), TD3(twins(), **settings)
    for learner in (rebrac, td3):
        checks.run(learner, 1)
    for name, tensor in td3.model.state_dict().items():
        torch.testing.assert_close(rebrac.model.state_dict()[name], tensor, rtol=1e-5, atol=1e-7)


# ---- the learner


def test_the_actor_climbs_the_lowest_critic() -> None:
    learner = build(actor_bc_coef=0.3)
    batch = checks.random_batch(0)
    loss, metrics = learner.actor_loss(batch)
    actions = learner.actor.mode(batch["obs"])
    q = learner.critic(batch["obs"], actions).amin(0)
    pull = 0.3 * (actions - batch["actions"]).square().sum(-1).mean()
    torch.testing.assert_close(loss, pull - q.mean() / q.abs().mean())
    assert metrics.keys() == {"actor_loss", "bc_loss", "q_weight"}
    assert "model.actor" in checks.reached(learner, loss)


def test_an_update_moves_each_part_by_its_own_loss() -> None:
    learner = build()
    assert checks.moved(learner) == {"model.critic"}
    assert checks.moved(learner) >= {"model.actor", "model.critic", "target.critic"}


def test_the_target_actor_takes_over_the_actor_before_its_step() -> None:
    learner = build(tau=0.25, policy_delay=1)
    before = {name: value.clone() for name, value in learner.tensors().items()}
    checks.run(learner, 1)
    after = learner.tensors()
    assert not torch.equal(after["model.actor.net.output.weight"], before["model.actor.net.output.weight"])
    assert torch.equal(after["target.actor.net.output.weight"], before["target.actor.net.output.weight"])
    critic = "critic.net.output.weight"
    expected = before[f"target.{critic}"] + 0.25 * (after[f"model.{critic}"] - before[f"target.{critic}"])
    torch.testing.assert_close(after[f"target.{critic}"], expected.detach())


def test_a_batch_without_next_actions_is_refused() -> None:
    batch = checks.random_batch(0)
    del batch["next_actions"]
    with pytest.raises(ConfigError, match=r"ReBRAC needs the batch field\(s\) \['next_actions'\]"):
        build().update(batch, global_step=0)


@pytest.mark.slow
def test_every_way_of_running_gives_the_same_learner() -> None:
    checks.check_stacked_equals_single(build)
    checks.check_resumes_exactly(build)
    checks.check_compiled_equals_eager(build, updates=8)


def test_its_networks_are_the_papers() -> None:
    model = MLPReBRACModel(3, 2)
    assert model.critic.net.hidden_sizes == [256, 256, 256]
    assert model.critic.net.plan.layer_norm == "after" and not model.actor.net.plan.layer_norm
    assert torch.equal(model.actor.net.hidden[0].bias, torch.full((1, 256), 0.1))  # type: ignore[index, union-attr]
    assert model.actor.net.output.weight.abs().max() <= 1e-3  # type: ignore[operator, union-attr]
    assert 1e-3 < model.critic.net.output.weight.abs().max() <= 3e-3  # type: ignore[operator, union-attr]


@pytest.mark.parametrize(
    ("preset", "weights"),
    [
        ("locomotion", (0.001, 0.01)),
        ("halfcheetah_medium_replay", (0.01, 0.001)),
        ("halfcheetah_medium_expert", (0.01, 0.1)),
        ("hopper_medium", (0.01, 0.01)),
        ("hopper_medium_replay", (0.05, 0.5)),
        ("hopper_medium_expert", (0.1, 0.01)),
        ("walker2d_medium", (0.05, 0.1)),
        ("walker2d_medium_replay", (0.05, 0.01)),
        ("walker2d_medium_expert", (0.01, 0.01)),
    ],
)
def test_packaged_weights_are_the_published_ones(preset: str, weights: tuple[float, float]) -> None:
    config = load_config(f"rebrac/{preset}")
    kwargs = config.algo_kwargs
    assert (kwargs["actor_bc_coef"], kwargs["critic_bc_coef"]) == weights
    env, _, quality = preset.partition("_")
    if quality:
        assert str(config.env_id).lower() == f"{env}-v5"
        data = kwargs.get("dataset_id") or kwargs["dataset_path"]
        assert env in data and quality in data


# ---- problems with known answers


@pytest.mark.slow
@pytest.mark.parametrize("coefficient", [0.4, 1.0])
def test_the_bandit_settles_between_data_and_value(coefficient: float) -> None:
    """r = a + 2, a uniform: 2 beta pi = 1 / (pi + 2), so pi = -1 + sqrt(1 + 1 / (2 beta))."""
    state, actions = torch.ones(toy.ROWS), torch.linspace(-1.0, 1.0, toy.ROWS)
    model = toy.small(MLPReBRACModel, critic_layer_norm=False, init="torch")
    learner = ReBRAC(model, actor_bc_coef=coefficient, tau=0.1, learning_rate=3e-3)
    data = toy.rows(state, actions, actions + 2.0, state, done=1.0)
    data["next_actions"] = data["actions"]
    toy.fit(learner, data, updates=1500, batch_size=128)
    best = -1.0 + math.sqrt(1.0 + 1.0 / (2.0 * coefficient))
    assert learner.actor.mode(torch.ones(1, 1)).item() == pytest.approx(best, abs=0.03)


@pytest.mark.slow
def test_the_penalty_is_discounted_with_the_value() -> None:
    """r = 1 for ever, pi held at 0.5, logged next actions at -0.5: Q = (1 - gamma beta_2) / (1 - gamma)."""
    state = torch.ones(toy.ROWS)
    data = toy.rows(state, torch.full_like(state, 0.5), state, state, done=0.0)
    data["next_actions"] = -data["actions"]
    settings = {"gamma": 0.8, "tau": 0.1, "learning_rate": 5e-3, "policy_noise": 0.0}
    learner = ReBRAC(
        toy.small(MLPReBRACModel, init="torch"), actor_bc_coef=1e3, critic_bc_coef=0.5, **settings
    )
    toy.fit(learner, data, updates=700, batch_size=16)
    q = learner.actor_value(torch.ones(1, 1), torch.full((1, 1), 0.5))
    assert q.item() == pytest.approx((1.0 - 0.8 * 0.5) / 0.2, abs=0.05)
