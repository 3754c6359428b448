"""REDQ: its numbers, its random subsets, its delay, and what it shares with SAC."""

from __future__ import annotations

import copy
from collections import Counter
from itertools import combinations
from typing import Any

import pytest
import torch
from torch import Tensor

import learner_checks as checks
import toy_control as toy
from learner_checks import close, numbers
from rl_training.algorithms import REDQ, SAC, losses, redq_loss
from rl_training.algorithms.losses import random_subset
from rl_training.algorithms.redq import _sample_target_critic_indices
from rl_training.models import MLPREDQModel, MLPSACModel
from rl_training.models.layers import Linear

NEXT_Q = numbers((2.0, 3.0), (1.5, 4.0), (1.0, 2.5))
NEXT_LOGPROBS = numbers(-0.7, 0.2)
TARGET = numbers(2.1286, 0.5)
Q = numbers((2.0, 1.0), (3.0, 0.0), (2.5, 0.5))
SAMPLED_Q, LOGPROBS = numbers((1.0, 2.0), (1.2, 1.7), (0.9, 2.3)), numbers(-0.4, 0.6)


def build(seed: int = 0, num_critics: int = 5, model: dict[str, Any] | None = None, **keywords: Any) -> REDQ:
    network = checks.model(MLPREDQModel, seed, num_critics=num_critics, **(model or {}))
    return REDQ(network, seed=seed, **{"policy_delay": 3, **keywords})


# ---- known numbers


def test_the_target_is_the_soft_minimum_over_the_drawn_subset() -> None:
    learner = REDQ(checks.table_model(MLPREDQModel, 2, NEXT_Q, num_critics=3), alpha=0.2)
    learner.actor = lambda obs, noise: (numbers((0.0,), (0.0,)), NEXT_LOGPROBS)  # type: ignore[assignment]
    batch = {
        "rewards": numbers(1.0, 0.5),
        "dones": numbers(0.0, 1.0),
        "next_obs": torch.eye(2, dtype=torch.float64),
    }
    first_and_third = numbers(0.9, -0.5, 0.3)
    torch.testing.assert_close(
        learner.value_target(batch, {"next": numbers(0.0), "subset": first_and_third}), TARGET
    )
    second_alone = REDQ(learner.model, alpha=0.2, subset_size=1)
    second_alone.actor = learner.actor
    target = second_alone.value_target(batch, {"next": numbers(0.0), "subset": numbers(-0.9, 0.5, 0.3)})
    close(target, (1.0 + 0.99 * (1.5 + 0.14), 0.5))


def test_every_critic_regresses_on_the_same_target() -> None:
    close(losses.critic_mse(Q, TARGET), 0.706907)
    (gradient,) = checks.gradients_of(lambda q: losses.critic_mse(q, TARGET), Q)
    close(gradient, Q - TARGET)  # 2 (Q - y) / B with B = 2


def test_the_actor_climbs_the_mean_of_all_critics() -> None:
    def loss(q: Tensor, logprobs: Tensor) -> Tensor:
        return losses.soft_actor_loss(losses.reduce_critics(q, "mean"), logprobs, 0.2)

    close(loss(SAMPLED_Q, LOGPROBS), -1.496667)
    of_q, of_logprobs = checks.gradients_of(loss, SAMPLED_Q, LOGPROBS)
    close(of_q, torch.full((3, 2), -1 / 6))
    close(of_logprobs, (0.1, 0.1))
    assert build().config.actor_reduce == "mean"


def test_the_public_helper_composes_the_same_numbers() -> None:
    inputs: dict[str, Tensor | float] = {
        "critic_q_values": Q.T,
        "target_q_values": TARGET,
        "sampled_logprobs": LOGPROBS,
        "sampled_q_values": SAMPLED_Q.T,
        "alpha": 0.2,
    }
    values = redq_loss(inputs)
    close(values["critic_loss"], 0.706907)
    close(values["actor_loss"], -1.496667)
    close(values["target_q_mean"], 1.3143)
    close(values["entropy_term"], 0.02)
    assert redq_loss({**inputs, "sampled_q_values": SAMPLED_Q.mean(0)}) == values


