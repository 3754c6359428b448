"""MOPO and MOBILE: penalties, imagined rows and targets by hand, the way to SAC, and a known answer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import learner_checks as checks
import toy_control as toy
from learner_checks import close, numbers
from rl_training.algorithms import MOBILE, MOPO, SAC, mobile_loss, mopo_loss
from rl_training.algorithms.mopo import aleatoric_penalty, bellman_penalty, chosen_members
from rl_training.algorithms.recipe import get_recipe
from rl_training.config.run import TrainConfig
from rl_training.core.errors import ConfigError, UserError
from rl_training.core.spaces import Choice, Spaces
from rl_training.models import MLPModelBasedSACModel

SPREAD = 0.135335
"""exp(-2), a predicted std where the network's output for it is 0"""


def build(seed: int = 0, kind: type[MOPO] = MOPO, **keywords: Any) -> MOPO:
    given: dict[str, Any] = {"model_updates": 2, "penalty_samples": 2, "policy_delay": 2, "horizon": 3}
    model = checks.model(MLPModelBasedSACModel, seed, members=3, model_hidden_sizes=(8,))
    return kind(model, seed=seed, **{**given, **keywords})


def mobile(seed: int = 0) -> MOPO:
    return build(seed, MOBILE)


def known(kind: type[MOPO] = MOPO, *, ends: bool = False, **keywords: Any) -> MOPO:
    """Two members with known answers, two critics with known values, and a policy that plays tanh(noise).

    Member 0 says s' = .5 s + .5 a and r = s, member 1 s' = 1 + .5 s + .5 a and r = 2 s; both are as sure of
    all. Q_1 = s and Q_2 = 3 s. Every step ends with probability .5 where there are ends.
    """
    model = MLPModelBasedSACModel(1, 1, hidden_sizes=(), model_hidden_sizes=(), members=2).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        out = model.dynamics.net.output
        out.weight[:, 0, 0], out.weight[:, 1, 0] = -0.5, 0.5
        out.weight[0, 0, 1], out.weight[1, 0, 1] = 1.0, 2.0
        out.bias[1, 0, 0] = 1.0
        model.dynamics.has_ends.fill_(float(ends))
        for critic, slope in enumerate((1.0, 3.0)):
            model.critic.net.output.weight[critic, 0, 0] = slope
    return kind(model, gamma=0.9, model_updates=1, **keywords)


def rows_at(state: float, action: float = 0.0) -> dict[str, Tensor]:
    return {"obs": numbers((state,)), "actions": numbers((action,))}


def policy_noise(learner: MOPO, seed: int = 9) -> dict[str, Tensor]:
    """The random numbers of an update of the second stage."""
    learner.updates = max(learner.updates, learner.config.model_updates)
    generator = torch.Generator().manual_seed(seed)
    draws = {"normal": torch.randn, "uniform": torch.rand}
    shapes = learner.noise_shapes(checks.BATCH)
    found = {name: (kind, draws[kind](*shape, generator=generator)) for name, (kind, shape) in shapes.items()}
    return {name: 2.0 * drawn - 1.0 if kind == "uniform" else drawn for name, (kind, drawn) in found.items()}


# ---- penalties by hand


def test_the_aleatoric_penalty_is_the_longest_vector_of_spreads() -> None:
    stds = numbers(((3.0, 4.0), (0.6, 0.8)), ((1.0, 1.0), (1.2, 1.6)))
    close(aleatoric_penalty(stds.log()), (5.0, 2.0))


def test_the_bellman_penalty_is_the_spread_of_the_targets() -> None:
    close(bellman_penalty(numbers((1.0, 5.0), (2.0, 5.0), (3.0, 5.0))), (1.0, 0.0))
    close(bellman_penalty(numbers((1.0,), (3.0,))), (2.0**0.5,))


def test_the_public_helpers_compose_the_same_numbers() -> None:
    inputs = {
        "q1_values": numbers(2.0),
        "q2_values": numbers(1.0),
        "sampled_q1": numbers(1.0),
        "sampled_q2": numbers(2.0),
        "sampled_logprobs": numbers(-0.4),
        "alpha": 0.2,
        "rewards": numbers(1.0),
        "dones": numbers(0.5),
        "next_values": numbers(2.0),
        "gamma": 0.9,
        "penalty_coef": 0.1,
    }
    # 1 - .1 * 5 + .9 * .5 * 2 = 1.4, and (2 - 1.4)^2 + (1 - 1.4)^2 = .52
    aleatoric = mopo_loss({**inputs, "predicted_stds": numbers(((3.0, 4.0),), ((1.0, 1.0),))})
    close(aleatoric["penalty_mean"], 5.0)
    close(aleatoric["target_q_mean"], 1.4)
    close(aleatoric["critic_loss"], 0.52)
    close(aleatoric["actor_loss"], -0.2 * 0.4 - 1.0)
    # the targets 4 and 2 differ by sqrt(2): 1.9 - .1414
    close(mobile_loss({**inputs, "member_targets": numbers((4.0,), (2.0,))})["target_q_mean"], 1.758579)


