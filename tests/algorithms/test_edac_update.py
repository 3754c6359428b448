"""EDAC and SAC-N: the diversity term and its gradients, the way to SAC, and the soft self-loop."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import learner_checks as checks
import toy_control as toy
from learner_checks import close, numbers
from rl_training.algorithms import EDAC, SAC, edac_loss
from rl_training.algorithms.edac import slope_similarity
from rl_training.config.run import load_config
from rl_training.core.errors import ConfigError
from rl_training.models import MLPEDACModel, MLPSACModel

SLOPES = numbers(((1.0, 0.0), (0.6, 0.8)), ((0.0, 2.0), (3.0, 4.0)), ((1.0, 1.0), (-0.6, -0.8)))
"""Action gradients of three critics in two states."""


def build(seed: int = 0, critics: int = 3, **keywords: Any) -> EDAC:
    return EDAC(checks.model(MLPEDACModel, seed, num_critics=critics), seed=seed, **keywords)


def noise_of(learner: SAC) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(9)
    return {
        name: torch.randn(*shape, generator=generator)
        for name, (_, shape) in learner.noise_shapes(checks.BATCH).items()
    }


# ---- known numbers


def test_similarity_is_the_mean_cosine_of_all_pairs() -> None:
    close(slope_similarity(SLOPES), 0.207107)
    close(slope_similarity(SLOPES[:, :1]), 0.5 * 2 * (0.0 + 0.707107 + 0.707107))
    close(slope_similarity(SLOPES[:, 1:]), 0.5 * 2 * (1.0 - 1.0 - 1.0))
    close(slope_similarity(5.0 * SLOPES), 0.207107)  # directions alone count


def test_its_gradient_turns_critics_away_from_each_other() -> None:
    (gradient,) = checks.gradients_of(slope_similarity, SLOPES)
    # state 1: half of (1 - u u') (sum of the other directions) / length; state 2: all on one line
    close(gradient[:, 0], ((0.0, 0.853553), (0.426777, 0.0), (0.0, 0.0)))
    close(gradient[:, 1], ((0.0, 0.0), (0.0, 0.0), (0.0, 0.0)))


def test_the_public_helper_composes_the_same_numbers() -> None:
    inputs = {
        "critic_q_values": numbers((2.0, 3.0, 2.5), (1.0, 0.0, 0.5)),
        "target_q_values": numbers(2.1286, 0.5),
        "sampled_q_values": numbers((1.0, 1.2, 0.9), (2.0, 1.7, 2.3)),
        "sampled_logprobs": numbers(-0.4, 0.6),
        "alpha": 0.2,
    }
    values = edac_loss({**inputs, "action_gradients": SLOPES.movedim(0, 1), "eta": 2.0})
    close(values["diversity_loss"], 0.207107)
    close(values["critic_loss"], 0.706907 + 2.0 * 0.207107)
    close(values["actor_loss"], 0.2 * 0.1 - 1.3)
    close(values["entropy_term"], 0.02)
    close(edac_loss({**inputs, "eta": 0.0})["critic_loss"], 0.706907)


def test_the_target_takes_the_minimum_of_all_critics() -> None:
    model = checks.table_model(
        MLPEDACModel, 2, numbers((2.0, 3.0), (1.5, 4.0), (1.0, 2.5)), num_critics=3, init="torch"
    )
    learner = EDAC(model, alpha=0.0)
    batch = {
        "rewards": numbers(1.0, 0.5),
        "dones": numbers(0.0, 0.0),
        "next_obs": torch.eye(2, dtype=torch.float64),
    }
    close(learner.value_target(batch, {"next": numbers((0.0,), (0.0,))}), (1.0 + 0.99, 0.5 + 0.99 * 2.5))


# ---- identities


def test_slopes_are_those_of_each_critic_alone() -> None:
    learner = build()
    batch = checks.random_batch(0)
    q, slopes = learner.values_and_slopes(batch["obs"], batch["actions"])
    torch.testing.assert_close(q, learner.critic(batch["obs"], batch["actions"]))
    for member in range(3):
        actions = batch["actions"].clone().requires_grad_(True)
        values = learner.critic(batch["obs"], actions)[member]
        torch.testing.assert_close(slopes[member], torch.autograd.grad(values.sum(), actions)[0])


@pytest.mark.parametrize("network", ["mlp", "residual"])
def test_any_network_gives_slopes(network: str) -> None:
    model = checks.model(MLPEDACModel, num_critics=2, network=network)
    _, slopes = EDAC(model).values_and_slopes(*(checks.random_batch(0)[name] for name in ("obs", "actions")))
    assert slopes.shape == (2, checks.BATCH, checks.ACTIONS) and bool(slopes.any())


def test_without_eta_two_critics_are_sac() -> None:
    sac_n = EDAC(checks.model(MLPSACModel), eta=0.0)
    sac = SAC(checks.model(MLPSACModel))
    batch, noise = checks.random_batch(0), noise_of(sac)
    assert torch.equal(sac_n.critic_loss(batch, noise)[0], sac.critic_loss(batch, noise)[0])
    assert torch.equal(sac_n.actor_loss(batch, noise, "full")[0], sac.actor_loss(batch, noise, "full")[0])


def test_eta_adds_its_share_of_the_similarity() -> None:
    batch = checks.random_batch(0)
    noise = noise_of(build())
    plain, _ = build(eta=0.0).critic_loss(batch, noise)
    loss, metrics = build(eta=3.0).critic_loss(batch, noise)
    torch.testing.assert_close(loss, plain + 3.0 * metrics["diversity_loss"])


# ---- the learner


def test_the_critic_loss_reaches_the_critics_alone() -> None:
    learner = build()
    loss, _ = learner.critic_loss(checks.random_batch(0), noise_of(learner))
    assert checks.reached(learner, loss) == {"model.critic"}


def test_temperature_and_actor_move_before_the_critics() -> None:
    learner = build()
    batch = checks.random_batch(0)
    metrics = learner.update(batch, global_step=0).metrics
    assert metrics["alpha"] == pytest.approx(learner.log_alpha.exp().item(), rel=1e-6)
    assert metrics["alpha"] != 1.0


def test_an_update_with_a_delay_leaves_the_actor_alone() -> None:
    learner = build(policy_delay=2)
    assert checks.moved(learner) == {"model.critic", "target.critic"}
    assert "model.actor" in checks.moved(learner)


def test_critics_learn_to_differ() -> None:
    """On equal data the slopes of critics agree less with the term than without it."""
    agreement = {}
    for eta in (0.0, 3.0):
        learner = build(eta=eta, learning_rate=3e-3)
        batch = checks.random_batch(0, batch_size=64)
        batch["rewards"] = batch["actions"].sum(-1)
        batch["dones"] = torch.ones(64)
        for step in range(60):
            learner.update(batch, global_step=step)
        _, slopes = learner.values_and_slopes(batch["obs"], batch["actions"])
        agreement[eta] = slope_similarity(slopes).item()
    assert agreement[0.0] > 1.5  # all three climb the same way: 2 at most
    assert agreement[3.0] < agreement[0.0] - 0.5


@pytest.mark.slow
@pytest.mark.parametrize("eta", [0.0, 1.0])
def test_every_way_of_running_gives_the_same_learner(eta: float) -> None:
    checks.check_stacked_equals_single(lambda seed: build(seed, eta=eta))
    checks.check_resumes_exactly(lambda seed: build(seed, eta=eta))
    if eta:  # without it, the step is made of SAC's parts
        checks.check_compiled_equals_eager(lambda seed: build(seed, eta=eta), updates=8)


def test_one_critic_cannot_be_compared() -> None:
    with pytest.raises(ConfigError, match=r"num_critics must be >= 2 with eta > 0 \(.*\), got 1"):
        build(critics=1)
    build(critics=1, eta=0.0)


@pytest.mark.slow
def test_the_soft_self_loop_has_the_known_value() -> None:
    toy.check_soft_self_loop(EDAC(toy.small(MLPEDACModel, num_critics=3), eta=0.0, **toy.SELF_LOOP))


@pytest.mark.slow
def test_diversity_leaves_the_value_nearly_as_it_is() -> None:
    """Critics pushed apart where all slopes are zero lose a little; without entropy it would be 10."""
    learner = EDAC(toy.small(MLPEDACModel, num_critics=3), eta=1.0, **toy.SELF_LOOP)
    toy.fit(learner, toy.soft_self_loop(), updates=800, batch_size=64)
    values = toy.value(learner, torch.ones(7), torch.linspace(-0.9, 0.9, 7))
    assert (values - toy.SELF_LOOP_VALUE).abs().max() < 0.3, values


@pytest.mark.parametrize(
    ("preset", "critics", "eta"),
    [
        ("locomotion", 10, 1.0),
        ("hopper", 50, 1.0),
        ("walker2d", 10, 1.0),
        ("halfcheetah_medium_expert", 10, 5.0),
        ("walker2d_medium_expert", 10, 5.0),
        ("sac_n", 10, 0.0),
        ("sac_n_hopper", 500, 0.0),
        ("sac_n_walker2d", 20, 0.0),
        ("adroit", 50, 200.0),
    ],
)
def test_packaged_sizes_are_the_published_ones(preset: str, critics: int, eta: float) -> None:
    kwargs = load_config(f"edac/{preset}").algo_kwargs
    assert (kwargs["num_critics"], kwargs["eta"]) == (critics, eta)
