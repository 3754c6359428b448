"""SAC: the numbers of its losses, what each loss may move, and control problems with known answers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import learner_checks as checks
import toy_control as toy
from learner_checks import close, numbers
from rl_training.algorithms import SAC, SACAlgorithm, losses, sac_loss
from rl_training.algorithms.optim import polyak
from rl_training.models import MLPSACModel
from rl_training.models.actors import log_tanh_derivative, squashed_log_prob, squashed_sample


def build(seed: int = 0, **keywords: Any) -> SAC:
    return SAC(checks.model(MLPSACModel, seed), seed=seed, **keywords)


# ---- the squashed Gaussian

MEAN, LOG_STD, PRE_TANH = numbers(0.3, -0.2), numbers(-0.5, 0.1), numbers(0.8, -1.5)


def test_squashed_sample_and_density_have_the_known_values() -> None:
    noise = (PRE_TANH - MEAN) * (-LOG_STD).exp()
    actions, logprob = squashed_sample(MEAN, LOG_STD, noise)
    close(actions, (0.664037, -0.905148))
    close(log_tanh_derivative(PRE_TANH), (-0.581507, -1.710880))
    close(logprob, -0.177102)
    close(squashed_log_prob(actions, MEAN, LOG_STD), -0.177102)


def test_the_density_stays_exact_where_the_policy_saturates() -> None:
    close(log_tanh_derivative(numbers(6.0, 9.0)), (-10.613718, -16.613706))


@pytest.mark.parametrize(("mean", "log_std"), [(0.0, 0.0), (0.7, -0.5), (-1.2, -1.5)])
def test_the_density_integrates_to_one(mean: float, log_std: float) -> None:
    actions = torch.linspace(-1, 1, 200_001, dtype=torch.float64)[1:-1].unsqueeze(-1)
    density = squashed_log_prob(actions, numbers(mean), numbers(log_std)).exp()
    assert abs(torch.trapezoid(density, actions.squeeze(-1)).item() - 1.0) < 1e-4


# ---- losses on known numbers

REWARDS, DONES = numbers(1.0, 0.5), numbers(0.0, 1.0)
NEXT_Q, NEXT_LOGPROBS = numbers((2.0, 3.0), (1.5, 4.0)), numbers(-0.7, 0.2)
TARGET = numbers(2.6236, 0.5)
Q = numbers((2.0, 1.0), (3.0, 0.0))
LOGPROBS, SAMPLED_Q = numbers(-0.4, 0.6), numbers((1.0, 2.0), (1.2, 1.7))


def soft_target(alpha: float) -> Tensor:
    next_value = losses.soft_value(losses.reduce_critics(NEXT_Q, "min"), NEXT_LOGPROBS, alpha)
    return losses.td_target(REWARDS, DONES, next_value, 0.99)


def test_the_target_has_the_known_values() -> None:
    close(soft_target(0.2), TARGET)
    close(soft_target(0.0), (2.485, 0.5))


def test_the_critic_loss_has_the_known_value_and_gradient() -> None:
    close(losses.critic_mse(Q, TARGET), 0.515277)
    close(losses.critic_mse(Q[:1], TARGET), 0.319438)
    close(losses.critic_mse(Q[1:], TARGET), 0.195838)
    (gradient,) = checks.gradients_of(lambda q: losses.critic_mse(q, TARGET), Q)
    close(gradient, ((-0.6236, 0.5), (0.3764, -0.5)))  # 2 (Q - y) / B


def test_the_actor_loss_has_the_known_value_and_gradient() -> None:
    def loss(q: Tensor, logprobs: Tensor) -> Tensor:
        return losses.soft_actor_loss(losses.reduce_critics(q, "min"), logprobs, 0.2)

    close(loss(SAMPLED_Q, LOGPROBS), -1.33)
    mean_q = losses.reduce_critics(SAMPLED_Q, "mean")
    close(losses.soft_actor_loss(mean_q, LOGPROBS, 0.2), -1.455)
    of_q, of_logprobs = checks.gradients_of(loss, SAMPLED_Q, LOGPROBS)
    close(of_q, ((-0.5, 0.0), (0.0, -0.5)))  # only the smaller critic of each row
    close(of_logprobs, (0.1, 0.1))


@pytest.mark.parametrize(("form", "value", "slope"), [("log", -1.448494, 0.9), ("exp", 0.18, 0.18)])
def test_the_temperature_falls_while_entropy_is_above_its_target(
    form: Any, value: float, slope: float
) -> None:
    log_alpha = numbers(0.2).log().squeeze()
    close(losses.temperature_loss(log_alpha, LOGPROBS, -1.0, form), value)
    (gradient,) = checks.gradients_of(lambda x: losses.temperature_loss(x, LOGPROBS, -1.0, form), log_alpha)
    close(gradient, slope)
    assert gradient > 0  # a descent step lowers alpha


def test_the_public_helper_composes_the_same_numbers() -> None:
    values = sac_loss(
        {
            "q1_values": Q[0],
            "q2_values": Q[1],
            "target_q_values": TARGET,
            "sampled_logprobs": LOGPROBS,
            "sampled_q1": SAMPLED_Q[0],
            "sampled_q2": SAMPLED_Q[1],
            "alpha": 0.2,
        }
    )
    close(values["critic_loss"], 0.515277)
    close(values["actor_loss"], -1.33)
    close(values["entropy_term"], 0.02)
    close(values["target_q_mean"], 1.5618)


def test_polyak_takes_over_its_share() -> None:
    target = numbers(1.0)
    polyak([target], [numbers(3.0)], 0.005)
    close(target, (1.01,))


def test_a_shape_that_would_broadcast_is_refused() -> None:
    with pytest.raises(ValueError, match="equal shapes"):
        losses.critic_mse(Q, TARGET.unsqueeze(-1))


# ---- the learner


def with_tables(learner: SAC) -> SAC:
    """The learner with its networks replaced by the known numbers."""
    learner.actor = lambda obs, noise: (obs, NEXT_LOGPROBS)  # type: ignore[assignment]
    learner.target_critic = lambda obs, actions: NEXT_Q  # type: ignore[assignment]
    return learner


def test_only_termination_cuts_the_bootstrap() -> None:
    learner = with_tables(build(alpha=0.2))
    batch = {"rewards": REWARDS, "dones": DONES, "next_obs": numbers((0.0,), (0.0,))}
    noise = {"next": numbers(0.0)}
    target = learner.value_target(batch, noise)
    torch.testing.assert_close(target, TARGET)
    # A time-out is stored with d = 0: its target bootstraps as any other row's.
    truncated = learner.value_target({**batch, "dones": torch.zeros_like(DONES)}, noise)
    close(truncated, (2.6236, 0.5 + 0.99 * (3.0 - 0.04)))


def test_rows_with_their_own_discount_replace_gamma() -> None:
    learner = with_tables(build(alpha=0.0))
    batch = {"rewards": REWARDS, "dones": torch.zeros(2), "next_obs": numbers((0.0,), (0.0,))}
    target = learner.value_target({**batch, "discounts": numbers(0.5, 0.25)}, {"next": numbers(0.0)})
    close(target, (1.0 + 0.5 * 1.5, 0.5 + 0.25 * 3.0))


def test_without_temperature_the_target_is_that_of_plain_q_learning() -> None:
    learner = build(alpha=0.0)
    batch, noise = checks.random_batch(0), {"next": torch.randn(checks.BATCH, checks.ACTIONS)}
    next_actions, _ = learner.actor(batch["next_obs"], noise["next"])
    next_q = learner.target_critic(batch["next_obs"], next_actions).amin(-2)
    expected = batch["rewards"] + 0.99 * (1.0 - batch["dones"]) * next_q
    torch.testing.assert_close(learner.value_target(batch, noise), expected)


def test_each_loss_reaches_only_what_it_trains() -> None:
    learner = build()
    batch, shape = checks.random_batch(0), (checks.BATCH, checks.ACTIONS)
    noise = {"next": torch.randn(shape), "current": torch.randn(shape)}
    critic_loss, _ = learner.critic_loss(batch, noise)
    assert checks.reached(learner, critic_loss) == {"model.critic"}
    actor_loss, logprobs = learner.actor_loss(batch, noise, "full")
    assert checks.reached(learner, learner.alpha_loss(logprobs, batch["obs"])) == {"scalar.log_alpha"}
    gradients = learner.gradients("actor", actor_loss)
    assert len(gradients) == len(list(learner.actor.parameters()))
    before = [parameter.clone() for parameter in learner.critic.parameters()]
    learner.minimize("actor", learner.actor_loss(batch, noise, "full")[0])
    assert all(torch.equal(a, b) for a, b in zip(before, learner.critic.parameters(), strict=True))


def test_a_fixed_temperature_has_no_optimiser() -> None:
    learner = build(alpha=0.3)
    assert set(learner.optimizers) == {"critic", "actor"}
    assert checks.run(learner, 2)["alpha"] == pytest.approx(0.3)


def test_a_delayed_actor_moves_on_the_last_update_of_each_round() -> None:
    learner = build(policy_delay=3)
    critics = {"model.critic", "target.critic"}
    assert checks.moved(learner) == critics
    assert checks.moved(learner) == critics
    assert checks.moved(learner) == {*critics, "model.actor", "scalar.log_alpha"}
    assert learner.last_metrics.keys() >= {"critic_loss", "actor_loss", "target_q_mean", "entropy_term"}


def test_the_same_seed_gives_the_same_weights() -> None:
    first, second = build(3), build(3)
    checks.run(first, 3)
    checks.run(second, 3)
    assert checks.difference(first, second) == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("keywords", [{}, {"policy_delay": 2, "temperature_loss": "exp"}, {"alpha": 0.1}])
def test_every_way_of_running_gives_the_same_learner(keywords: dict[str, Any]) -> None:
    checks.check_stacked_equals_single(lambda seed: build(seed, **keywords))
    checks.check_resumes_exactly(lambda seed: build(seed, **keywords))
    backend = checks.GRAPHS if "alpha" in keywords else checks.WHOLE
    checks.check_compiled_equals_eager(lambda seed: build(seed, **keywords), backend=backend)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"gamma": 1.5}, "gamma must be in [0, 1], got 1.5"),
        ({"tau": 0.0}, "tau must be in (0, 1], got 0.0"),
        ({"learning_rate": -1.0}, "learning_rate must be > 0, got -1.0"),
        ({"policy_delay": 0}, "policy_delay must be >= 1, got 0"),
        ({"gama": 0.9}, "gama is not a known key (did you mean 'gamma'?)"),
    ],
)
def test_bad_values_fail_at_construction(keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as error:
        build(**keywords)
    assert str(error.value) == message


def test_a_negative_temperature_fails_at_construction() -> None:
    with pytest.raises(ValueError, match="alpha must be"):
        build(alpha=-0.1)


def test_bad_batches_are_refused() -> None:
    batch = checks.random_batch(0)
    with pytest.raises(ValueError, match=r"SAC needs the batch field\(s\) \['dones'\]"):
        build().update({name: batch[name] for name in batch if name != "dones"}, global_step=0)
    with pytest.raises(ValueError, match=r"batch field rewards has shape \(16, 1\)"):
        build().update({**batch, "rewards": batch["rewards"].unsqueeze(-1)}, global_step=0)


def test_the_learner_is_exported_under_both_names() -> None:
    assert SACAlgorithm is SAC


# ---- problems with known answers


@pytest.mark.slow
def test_soft_self_loop() -> None:
    toy.check_soft_self_loop(SAC(toy.small(MLPSACModel), **toy.SELF_LOOP))


@pytest.mark.slow
def test_false_terminals_would_lower_the_value_of_the_self_loop() -> None:
    learner = SAC(toy.small(MLPSACModel), **toy.SELF_LOOP)
    toy.fit(learner, toy.soft_self_loop(done=1.0), updates=300, batch_size=64)
    assert toy.value(learner, torch.ones(1), torch.zeros(1)).item() == pytest.approx(1.0, abs=0.1)


@pytest.mark.slow
def test_learned_temperature() -> None:
    toy.check_temperature(SAC(toy.small(MLPSACModel), **toy.TEMPERATURE))


@pytest.mark.slow
def test_regulator() -> None:
    toy.check_regulator(SAC(toy.small(MLPSACModel), **toy.REGULATOR))