def test_spreads_count_in_units_of_the_reward() -> None:
    learner = known()
    rows = rows_at(2.0)
    mean, log_std = learner.kept_dynamics(rows["obs"].unsqueeze(-3), rows["actions"].unsqueeze(-3))
    close(learner.penalty(rows, mean, log_std, {}), (SPREAD * 2.0**0.5,))
    learner.kept_dynamics.change_spread.copy_(numbers(((7.0, 3.0),)))
    close(learner.penalty(rows, mean, log_std, {}), (3.0 * SPREAD * 2.0**0.5,))


@pytest.mark.parametrize(
    ("ends", "targets"), [(False, (2.0 + 0.9, 4.0 + 1.8)), (True, (1.0 + 0.45, 2.0 + 0.9))]
)
def test_each_member_has_a_bellman_target_of_its_own(ends: bool, targets: tuple[float, float]) -> None:
    """From 2 member 0 gets to 1 with reward 2, member 1 to 2 with reward 4; the minimum of Q is s.

    An end earns 0, and its odds are even.
    """
    learner, rows = known(MOBILE, ends=ends, penalty_samples=2), rows_at(2.0)
    dynamics = learner.kept_dynamics
    mean, log_std = dynamics(rows["obs"].unsqueeze(-3), rows["actions"].unsqueeze(-3))
    noise = {name: torch.zeros(2, 2, 1, dtype=torch.float64) for name in ("penalty_state", "penalty_action")}
    found = learner.member_targets(rows, mean, log_std, noise)
    close(found, tuple((target,) for target in targets))
    close(learner.penalty(rows, mean, log_std, noise), ((targets[1] - targets[0]) / 2.0**0.5,))
    # of two successors 1 ± .1353 the mean counts
    noise["penalty_state"] = numbers(((1.0,), (-1.0,)), ((1.0,), (-1.0,)))
    close(learner.member_targets(rows, mean, log_std, noise), found)
    # below 0 the minimum is 3 s: member 0 gets from -2 to -1, member 1 to 0
    low = rows_at(-2.0)
    mean, log_std = dynamics(low["obs"].unsqueeze(-3), low["actions"].unsqueeze(-3))
    noise["penalty_state"] = torch.zeros(2, 2, 1, dtype=torch.float64)
    alive = 0.5 if ends else 1.0
    close(learner.member_targets(low, mean, log_std, noise), (((-2.0 - 2.7) * alive,), (-4.0 * alive,)))


# ---- imagined rows by hand


def test_members_are_drawn_evenly() -> None:
    drawn = chosen_members(torch.tensor([-1.0, -0.34, -0.3, 0.3, 0.34, 0.999]), 3)
    assert drawn.argmax(0).tolist() == [0, 0, 1, 1, 2, 2]
    assert drawn.sum(0).tolist() == [1.0] * 6


def test_an_imagined_step_follows_the_member_that_was_drawn() -> None:
    learner = known()
    state = numbers((2.0,), (2.0,), (2.0,))
    found, _ = learner.imagined_step(
        state,
        state[..., :0],
        member=numbers(-0.5, 0.5, 0.5),
        action=numbers((0.0,), (0.0,), (1.0,)),
        change=numbers((0.0, 0.0), (0.0, 0.0), (1.0, -1.0)),
    )
    action = found["actions"][2, 0].item()  # tanh(std of the policy), with outputs of 0
    close(found["next_obs"], ((1.0,), (2.0,), (2.0 + 0.5 * action + SPREAD,)))
    close(found["rewards"], (2.0, 4.0, 4.0 - SPREAD))
    close(found["dones"], (0.0, 0.0, 0.0))
    assert 0.0 < action < 1.0


def test_an_end_is_told_by_its_probability() -> None:
    zero = numbers((0.0,))
    drawn = {"member": numbers(0.0), "action": zero, "change": numbers((0.0, 0.0))}
    found, _ = known(ends=True).imagined_step(zero, zero[..., :0], **drawn)
    close(found["dones"], (0.5,))
    two = numbers((2.0,))
    found, _ = known(ends=True).imagined_step(two, zero[..., :0], **drawn)
    without, _ = known().imagined_step(two, zero[..., :0], **drawn)
    assert without["rewards"].item() >= 2.0
    close(found["rewards"], 0.5 * without["rewards"])  # an end earns 0


