"""TQC: its numbers, its truncation, and what it shares with SAC."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

import learner_checks as checks
import toy_control as toy
from learner_checks import close, numbers
from rl_training.algorithms import TQC, tqc_loss
from rl_training.algorithms import losses as quantiles
from rl_training.models import MLPTQCModel

NEXT = numbers(((1.0, 3.0, 5.0),), ((0.0, 2.0, 7.0),))  # [critic, row, quantile]
CURRENT = numbers(((0.5, 2.5, 4.0),), ((1.0, 1.5, 6.0),))
ATOMS = numbers((1.1386, 2.1286, 3.1186, 4.1086))


def target_atoms(drop: int, alpha: float = 0.2) -> Tensor:
    kept = quantiles.smallest_atoms(NEXT, drop)
    return quantiles.soft_target_atoms(kept, numbers(1.0), numbers(0.0), numbers(-0.7), alpha, 0.99)


def build(seed: int = 0, model: dict[str, Any] | None = None, **keywords: Any) -> TQC:
    sizes = {"num_critics": 3, "num_quantiles": 7, **(model or {})}
    return TQC(checks.model(MLPTQCModel, seed, **sizes), seed=seed, **keywords)


def by_loops(current: Tensor, atoms: Tensor, kappa: float) -> tuple[float, list[float]]:
    """The loss of one row and its gradient, pair by pair."""
    count, total, slopes = current.shape[-1], 0.0, []
    for values in current[:, 0].tolist():
        for k, quantile in enumerate(values):
            level, slope = (k + 0.5) / count, 0.0
            for atom in atoms[0].tolist():
                error = atom - quantile
                weight = abs(level - (error < 0))
                inside = abs(error) <= kappa
                total += weight * (0.5 * error**2 if inside else kappa * (abs(error) - 0.5 * kappa)) / kappa
                slope -= weight * (error if inside else kappa * (1 if error > 0 else -1)) / kappa
            slopes.append(slope)
    pairs = current.numel() * atoms.shape[-1]
    return total / pairs, [slope / pairs for slope in slopes]


# ---- known numbers


def test_the_largest_pooled_atoms_are_left_out() -> None:
    close(quantiles.smallest_atoms(NEXT, 1).sort().values, ((0.0, 1.0, 2.0, 3.0),))
    close(target_atoms(1).sort().values, ATOMS)
    assert quantiles.smallest_atoms(NEXT, 0).shape == (1, 6)


def test_the_cut_is_on_the_pool_not_on_each_critic() -> None:
    lopsided = numbers(((1.0, 2.0, 3.0),), ((10.0, 20.0, 30.0),))
    close(quantiles.smallest_atoms(lopsided, 1).sort().values, ((1.0, 2.0, 3.0, 10.0),))


def test_the_quantile_loss_has_the_known_values() -> None:
    close(quantiles.quantile_huber(CURRENT, ATOMS, 1.0), 0.307240)
    close(quantiles.quantile_huber(CURRENT, target_atoms(0), 1.0), 0.722911)


@pytest.mark.parametrize("kappa", [0.3, 1.0, 2.5])
def test_the_quantile_loss_and_its_gradient_follow_the_definition(kappa: float) -> None:
    value, slopes = by_loops(CURRENT, ATOMS, kappa)
    close(quantiles.quantile_huber(CURRENT, ATOMS, kappa), value)
    (gradient,) = checks.gradients_of(lambda q: quantiles.quantile_huber(q, ATOMS, kappa), CURRENT)
    close(gradient.flatten(), slopes)


def test_with_nothing_dropped_the_target_is_the_mean_of_all_quantiles() -> None:
    close(target_atoms(0).mean(), 4.1086)  # 1 + 0.99 (3 + 0.14)
    close(target_atoms(0, alpha=0.0).mean(), 1.0 + 0.99 * NEXT.mean())


def test_the_target_never_rises_with_the_number_dropped() -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(5, 64, 25, generator=generator)
    means = [quantiles.smallest_atoms(values, drop).mean(-1) for drop in range(25)]
    assert all((fewer >= more).all() for fewer, more in pairwise(means))
    assert means[0].mean() > means[2].mean() + 0.1


def test_one_quantile_of_one_critic_is_half_a_huber_regression() -> None:
    generator = torch.Generator().manual_seed(0)
    q, target = (3.0 * torch.randn(32, generator=generator) for _ in range(2))
    expected = 0.5 * torch.nn.functional.huber_loss(q, target)
    actual = quantiles.quantile_huber(q.reshape(1, 32, 1), target.unsqueeze(-1), 1.0)
    torch.testing.assert_close(actual, expected)


def test_shapes_that_would_broadcast_are_refused() -> None:
    with pytest.raises(ValueError, match="equal shapes"):
        quantiles.quantile_huber(torch.zeros(2, 8, 5), torch.zeros(1, 10), 1.0)


def test_the_public_helper_composes_the_same_numbers() -> None:
    values = tqc_loss(
        {
            "critic_quantiles": CURRENT.movedim(0, 1),
            "target_quantiles": ATOMS,
            "sampled_logprobs": numbers(-0.4),
            "sampled_q_values": CURRENT.mean((0, 2)),
            "alpha": 0.2,
        }
    )
    close(values["critic_loss"], 0.307240)
    close(values["actor_loss"], -0.08 - 2.583333)
    close(values["target_q_mean"], 2.6236)
    close(values["entropy_term"], -0.08)


# ---- the learner


def test_the_learner_builds_the_known_target_and_actor_value() -> None:
    model = checks.table_model(MLPTQCModel, 1, NEXT, num_critics=2, num_quantiles=3)
    learner = TQC(model, alpha=0.2, top_quantiles_to_drop_per_net=1)
    learner.actor = lambda obs, noise: (numbers((0.0,)), numbers(-0.7))  # type: ignore[assignment]
    state = numbers((1.0,))
    batch = {
        "rewards": numbers(1.0),
        "dones": numbers(0.0),
        "next_obs": state,
        "obs": state,
        "actions": state,
    }
    torch.testing.assert_close(
        learner.value_target(batch, {"next": state}).sort().values, ATOMS, check_dtype=False
    )
    ended = learner.value_target({**batch, "dones": numbers(1.0)}, {"next": state})
    close(ended, torch.ones(1, 4))
    close(learner.actor_value(state, numbers((0.0,))), (NEXT.mean(),))  # all quantiles, none left out


def test_rows_with_their_own_discount_replace_gamma() -> None:
    kept = quantiles.smallest_atoms(NEXT, 1)
    atoms = quantiles.soft_target_atoms(kept, numbers(1.0), numbers(0.0), numbers(0.0), 0.2, numbers(0.5))
    close(atoms.sort().values, ((1.0, 1.5, 2.0, 2.5),))


def test_each_loss_reaches_only_what_it_trains() -> None:
    learner = build()
    batch, shape = checks.random_batch(0), (checks.BATCH, checks.ACTIONS)
    noise = {"next": torch.randn(shape), "current": torch.randn(shape)}
    assert checks.reached(learner, learner.critic_loss(batch, noise)[0]) == {"model.critic"}
    _, logprobs = learner.actor_loss(batch, noise, "full")
    assert checks.reached(learner, learner.alpha_loss(logprobs, batch["obs"])) == {"scalar.log_alpha"}
    expected = {"model.critic", "target.critic", "model.actor", "scalar.log_alpha"}
    assert checks.moved(learner) == expected
    assert learner.last_metrics.keys() >= {"critic_loss", "actor_loss", "target_q_mean", "entropy_term"}


@pytest.mark.slow
@pytest.mark.parametrize("keywords", [{}, {"top_quantiles_to_drop_per_net": 0, "policy_delay": 2}])
def test_every_way_of_running_gives_the_same_learner(keywords: dict[str, Any]) -> None:
    checks.check_stacked_equals_single(lambda seed: build(seed, **keywords))
    checks.check_resumes_exactly(lambda seed: build(seed, **keywords))
    backend = checks.WHOLE if keywords else checks.GRAPHS
    checks.check_compiled_equals_eager(lambda seed: build(seed, **keywords), backend=backend)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        (
            {"top_quantiles_to_drop_per_net": 7},
            "top_quantiles_to_drop_per_net must be < num_quantiles (7), got 7",
        ),
        ({"top_quantiles_to_drop_per_net": -1}, "top_quantiles_to_drop_per_net must be >= 0, got -1"),
        ({"num_quantiles": 25}, "num_quantiles must equal the model's (7), got 25"),
        ({"num_critics": 2}, "num_critics must equal the model's (3), got 2"),
        ({"kappa": 0.0}, "kappa must be > 0, got 0.0"),
        ({"kappa": -1.0}, "kappa must be > 0, got -1.0"),
    ],
)
def test_bad_values_fail_at_construction(keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as error:
        build(**keywords)
    assert str(error.value) == message


# ---- the network


def test_the_model_gives_quantiles_and_their_means() -> None:
    model = MLPTQCModel(obs_dim=3, action_dim=1, hidden_sizes=(32, 32), num_critics=2, num_quantiles=7)
    obs, actions = torch.randn(4, 3), torch.rand(4, 1)
    values = model.quantile_values(obs, actions)
    assert values.shape == (4, 2, 7)
    q1, q2 = model.q_values(obs, actions)
    torch.testing.assert_close(torch.stack([q1, q2], -1), values.mean(-1))
    assert model.quantile_values(obs[0], actions[0]).shape == (1, 2, 7)
    assert values.std(1).min() > 0  # critics start apart


# ---- problems with known answers

SMALL: dict[str, Any] = {"num_critics": 2, "num_quantiles": 5}


@pytest.mark.slow
def test_soft_self_loop() -> None:
    learner = TQC(toy.small(MLPTQCModel, **SMALL), top_quantiles_to_drop_per_net=1, **toy.SELF_LOOP)
    toy.check_soft_self_loop(learner)


@pytest.mark.slow
def test_regulator() -> None:
    learner = TQC(toy.small(MLPTQCModel, **SMALL), top_quantiles_to_drop_per_net=1, **toy.REGULATOR)
    toy.check_regulator(learner)