# ---- against SAC


def test_two_critics_in_a_subset_of_two_are_sac() -> None:
    model = checks.model(MLPSACModel)
    sac = SAC(copy.deepcopy(model), actor_reduce="mean")
    redq = REDQ(copy.deepcopy(model), subset_size=2, policy_delay=1)
    batch, shape = checks.random_batch(0), (checks.BATCH, checks.ACTIONS)
    generator = torch.Generator().manual_seed(1)
    noise = {name: torch.randn(shape, generator=generator) for name in ("next", "current")}
    noise["subset"] = torch.rand(2, generator=generator)
    torch.testing.assert_close(redq.value_target(batch, noise), sac.value_target(batch, noise))
    torch.testing.assert_close(redq.critic_loss(batch, noise)[0], sac.critic_loss(batch, noise)[0])
    torch.testing.assert_close(
        redq.actor_loss(batch, noise, "full")[0], sac.actor_loss(batch, noise, "full")[0]
    )


def test_the_actor_sees_the_critics_before_their_step() -> None:
    model = checks.model(MLPREDQModel, num_critics=3)
    ours = REDQ(copy.deepcopy(model), policy_delay=1)
    batch = checks.random_batch(0)
    expected = REDQ(copy.deepcopy(model), policy_delay=1)
    shapes = expected.noise_shapes(checks.BATCH)
    flat = expected.streams["normal"].next(2 * checks.BATCH * checks.ACTIONS)
    noise = {"current": flat.reshape(2, checks.BATCH, checks.ACTIONS)[1]}
    assert list(shapes) == ["next", "current", "subset"]
    loss, _ = expected.actor_loss(batch, noise, "full")
    expected.minimize("actor", loss)
    metrics = ours.update(batch, global_step=0).metrics
    assert metrics["actor_loss"] == pytest.approx(loss.item(), rel=1e-6)
    for a, b in zip(ours.actor.parameters(), expected.actor.parameters(), strict=True):
        torch.testing.assert_close(a, b)


# ---- subsets


def test_every_subset_occurs_equally_often_and_none_repeats_a_critic() -> None:
    generator = torch.Generator().manual_seed(0)
    draws = random_subset(torch.rand(6000, 5, generator=generator), 2)
    counts = Counter(tuple(sorted(draw)) for draw in draws.tolist())
    assert set(counts) == set(combinations(range(5), 2))
    assert all(abs(count - 600) < 5 * (600 * 0.9) ** 0.5 for count in counts.values())


def test_the_draw_of_one_update_stands_alone() -> None:
    draws = [_sample_target_critic_indices(num_critics=10, subset_size=3) for _ in range(50)]
    assert all(draw.shape == (3,) and draw.dtype == torch.int64 for draw in draws)
    assert all(len(set(draw.tolist())) == 3 and draw.min() >= 0 and draw.max() < 10 for draw in draws)
    assert len({tuple(draw.tolist()) for draw in draws}) > 10


def test_a_learner_draws_all_subsets_from_its_own_stream() -> None:
    learner, seen = build(num_critics=4), set()
    draw = random_subset

    def recorded(uniform: Tensor, size: int) -> Tensor:
        subset = draw(uniform, size)
        seen.add(tuple(sorted(subset.tolist())))
        return subset

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rl_training.algorithms.redq.random_subset", recorded)
        checks.run(learner, 60)
    assert seen == set(combinations(range(4), 2))


# ---- the learner


def test_policy_updates_equal_environment_steps_when_delay_is_g() -> None:
    learner, environment_steps = build(policy_delay=4), 3
    checks.run(learner, environment_steps * 4)
    assert learner.optimizers["actor"].step_count.item() == environment_steps
    assert learner.optimizers["alpha"].step_count.item() == environment_steps
    assert learner.optimizers["critic"].step_count.item() == environment_steps * 4


def test_targets_move_every_update_and_the_actor_on_the_last_of_a_round() -> None:
    learner = build(policy_delay=2)
    assert checks.moved(learner) == {"model.critic", "target.critic"}
    assert checks.moved(learner) == {"model.critic", "target.critic", "model.actor", "scalar.log_alpha"}