@pytest.mark.parametrize("ends", [False, True])
def test_a_trajectory_goes_on_where_it_got_to_and_begins_again_where_it_ends(ends: bool) -> None:
    learner = build(imagined_share=0.5, horizon=3)
    learner.dynamics.has_ends.fill_(float(ends))
    with torch.no_grad():
        learner.kept_dynamics.end_net.output.bias.fill_(20.0)
    batch, noise = checks.random_batch(0), policy_noise(learner)
    count = learner.imagined_rows(checks.BATCH)
    assert (count, learner.starts(count)) == (8, 3)
    rows, mean, log_std = learner.imagine(batch, noise, count)
    assert mean.shape == log_std.shape == (3, 8, checks.OBS + 1)
    assert torch.equal(rows["obs"][:3], batch["obs"][-3:])
    assert torch.equal(rows["obs"][3:6], batch["obs"][-3:] if ends else rows["next_obs"][:3])
    assert torch.equal(rows["obs"][6:], (batch["obs"][-3:] if ends else rows["next_obs"][3:])[:2])
    close(rows["dones"].double(), torch.full((8,), float(ends)).double())


def test_imagined_rows_take_the_places_of_the_last_ones_and_pay_the_penalty() -> None:
    learner = build(imagined_share=0.5, penalty_coef=2.0)
    batch = checks.random_batch(0, discounts=torch.full((checks.BATCH,), 0.5))
    noise, count = policy_noise(learner), 8
    mixed, metrics = learner.mixed(batch, noise, count)
    rows, mean, log_std = learner.imagine(batch, noise, count)
    penalty = learner.penalty(rows, mean, log_std, noise)
    assert bool((penalty > 0).all())
    for name in ("obs", "actions", "rewards", "next_obs", "dones", "discounts"):
        assert mixed[name].shape == batch[name].shape
        assert torch.equal(mixed[name][:8], batch[name][:8]), name
    for name in ("obs", "actions", "next_obs", "dones"):
        assert torch.equal(mixed[name][8:], rows[name]), name
    torch.testing.assert_close(mixed["rewards"][8:], rows["rewards"] - 2.0 * penalty)
    assert bool((mixed["discounts"][8:] == 0.99).all())
    assert torch.equal(metrics["penalty_mean"], penalty.mean())
    assert torch.equal(metrics["imagined_reward"], rows["rewards"].mean())
    trusting = build(imagined_share=0.5, penalty_coef=0.0)
    assert torch.equal(trusting.mixed(batch, noise, count)[0]["rewards"][8:], rows["rewards"])


def test_what_is_imagined_comes_from_the_kept_weights_and_stays_near_the_log() -> None:
    learner = build()
    learner.look_at_data(checks.random_batch(3))
    batch, noise = checks.random_batch(0), policy_noise(learner)
    before, _, _ = learner.imagine(batch, noise, 15)
    with torch.no_grad():
        for parameter in learner.dynamics.parameters():
            parameter.add_(1.0)
    after, _, _ = learner.imagine(batch, noise, 15)
    assert torch.equal(before["next_obs"], after["next_obs"])
    with torch.no_grad():
        learner.kept_dynamics.net.output.bias.fill_(1e6)
    far, _, _ = learner.imagine(batch, noise, 15)
    logged = torch.cat([checks.random_batch(3)[name] for name in ("obs", "next_obs")])
    high = logged.amax(0) + 0.1 * (logged.amax(0) - logged.amin(0))
    torch.testing.assert_close(far["next_obs"], high.expand(15, -1))


def test_the_entropy_in_the_target_is_a_choice() -> None:
    batch = checks.random_batch(0)
    with_it, without = build(alpha=0.5), build(alpha=0.5, backup_entropy=False)
    noise = policy_noise(with_it)
    _, logprobs = with_it.actor(batch["next_obs"], noise["next"])
    bonus = 0.99 * (1.0 - batch["dones"]) * 0.5 * -logprobs
    torch.testing.assert_close(
        with_it.value_target(batch, noise), without.value_target(batch, noise) + bonus, rtol=1e-4, atol=1e-5
    )
    assert not MOBILE(without.model).config.backup_entropy and MOPO(without.model).config.backup_entropy


# ---- identities


@pytest.mark.parametrize("given", [{"horizon": 0}, {"imagined_share": 0.0}])
def test_without_imagined_rows_it_is_sac_on_the_log(given: dict[str, Any]) -> None:
    learner = build(penalty_coef=0.0, **given)
    sac = SAC(checks.model(MLPModelBasedSACModel, members=3, model_hidden_sizes=(8,)), policy_delay=2)
    learner.updates = sac.updates = learner.config.model_updates
    for step in range(3):
        noise = policy_noise(learner, seed=step)
        assert noise.keys() == {"next", "current"}
        for each in (learner, sac):
            each.step(checks.random_batch(step), noise, each.stage())
            each.updates += 1
    assert any(
        not torch.equal(a, b)
        for a, b in zip(sac.critic.parameters(), build().critic.parameters(), strict=True)
    )
    for name, tensor in sac.tensors().items():
        assert torch.equal(tensor, learner.tensors()[name]), name


