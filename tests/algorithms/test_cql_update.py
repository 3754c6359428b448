"""CQL against numbers worked out by hand, identities, and problems with known answers."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from learner_checks import (
    Build,
    check_compiled_equals_eager,
    check_resumes_exactly,
    check_stacked_equals_single,
    close,
    reached,
)
from rl_training.algorithms import conservative, losses
from rl_training.algorithms.conservative import cql_penalty
from rl_training.algorithms.cql import CQL, cql_loss
from rl_training.algorithms.sac import SAC, sac_loss
from rl_training.models.actors import squashed_log_prob
from toy_conservative import (
    StateTable,
    TwoBins,
    doubles,
    model_with_critic,
    noise_for,
    random_batch,
    small_model,
    train_with_falling_rate,
)

# Two states, two actions per source, two action dimensions.
EXAMPLE = {
    "q_random": [[0.5, -1.0], [2.0, 0.0]],
    "q_next_policy": [[1.0, 0.2], [1.5, 2.5]],
    "q_policy": [[0.8, 1.2], [3.0, 2.0]],
    "q_data": [1.1, 1.9],
}
LOGPROBS = {
    "logprobs_next_policy": [[-0.3, 0.9], [0.4, -1.2]],
    "logprobs_policy": [[0.1, -0.6], [1.1, 0.2]],
}
VARIANTS: dict[str, dict[str, Any]] = {
    "rich": {
        "lagrange": True,
        "target_gap": 0.8,
        "clip_diff_min": -200.0,
        "max_target_backup": True,
        "backup_entropy": True,
        "bc_steps": 2,
    },
    "plain": {"importance_weights": False, "action_sources": ("uniform", "current"), "backup_entropy": True},
}


def example(requires_grad: bool = False) -> dict[str, Tensor]:
    return {name: doubles(value).requires_grad_(requires_grad) for name, value in EXAMPLE.items()}


def penalty_of(values: dict[str, Tensor], **options: Any) -> Tensor:
    densities = {name: doubles(value) for name, value in LOGPROBS.items()}
    return cql_penalty(**values, **{**densities, "action_dim": 2, "cql_alpha": 5.0, **options})


# ---- the conservative term


def test_penalty_and_its_gradients() -> None:
    values = example(requires_grad=True)
    penalty = penalty_of(values)
    close(penalty, 11.268402)
    penalty.backward()
    close(values["q_random"].grad, [[0.812351, 0.181260], [0.823355, 0.111429]])
    close(values["q_next_policy"].grad, [[0.451980, 0.061169], [0.083688, 1.126751]])
    close(values["q_policy"].grad, [[0.248052, 0.745189], [0.186251, 0.168527]])
    close(values["q_data"].grad, [-2.5, -2.5])
    close(sum(value.grad.sum() for value in values.values()), 0.0)


def test_soft_maximum_of_each_state() -> None:
    values = example()
    q = torch.cat([values["q_random"], values["q_next_policy"], values["q_policy"]], -1)
    density = conservative.log_densities(2, 2, [doubles(value) for value in LOGPROBS.values()])
    close(density[0, :2], [-1.386294, -1.386294])
    close(conservative.soft_maximum(q, density), [3.010408, 4.496953])


@pytest.mark.parametrize(
    ("options", "gap"),
    [
        ({}, 2.253680),
        ({"clip_min": 2.0}, 2.298476),
        ({"clip_max": 2.0}, 1.955204),
        ({"temperature": 2.0}, 4.654926),  # with log mu divided by T too it would be 3.854276
        ({"importance_weights": False}, 1.877862),
    ],
)
def test_forms_of_the_gap(options: dict[str, Any], gap: float) -> None:
    close(penalty_of(example(), cql_alpha=1.0, **options), gap)


def test_clipped_states_push_nothing() -> None:
    values = example(requires_grad=True)
    penalty_of(values, clip_min=2.0).backward()  # binds in the first state only
    close(values["q_data"].grad, [0.0, -2.5])
    close(values["q_random"].grad[0], [0.0, 0.0])


def test_lagrange_forms_and_the_dual_gradient() -> None:
    gap, log_multiplier = doubles([2.253680, 2.253680]), doubles(1.0).requires_grad_()
    term = conservative.lagrange_penalty(gap, conservative.multiplier(log_multiplier), 5.0, 0.8)
    torch.testing.assert_close(term, doubles([19.757566] * 2), rtol=1e-5, atol=0)
    (gradient,) = torch.autograd.grad(-term.mean(-1), log_multiplier)
    torch.testing.assert_close(gradient, doubles(-19.757566), rtol=1e-5, atol=0)  # grows: gap above target
    authors = conservative.lagrange_penalty(gap, conservative.multiplier(doubles(0.0)), 5.0, 10.0, "weighted")
    close(authors, [1.2684] * 2)
    assert conservative.multiplier(doubles(100.0)).item() == 1e6


def test_order_of_maximum_and_minimum() -> None:
    q = doubles([[[1.0, 4.0, 2.0]], [[3.0, 1.5, 2.5]]])  # two critics, one state, three actions
    close(conservative.best_of_draws(q, "max_min"), [2.0])
    close(conservative.best_of_draws(q, "min_max"), [3.0])


def test_gradients_push_drawn_actions_down_and_data_up() -> None:
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, 6, 9, generator=generator, dtype=torch.float64).requires_grad_()
    q_data = torch.randn(2, 6, generator=generator, dtype=torch.float64).requires_grad_()
    density = torch.randn(6, 9, generator=generator, dtype=torch.float64)
    gap = conservative.conservative_gap(q, q_data, density)
    drawn, data = torch.autograd.grad(gap.sum(), (q, q_data))
    assert (drawn >= 0).all()
    close(data, [[-1 / 6] * 6] * 2)
    close(drawn.sum() + data.sum(), 0.0)
    torch.testing.assert_close(conservative.conservative_gap(q + 3.7, q_data + 3.7, density), gap)
    likelier = density.clone()
    likelier[:, 4] += 1.0
    (shifted,) = torch.autograd.grad(conservative.conservative_gap(q, q_data, likelier).sum(), q)
    assert (shifted[..., 4] < drawn[..., 4]).all()  # what the policy draws often weighs less each time


def test_shapes_are_checked() -> None:
    with pytest.raises(ValueError, match=r"expected q_data \(6,\), got \(6, 1\)"):
        conservative.conservative_gap(torch.zeros(6, 9), torch.zeros(6, 1), None)


def test_values_in_blocks_are_those_of_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = small_model(), random_batch()
    actions = torch.rand(12, 7, 2) * 2 - 1
    monkeypatch.setattr(conservative, "BLOCK_ROWS", 20)
    in_blocks = conservative.values_in_blocks(model.critic, batch["obs"], actions)
    one_by_one = torch.stack([model.critic(batch["obs"], actions[:, i]) for i in range(7)], -1)
    torch.testing.assert_close(in_blocks, one_by_one)


# ---- the learner


@pytest.mark.parametrize("action_dim", [1, 3])
def test_constant_critics_give_the_volume_of_the_action_box(action_dim: int) -> None:
    """With Q = 0 the corrected estimate is log 2^A whatever the policy; it tests the densities."""
    learner = CQL(small_model(action_dim=action_dim), num_cql_samples=4000)
    with torch.no_grad():
        learner.gaussian.net.output.weight.zero_()
        learner.gaussian.net.output.bias.copy_(torch.tensor([0.4] * action_dim + [0.1] * action_dim))
        batch = random_batch(rows=8, action_dim=action_dim)
        _, log_density = learner.draw_actions(batch, noise_for(learner, 8))
        estimate = conservative.soft_maximum(torch.zeros_like(log_density), log_density)
    volume = (estimate - math.log(3 * 4000)).mean()
    assert volume.item() == pytest.approx(action_dim * math.log(2), abs=0.02)


def test_all_sources_are_evaluated_at_the_current_state(monkeypatch: pytest.MonkeyPatch) -> None:
    learner, batch = CQL(small_model(), num_cql_samples=4), random_batch()
    noise, seen = noise_for(learner, 12), []
    many = type(learner.critic).many

    def recorded(critic: Any, obs: Tensor, actions: Tensor) -> Tensor:
        if critic is learner.critic:
            seen.append((obs, actions))
        return many(critic, obs, actions)

    monkeypatch.setattr(type(learner.critic), "many", recorded)
    learner.critic_loss(batch, noise)
    ((obs, actions),) = seen
    assert torch.equal(obs, batch["obs"])
    expected = [
        noise["proposal_uniform"],
        *(
            torch.stack([learner.actor(state, noise[name][:, i])[0] for i in range(4)], -2)
            for state, name in ((batch["next_obs"], "proposal_next"), (batch["obs"], "proposal_current"))
        ),
        batch["actions"].unsqueeze(-2),
    ]
    torch.testing.assert_close(actions, torch.cat(expected, -2))


def test_critic_loss_is_the_public_pieces() -> None:
    learner, batch = CQL(small_model(), num_cql_samples=4, cql_alpha=2.0, alpha=0.2), random_batch()
    noise = noise_for(learner, 12)
    loss, metrics = learner.critic_loss(batch, noise)
    drawn, density = learner.draw_actions(batch, noise)
    q = [
        torch.stack([learner.critic(batch["obs"], drawn[:, 4 * part + i]) for i in range(4)], -1)
        for part in range(3)
    ]
    q_data = learner.critic(batch["obs"], batch["actions"])
    penalties = cql_penalty(
        q_random=q[0],
        q_next_policy=q[1],
        q_policy=q[2],
        q_data=q_data,
        logprobs_next_policy=density[:, 4:8].expand(2, -1, -1),
        logprobs_policy=density[:, 8:].expand(2, -1, -1),
        action_dim=2,
        cql_alpha=2.0,
    )
    target = learner.value_target(batch, noise)
    torch.testing.assert_close(metrics["cql_penalty"], penalties.sum())
    torch.testing.assert_close(loss, losses.critic_mse(q_data, target) + penalties.sum())
    helper = cql_loss(
        {
            "q1_values": q_data[0],
            "q2_values": q_data[1],
            "target_q_values": target,
            "sampled_logprobs": torch.zeros(12),
            "sampled_q1": q_data[0],
            "sampled_q2": q_data[1],
            "alpha": 0.2,
            "cql_alpha": 2.0,
            "cql_penalty_q1": penalties[0] / 2.0,
            "cql_penalty_q2": penalties[1] / 2.0,
        }
    )
    torch.testing.assert_close(helper["critic_loss"], loss)
    torch.testing.assert_close(helper["cql_penalty"], metrics["cql_penalty"])


def test_weight_zero_is_sac_without_entropy_in_the_target() -> None:
    batch = random_batch()
    sac, cql = SAC(small_model(), alpha=0.0), CQL(small_model(), alpha=0.2)
    noise = noise_for(cql, 12)
    torch.testing.assert_close(cql.value_target(batch, noise), sac.value_target(batch, noise))
    cql_value, metrics = cql.critic_loss(batch, noise)
    torch.testing.assert_close(cql_value - metrics["cql_penalty"], sac.critic_loss(batch, noise)[0])
    soft, with_entropy = SAC(small_model(), alpha=0.2), CQL(small_model(), alpha=0.2, backup_entropy=True)
    torch.testing.assert_close(with_entropy.value_target(batch, noise), soft.value_target(batch, noise))
    rows = {name: batch["rewards"] for name in ("q1_values", "q2_values", "target_q_values", "sampled_q1")}
    inputs = {**rows, "sampled_q2": batch["rewards"], "sampled_logprobs": batch["dones"], "alpha": 0.2}
    weightless = cql_loss({**inputs, "cql_alpha": 0.0, "cql_penalty_q1": 3.0, "cql_penalty_q2": 4.0})
    for name, value in sac_loss(inputs).items():
        torch.testing.assert_close(weightless[name], value)


def test_best_next_action_carries_its_own_entropy() -> None:
    keywords = {"num_cql_samples": 5, "alpha": 0.3, "max_target_backup": True, "gamma": 0.9}
    learner, batch = CQL(small_model(), backup_entropy=True, **keywords), random_batch()
    noise = noise_for(learner, 12)
    draws = [learner.actor(batch["next_obs"], noise["next"][:, i]) for i in range(5)]
    smallest = torch.stack([learner.target_critic(batch["next_obs"], a).amin(0) for a, _ in draws], -1)
    best = smallest.argmax(-1)
    logprobs = torch.stack([each for _, each in draws], -1)[torch.arange(12), best]
    expected = batch["rewards"] + 0.9 * (1 - batch["dones"]) * (smallest.amax(-1) - 0.3 * logprobs)
    torch.testing.assert_close(learner.value_target(batch, noise), expected)


def test_critic_loss_reaches_the_critics_alone() -> None:
    learner, batch = CQL(small_model(), lagrange=True, backup_entropy=True), random_batch()
    loss, _ = learner.critic_loss(batch, noise_for(learner, 12))
    assert reached(learner, loss) == {"model.critic"}


def test_all_losses_see_the_parameters_before_the_update() -> None:
    learner, batch = CQL(small_model(), seed=4, critic_learning_rate=0.1), random_batch()
    twin = CQL(small_model(), seed=4, critic_learning_rate=0.1)
    learner.update(batch, global_step=0)
    shapes = twin.noise_shapes(12)
    names = [name for name, (kind, _) in shapes.items() if kind == "normal"]
    sizes = [math.prod(shapes[name][1]) for name in names]
    parts = twin.streams["normal"].next(sum(sizes)).split(sizes)
    noise = {name: part.reshape(shapes[name][1]) for name, part in zip(names, parts, strict=True)}
    loss, _ = twin.actor_loss(batch, noise, "full")
    moments = learner.optimizers["actor"].first_moments  # (1 - 0.9) times the first gradient
    for moment, gradient in zip(moments, twin.gradients("actor", loss), strict=True):
        torch.testing.assert_close(moment, 0.1 * gradient)


def test_warm_start_imitates_the_data_for_bc_steps_updates() -> None:
    learner, batch = CQL(small_model(), bc_steps=2, alpha=0.2), random_batch()
    noise = noise_for(learner, 12)
    loss, logprobs = learner.actor_loss(batch, noise, "bc")
    data = squashed_log_prob(batch["actions"], *learner.policy.distribution(batch["obs"]))
    torch.testing.assert_close(loss, (0.2 * logprobs - data).mean())
    stages = []
    for step in range(4):
        stages.append(learner.stage())
        learner.update(batch, global_step=100 + step)
    assert stages == ["bc", "bc", "full", "full"]


@pytest.mark.slow
def test_warm_started_policy_acts_as_the_data() -> None:
    learner = CQL(small_model(), bc_steps=400, learning_rate=3e-3, num_cql_samples=1, alpha=0.0)
    batch = random_batch(rows=32)
    batch["actions"] = torch.stack([0.5 * batch["obs"][:, 0].tanh(), -0.3 + 0 * batch["obs"][:, 0]], -1)
    for step in range(400):
        learner.update(batch, global_step=step)
    assert (learner.acting().mode(batch["obs"]) - batch["actions"]).abs().mean() < 0.05


@pytest.mark.parametrize(("target_gap", "direction"), [(-50.0, 1), (50.0, -1)])
def test_multiplier_moves_towards_the_target_gap(target_gap: float, direction: int) -> None:
    learner = CQL(small_model(), lagrange=True, target_gap=target_gap, critic_learning_rate=1e-2)
    metrics = [learner.update(random_batch(), global_step=step).metrics for step in range(3)]
    assert metrics[0]["lagrange_multiplier"] == pytest.approx(math.e)
    assert (metrics[2]["lagrange_multiplier"] - metrics[0]["lagrange_multiplier"]) * direction > 0


def build(variant: str) -> Build:
    return lambda seed: CQL(small_model(seed=seed), seed=seed, num_cql_samples=2, **VARIANTS[variant])


@pytest.mark.slow
def test_compiled_updates_equal_eager_ones() -> None:
    check_compiled_equals_eager(build("rich"))


@pytest.mark.parametrize("variant", VARIANTS)
def test_stacked_learners_equal_single_ones(variant: str) -> None:
    check_stacked_equals_single(build(variant))


def test_multiplier_and_warm_start_survive_a_restart() -> None:
    check_resumes_exactly(build("rich"))


def test_one_critic_is_enough() -> None:
    metrics = CQL(small_model(num_critics=1)).update(random_batch(), global_step=0).metrics
    assert all(math.isfinite(value) for value in metrics.values())


# ---- problems with known answers


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy_action", "share_left", "reward_right", "weight", "answer"),
    [
        (-0.5, 0.9, 0.0, 1.0, (0.097074, -0.873666)),
        (0.5, 0.9, 0.0, 1.0, (0.097074, -0.873666)),
        (0.5, 0.9, 0.0, 0.1, (0.019520, -0.175678)),
        (-0.5, 0.5, 1.0, 1.0, (0.162584, 0.837416)),
    ],
)
def test_two_bin_bandit_does_not_depend_on_the_policy(
    policy_action: float, share_left: float, reward_right: float, weight: float, answer: tuple[float, float]
) -> None:
    """Fixed point of 2 p (Q - r) + w (softmax(Q) - p) = 0."""
    found = two_bins(share_left, reward_right, policy_action, cql_alpha=weight)
    assert found == pytest.approx(answer, abs=0.12 * weight)


@pytest.mark.slow
def test_without_importance_weights_the_answer_depends_on_the_policy() -> None:
    left, right = (
        two_bins(0.9, 0.0, side, importance_weights=False, cql_alpha=1.0, updates=200) for side in (-0.5, 0.5)
    )
    assert left[1] - right[1] > 0.5


def two_bins(
    share_left: float, reward_right: float, policy_action: float, updates: int = 400, **keywords: Any
) -> tuple[float, float]:
    """Values of actions below and above zero; actions at -0.5 and 0.5 in the data, one step, fixed policy."""
    model = model_with_critic(TwoBins(), obs_dim=1)
    with torch.no_grad():
        model.actor.net.output.bias.copy_(torch.tensor([math.atanh(policy_action), -0.5]))
    learner = CQL(model, learning_rate=0.03, num_cql_samples=48, alpha=0.0, **keywords)
    left = (torch.arange(20) < 20 * share_left).float()
    batch = {
        "obs": torch.zeros(20, 1),
        "actions": (0.5 - left).unsqueeze(-1),
        "rewards": (1.0 - left) * reward_right,
        "next_obs": torch.zeros(20, 1),
        "dones": torch.ones(20),
    }
    train_with_falling_rate(learner, batch, updates)
    values = learner.critic.values.detach().mean(0)
    return values[0].item(), values[1].item()


@pytest.mark.slow
def test_two_step_chain_is_exact() -> None:
    """A critic that cannot tell actions apart leaves the conservative term without a gradient."""
    learner = CQL(
        model_with_critic(StateTable(2), obs_dim=2), learning_rate=0.05, gamma=0.9, tau=0.1, cql_alpha=5.0
    )
    train_with_falling_rate(learner, chain(), 300)
    assert learner.critic.values.detach().mean(0).tolist() == pytest.approx([0.9, 1.0], abs=0.02)


def chain() -> dict[str, Tensor]:
    """s0 -> s1 -> end with rewards 0 and 1."""
    states = torch.eye(2)
    return {
        "obs": states,
        "actions": torch.tensor([[0.3], [-0.3]]),
        "rewards": torch.tensor([0.0, 1.0]),
        "next_obs": states[[1, 1]],
        "dones": torch.tensor([0.0, 1.0]),
    }


@pytest.mark.slow
def test_policy_stays_in_the_data_where_sac_extrapolates() -> None:
    """One-step bandit with reward a, data on [-1, 0] only: a plain critic leads the actor to a = 1."""
    generator = torch.Generator().manual_seed(0)
    modes = {}
    for name, keywords in ((SAC, {}), (CQL, {"num_cql_samples": 4})):
        learner = name(small_model(1, 1, hidden_sizes=(32, 32)), learning_rate=3e-3, alpha=0.05, **keywords)
        for step in range(200):
            actions = -torch.rand(64, 1, generator=generator)
            zeros = torch.zeros(64, 1)
            batch = {"obs": zeros, "actions": actions, "rewards": actions[:, 0], "next_obs": zeros}
            learner.update({**batch, "dones": torch.ones(64)}, global_step=step)
        modes[name] = learner.acting().mode(torch.zeros(1, 1)).item()
    assert modes[SAC] > 0.5
    assert modes[CQL] < 0.2


# ---- mistakes


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"cql_alpha": 0.0}, "cql_alpha must be > 0, got 0.0"),
        ({"num_cql_samples": 0}, "num_cql_samples must be >= 1, got 0"),
        ({"cql_temperature": 0.0}, "cql_temperature must be > 0, got 0.0"),
        ({"bc_steps": -1}, "bc_steps must be >= 0, got -1"),
        ({"action_sources": ()}, "action_sources must name at least one source, each once, got []"),
        ({"action_sources": ("next", "next")}, "got ['next', 'next']"),
        (
            {"action_sources": ["next", "unifrom"]},
            "action_sources must be a list of 'uniform', 'next', 'current', got ['next', 'unifrom'] "
            "(did you mean 'uniform'?)",
        ),
        (
            {"clip_diff_min": 2.0, "clip_diff_max": 1.0},
            "clip_diff_min must be <= clip_diff_max (1.0), got 2.0",
        ),
        (
            {"backup_entropy": True, "max_target_backup": True, "max_target_order": "min_max"},
            "max_target_order must be max_min with backup_entropy",
        ),
        ({"cql_alhpa": 1.0}, "cql_alhpa is not a known key (did you mean 'cql_alpha'?)"),
    ],
)
def test_mistakes_are_named(keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        CQL(small_model(), **keywords)
    assert message in str(caught.value)