def test_all_metrics_are_there_from_the_first_update_on() -> None:
    metrics = checks.run(build(), 1)
    assert metrics.keys() >= {"critic_loss", "actor_loss", "target_q_mean", "entropy_term"}
    assert metrics["actor_loss"] == 0.0  # the actor has not been updated yet


def test_the_critic_loss_reaches_the_critics_alone() -> None:
    learner = build()
    shape = (checks.BATCH, checks.ACTIONS)
    noise = {"next": torch.randn(shape), "current": torch.randn(shape), "subset": torch.rand(5)}
    loss, _ = learner.critic_loss(checks.random_batch(0), noise)
    assert checks.reached(learner, loss) == {"model.critic"}
    loss, _ = learner.critic_loss(checks.random_batch(0), noise)
    for gradient in learner.gradients("critic", loss):
        assert (gradient.flatten(1).abs().sum(-1) > 0).all()  # every critic, not only the subset


@pytest.mark.slow
@pytest.mark.parametrize("layer_norm", [False, True])
def test_every_way_of_running_gives_the_same_learner(layer_norm: bool) -> None:
    def make(seed: int) -> REDQ:
        return build(seed, model={"layer_norm": layer_norm})

    checks.check_stacked_equals_single(make, updates=6)
    checks.check_resumes_exactly(make, updates=4)
    checks.check_compiled_equals_eager(make, backend=checks.WHOLE if layer_norm else checks.GRAPHS)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"subset_size": 0}, "subset_size must be >= 1, got 0"),
        ({"subset_size": 6}, "subset_size must be <= num_critics (5), got 6"),
        ({"num_critics": 5, "subset_size": 0}, "subset_size must be >= 1, got 0"),
        ({"num_critics": 7}, "num_critics must equal the model's (5), got 7"),
        ({"num_critics": 0}, "num_critics must equal the model's (5), got 0"),
        ({"policy_delay": 0}, "policy_delay must be >= 1, got 0"),
    ],
)
def test_bad_values_fail_at_construction(keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as error:
        REDQ(checks.model(MLPREDQModel, num_critics=5), **keywords)
    assert str(error.value) == message


# ---- the network


def test_values_of_all_critics_come_as_columns() -> None:
    model = MLPREDQModel(obs_dim=4, action_dim=2, hidden_sizes=(32, 32), num_critics=5)
    assert model.q_values(torch.zeros(7, 4), torch.zeros(7, 2)).shape == (7, 5)
    assert model.q_values(torch.zeros(4), torch.zeros(2)).shape == (1, 5)
    sampled = model.sample_actions(torch.zeros(7, 4))
    assert sampled.actions.shape == (7, 2) and sampled.logprobs.shape == (7,)
    assert sampled.actions.abs().max() <= 1.0


def test_critics_start_apart_with_xavier_weights_and_zero_biases() -> None:
    model = checks.model(MLPREDQModel, num_critics=5, hidden_sizes=(64, 64))
    layers = [layer for layer in model.modules() if isinstance(layer, Linear)]
    for layer in layers:
        fan_in, fan_out = layer.weight.shape[-2:]
        bound = (6.0 / (fan_in + fan_out)) ** 0.5
        assert bound * 0.8 < layer.weight.abs().max().item() <= bound
        assert not layer.bias.any()
    values = model.q_values(torch.ones(1, checks.OBS), torch.ones(1, checks.ACTIONS))
    assert values.std() > 1e-3


# ---- problems with known answers


@pytest.mark.slow
def test_soft_self_loop() -> None:
    learner = REDQ(toy.small(MLPREDQModel, num_critics=5), policy_delay=1, **toy.SELF_LOOP)
    toy.check_soft_self_loop(learner)


@pytest.mark.slow
def test_regulator() -> None:
    learner = REDQ(toy.small(MLPREDQModel, num_critics=5), policy_delay=1, **toy.REGULATOR)
    toy.check_regulator(learner)