def test_in_an_environment_nothing_is_imagined() -> None:
    learner = build()
    learner.go_online(0.0)
    batch = checks.random_batch(0)
    del batch["episodes"]
    assert learner.noise_shapes(checks.BATCH).keys() == {"next", "current"}
    learner.update(batch, global_step=0)
    assert learner.stage() == "full"


# ---- the learner


def test_stages_and_what_each_moves() -> None:
    learner = build(model_updates=3, policy_delay=2)
    parts = []
    stages = []
    for _ in range(5):
        stages.append(learner.stage())
        parts.append(checks.moved(learner))
    assert stages == ["model", "model", "model check", "full", "critic"]
    assert {each for each in parts[0] if not each.startswith("scalar.unseen")} == {"model.dynamics"}
    assert {"model.dynamics", "target.dynamics", "scalar.best_error"} <= parts[2]
    assert parts[3] == {"model.actor", "model.critic", "target.critic", "scalar.log_alpha"}
    assert parts[4] == {"model.critic", "target.critic"}


def test_the_model_has_a_rate_of_its_own() -> None:
    learner = build(learning_rate=0.5, actor_learning_rate=0.25, critic_learning_rate=0.125)
    rates = {name: float(each.learning_rate) for name, each in learner.optimizers.items()}
    assert rates.pop("model") == rates.pop("ends") == pytest.approx(1e-3)
    assert rates == {"actor": 0.25, "alpha": 0.25, "critic": 0.125}


@pytest.mark.slow
def test_compiled_equals_eager() -> None:
    def make(seed: int) -> MOPO:
        return build(seed, MOBILE, horizon=2, policy_delay=1)

    checks.check_compiled_equals_eager(make, updates=4)


@pytest.mark.parametrize("make", [build, mobile])
def test_stacked_equals_single(make: checks.Build) -> None:
    checks.check_stacked_equals_single(make, seeds=(0, 1))


@pytest.mark.parametrize("done", [1, 2, 3])
@pytest.mark.parametrize("make", [build, mobile])
def test_resumes_exactly_in_each_stage(make: checks.Build, done: int) -> None:
    checks.check_resumes_exactly(make, updates=done)


def test_what_cannot_be_is_refused() -> None:
    model = checks.model(MLPModelBasedSACModel, members=1, model_hidden_sizes=(8,))
    MOPO(model)
    with pytest.raises(ConfigError, match="members must be >= 2 with uncertainty bellman"):
        MOBILE(model)
    for algo in ("mopo", "mobile"):
        with pytest.raises(ConfigError, match=r"total_timesteps must be > 5000.*got 10; lower"):
            TrainConfig(algo=algo, total_timesteps=10, algo_kwargs={"dataset_kind": "random"})
        with pytest.raises(ConfigError, match="n_step must be 1: the model learns single steps, got 3"):
            get_recipe(algo).settings.build({"n_step": 3, "dataset_kind": "random"})
        with pytest.raises(UserError, match=rf"algo {algo} takes only continuous actions.*iql"):
            get_recipe(algo).check_actions(Spaces.of(2, [Choice((0, 1))]))


@pytest.mark.slow
def test_the_regulator_is_learned_from_imagined_rows_alone() -> None:
    """s' = (s + a)/2, r = -(s^2 + a^2/10): no logged row is in a batch, and the gain is still right."""
    generator = torch.Generator().manual_seed(0)
    sizes = {"hidden_sizes": toy.WIDTHS, "model_hidden_sizes": (32,), "members": 2}
    keywords = {**toy.REGULATOR, "model_updates": 1000, "imagined_share": 1.0, "horizon": 1}
    model = MLPModelBasedSACModel(1, 1, generator=generator, **sizes)
    learner = MOPO(model, penalty_coef=0.0, model_learning_rate=5e-3, **keywords)
    rows = {**toy.closed_regulator(), "episodes": (torch.arange(toy.ROWS) // 64).float()}
    learner.look_at_data(rows)
    toy.fit(learner, rows, updates=2500, batch_size=64)
    states = torch.linspace(-1.0, 1.0, 21).unsqueeze(-1)
    gain = -(learner.actor.mode(states) * states).sum() / states.square().sum()
    assert gain.item() == pytest.approx(toy.REGULATOR_GAIN, abs=0.05)
