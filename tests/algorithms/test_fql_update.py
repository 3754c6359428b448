"""FQL: its numbers, its flow, what moves what, and a bandit with two modes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import learner_checks as checks
import toy_bandit
from learner_checks import close, numbers
from rl_training.algorithms import FQL, fql_loss
from rl_training.algorithms.bc import imitation_error
from rl_training.algorithms.fql import euler, interpolated, policy_value_loss
from rl_training.judging.policies import JudgedPolicy
from rl_training.models import MLPFQLModel
from rl_training.models.actors import OneStepActor
from rl_training.policies.export.trace import trace_policy
from rl_training.policies.policy import pack_policy, unpack_policy

START, END = numbers((0.5, -1.0), (0.2, 0.3)), numbers((0.4, -0.1), (0.3, 0.3))
POLICY, CARRIED = numbers((0.3, -0.4), (0.5, 0.2)), numbers((0.35, -0.2), (0.4, 0.1))
INPUTS: dict[str, Any] = {
    "q1_values": numbers(2.0, 1.0),
    "q2_values": numbers(3.0, 0.0),
    "target_q_values": numbers(2.6236, 0.5),
    "predicted_velocity": numbers((0.0, 1.0), (0.1, 0.1)),
    "start": START,
    "actions": END,
    "policy_actions": POLICY,
    "flow_actions": CARRIED,
    "actor_q1_values": numbers(2.0, -1.0),
    "actor_q2_values": numbers(1.0, 3.0),
}


def build(seed: int = 0, **keywords: Any) -> FQL:
    return FQL(checks.model(MLPFQLModel, seed), seed=seed, **{"flow_steps": 3, **keywords})


def noise_of(learner: FQL, batch_size: int = checks.BATCH) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(9)
    return {
        name: torch.randn(*shape, generator=generator).clamp(-1.0, 1.0)
        for name, (_, shape) in learner.noise_shapes(batch_size).items()
    }


# ---- known numbers


def test_the_way_from_noise_to_data_is_straight() -> None:
    close(interpolated(START, END, numbers((0.25,), (0.8,))), ((0.475, -0.775), (0.28, 0.3)))
    close(END - START, ((-0.1, 0.9), (0.1, 0.0)))


@pytest.mark.parametrize(("normalize", "total"), [(False, -1.08625), (True, -0.83625)])
def test_the_public_helper_composes_known_numbers(normalize: bool, total: float) -> None:
    values = fql_loss({**INPUTS, "alpha": 10.0, "normalize_q_loss": normalize})
    close(values["flow_loss"], 0.0075)
    close(values["distill_loss"], 0.015625)
    close(values["actor_loss"], total)
    close(values["critic_loss"], 0.515277 / 2)
    close(values["target_q_mean"], 1.5618)


def test_gradients_of_the_parts() -> None:
    (of_policy,) = checks.gradients_of(lambda policy: imitation_error(policy, CARRIED), POLICY)
    close(of_policy, (POLICY - CARRIED) / 2)
    q = numbers(1.5, 1.0)
    close(checks.gradients_of(lambda values: policy_value_loss(values, False), q)[0], (-0.5, -0.5))
    close(checks.gradients_of(lambda values: policy_value_loss(values, True), q)[0], (-0.4, -0.4))


def test_euler_steps_have_the_known_result() -> None:
    close(euler(lambda x, t: 1.0 - x, numbers(0.5), 4), (0.841797,))
    seen: list[float] = []
    euler(lambda x, t: seen.append(t) or 0.0 * x, numbers(0.5), 4)  # type: ignore[func-returns-value]
    assert seen == [0.0, 0.25, 0.5, 0.75]


@pytest.mark.parametrize("steps", [1, 4, 10])
def test_a_constant_velocity_moves_by_itself(steps: int) -> None:
    learner = build(flow_steps=steps)
    with torch.no_grad():
        for parameter in learner.flow.parameters():
            parameter.zero_()
        learner.flow.net.output.bias[:] = torch.tensor([0.25, -0.5])  # type: ignore[index, union-attr]
    z = torch.tensor([[0.1, 0.2], [0.9, -0.9]])
    close(learner.flow_actions(torch.zeros(2, checks.OBS), z).double(), ((0.35, -0.3), (1.0, -1.0)))


@pytest.mark.parametrize(("q_agg", "next_values"), [("mean", (1.75, 3.5)), ("min", (1.5, 3.0))])
def test_the_target_has_no_entropy(q_agg: str, next_values: tuple[float, float]) -> None:
    outputs = numbers((2.0, 3.0), (1.5, 4.0))
    learner = FQL(checks.table_model(MLPFQLModel, 2, outputs), q_agg=q_agg)
    batch = {
        "rewards": numbers(1.0, 0.5),
        "dones": numbers(0.0, 0.0),
        "next_obs": torch.eye(2, dtype=torch.float64),
    }
    target = learner.value_target(batch, {"next": numbers((0.3,), (-0.3,))})
    close(target, batch["rewards"] + 0.99 * numbers(*next_values))


# ---- what moves what


def test_the_parts_of_the_actor_loss_reach_their_own_networks() -> None:
    learner = build()
    batch, noise = checks.random_batch(0), noise_of(build())
    assert checks.reached(learner, learner.critic_loss(batch, noise)[0]) == {"model.critic"}
    total, _ = learner.actor_loss(batch, noise)
    for network in ("flow", "actor"):
        other = build()  # the same weights with one of the two networks held still
        other.model.get_submodule("actor" if network == "flow" else "flow").requires_grad_(False)
        assert checks.reached(other, other.actor_loss(batch, noise)[0]) >= {f"model.{network}"}
    # the flow learns from the data alone: neither values nor the policy pull at it
    of_flow = torch.autograd.grad(total, list(learner.flow.parameters()))
    without, _ = build(alpha=0.0).actor_loss(batch, noise)
    assert without < total
    bare = build(alpha=0.0)
    alone = torch.autograd.grad(bare.actor_loss(batch, noise)[0], list(bare.flow.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(of_flow, alone, strict=True))


def test_a_large_alpha_is_imitation_of_the_flow() -> None:
    learner = build(alpha=1e6)
    batch, noise = checks.random_batch(0), noise_of(learner)
    parameters = list(learner.actor.parameters())
    total = torch.autograd.grad(learner.actor_loss(batch, noise)[0], parameters)
    carried = learner.flow_actions(batch["obs"], noise["current"]).detach()
    distance = imitation_error(learner.actor.unclipped(batch["obs"], noise["current"]), carried)
    expected = torch.autograd.grad(distance, parameters)
    flat = [torch.cat([each.flatten() for each in gradients]) for gradients in (total, expected)]
    assert torch.cosine_similarity(*flat, dim=0) > 0.9999


def test_the_target_takes_over_the_critic_before_its_step() -> None:
    learner = build(tau=0.5)
    assert checks.moved(learner) == {"model.actor", "model.critic", "model.flow"}
    assert checks.moved(learner) == {"model.actor", "model.critic", "model.flow", "target.critic"}


@pytest.mark.slow
def test_every_way_of_running_gives_the_same_learner() -> None:
    checks.check_stacked_equals_single(build)
    checks.check_resumes_exactly(build)
    checks.check_compiled_equals_eager(build, updates=6)


def test_times_are_uniform_between_noise_and_data(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = build()
    seen: list[Tensor] = []
    forward = learner.flow.forward
    monkeypatch.setattr(learner.flow, "forward", lambda o, x, t: seen.append(t) or forward(o, x, t))
    learner.update(checks.random_batch(0, batch_size=4000), global_step=0)
    time = seen[0]
    assert time.min() >= 0.0 and time.max() <= 1.0
    assert abs(time.mean() - 0.5) < 0.02 and abs(time.std() - 12**-0.5) < 0.02


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"flow_steps": 0}, "flow_steps must be >= 1, got 0"),
        ({"alpha": -1.0}, "alpha must be >= 0, got -1.0"),
    ],
)
def test_bad_values_fail_at_construction(keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as error:
        build(**keywords)
    assert str(error.value) == message


# ---- the one-step policy


def test_the_deterministic_action_takes_no_noise_and_draws_are_clipped() -> None:
    actor = build().actor
    obs, zero = torch.randn(5, checks.OBS), torch.zeros(5, checks.ACTIONS)
    torch.testing.assert_close(actor.mode(obs), actor.unclipped(obs, zero).clamp(-1.0, 1.0))
    far = actor.draw(obs, torch.full((5, checks.ACTIONS), 1e3))
    assert far.abs().max() <= 1.0 and not torch.equal(far, actor.mode(obs))
    assert actor(obs, zero)[1].isnan().all()  # no density is claimed


def test_the_policy_survives_packing_and_exports_as_one_network() -> None:
    learner = build()
    again = unpack_policy(pack_policy(learner.policy))
    assert isinstance(again.actor, OneStepActor)
    obs = np.random.default_rng(0).normal(size=(4, checks.OBS)).astype(np.float32)
    assert (again.act(obs) == learner.policy.act(obs)).all()
    program = trace_policy(learner.policy)
    np.testing.assert_allclose(program.run(obs), learner.policy.act(obs), atol=1e-6)


def test_it_is_judged_by_its_deterministic_action() -> None:
    """A flow's density is not at hand: none is made up from the NaN in its place."""
    subject = JudgedPolicy("fql", build().policy, checks.ACTIONS)
    obs = np.random.default_rng(0).normal(size=(4, checks.OBS)).astype(np.float32)
    assert subject.log_density(obs, subject.actions(obs)) is None
    assert np.isfinite(subject.actions(obs)).all()


# ---- actions -0.5 and +0.5, reward a + 0.5


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [30.0, 0.1])
def test_the_bandit_keeps_both_modes_or_takes_the_better_one(alpha: float) -> None:
    learner = FQL(
        toy_bandit.small(MLPFQLModel, critic_layer_norm=False), alpha=alpha, learning_rate=1e-2, tau=0.1
    )
    toy_bandit.fit(learner, toy_bandit.bandit(), updates=500)
    obs, z = torch.ones(2, 1), torch.tensor([[-1.0], [1.0]])
    with torch.no_grad():
        flow, drawn = learner.flow_actions(obs, z), learner.actor.draw(obs, z)
    assert (flow.squeeze() - torch.tensor([-0.5, 0.5])).abs().max() < 0.15, flow
    if alpha > 1.0:
        assert (drawn.squeeze() - torch.tensor([-0.5, 0.5])).abs().max() < 0.2, drawn
    else:
        assert drawn.min() > 0.2, drawn
