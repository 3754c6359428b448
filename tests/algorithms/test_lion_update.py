"""LION: its numbers, what each stage moves, the dial, and a plant whose best policy is known."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import learner_checks as checks
from learner_checks import close, numbers
from rl_training.algorithms import LION, lion_loss
from rl_training.algorithms.lion import Imagined, LIONRunConfig, clipped, dialled_gain, disagreement
from rl_training.config.run import TrainConfig
from rl_training.core.errors import ConfigError
from rl_training.models import MLPLIONModel
from rl_training.models.dynamics import DynamicsEnsemble

SHORT = {"model_updates": 3, "behavior_updates": 2, "policy_updates": 2, "horizon": 4, "rollouts": 8}
STAGES = 3 + 2 + 2
GAMMA = 0.9
K = 0.706659
"""Gain of the best policy of s' = .5 s + .5 a, r = -(s^2 + .1 a^2), gamma .9."""


def build(seed: int = 0, members: int = 3, penalty: dict[str, float] | None = None, **keywords: Any) -> LION:
    model = checks.model(MLPLIONModel, seed, members=members, penalty=penalty or {})
    return LION(model, seed=seed, **{**SHORT, **keywords})


def batch(seed: int = 0) -> dict[str, Tensor]:
    penalties = torch.arange(checks.BATCH).float() % 3.0
    return checks.random_batch(seed, episodes=torch.arange(checks.BATCH).float() // 4, penalties=penalties)


def run(learner: LION, updates: int, first: int = 0) -> dict[str, float]:
    result = None
    for step in range(first, first + updates):
        result = learner.update(batch(step), global_step=step)
    assert result is not None
    return dict(result.metrics)


def in_stage(stage: str, **keywords: Any) -> LION:
    learner = build(**keywords)
    learner.look_at_data(batch())
    done = 0
    while learner.stage() != stage:
        run(learner, 1, first=done)
        done += 1
    return learner


# ---- known numbers


def test_gain_of_a_step() -> None:
    """.25 (2 - .4 (2.5 - 1.5)) - .75 * 2 * .5 = -.35; below what is free nothing is taken off."""
    weights = {"pull": 2.0, "pessimism": 0.4, "free_disagreement": 1.5}
    reward, distance, dial = numbers(2.0, 2.0), numbers(0.5, 0.5), numbers(0.25, 0.25)
    close(dialled_gain(reward, distance, numbers(2.5, 1.0), dial, **weights), (-0.35, -0.25))


def test_loss_of_two_trajectories() -> None:
    """γ .5: at dial 1 (1 + .5 * .8 * 3) / 1.5, at dial 0 -(.2 + .5 * 1 * .4) / 1.5."""
    found = lion_loss(
        {
            "rewards": numbers((1.0, 3.0), (7.0, 7.0)),
            "distances": numbers((9.0, 9.0), (0.2, 0.4)),
            "disagreements": numbers((0.0, 1.5), (9.0, 9.0)),
            "survivals": numbers((0.8, 0.1), (1.0, 1.0)),
            "dials": numbers(1.0, 0.0),
            "gamma": 0.5,
        }
    )
    close(found["actor_loss"], -(2.2 / 1.5 - 0.4 / 1.5) / 2)


def test_penalties_are_paid_inside_the_sum() -> None:
    """γ .5, dial 1: (1 - .5 + .5 * .8 * (3 - 2)) / 1.5; at dial 0 nothing but the distance counts."""
    found = lion_loss(
        {
            "rewards": numbers((1.0, 3.0), (7.0, 7.0)),
            "penalties": numbers((0.5, 2.0), (100.0, 100.0)),
            "distances": numbers((9.0, 9.0), (0.2, 0.4)),
            "disagreements": numbers((0.0, 1.5), (9.0, 9.0)),
            "survivals": numbers((0.8, 0.1), (1.0, 1.0)),
            "dials": numbers(1.0, 0.0),
            "gamma": 0.5,
        }
    )
    close(found["actor_loss"], -(0.9 / 1.5 - 0.4 / 1.5) / 2)


def test_disagreement_is_the_spread_over_members() -> None:
    """Members 1 and 3 lie 1 from their mean, 2 and 2 do not differ: .5 over two columns."""
    mean = numbers(((1.0, 2.0),), ((3.0, 2.0),))
    close(disagreement(mean), (0.5,))


def test_gradients_are_clipped_together_and_by_seed() -> None:
    close(torch.stack(clipped([numbers(3.0, 0.0), numbers(0.0, 4.0)], 1.0, 0)), ((0.6, 0.0), (0.0, 0.8)))
    seeds = clipped([numbers((3.0, 4.0), (0.3, 0.4))], 1.0, 1)
    close(seeds[0], ((0.6, 0.8), (0.3, 0.4)))


def test_dials_follow_their_distribution() -> None:
    """Beta(1, 1) is uniform; Beta(.3, .3) has .2277 of its mass below .05 and as much above .95."""
    uniform = torch.linspace(-1.0, 1.0, 1001)[:-1].unsqueeze(-1)
    close(build(dial_shape=1.0).dials(uniform).double(), ((uniform + 1.0) / 2.0).double())
    ends = build(dial_shape=0.3).dials(uniform)
    assert float((ends < 0.05).float().mean()) == pytest.approx(0.2277, abs=2e-3)
    assert float((ends > 0.95).float().mean()) == pytest.approx(0.2277, abs=2e-3)


# ---- stages


def test_stages_move_what_is_theirs() -> None:
    learner = build()
    learner.look_at_data(batch())
    fitted = {"model.dynamics", "target.dynamics", "scalar.best_error", "scalar.unseen_error"}
    more = {"scalar.unseen_rows", "scalar.unseen_squares"}
    assert learner.stage() == "model"
    assert moved(learner, 0, 2) <= fitted | more
    assert learner.stage() == "model check"
    assert "target.dynamics" in moved(learner, 2, 1)
    usual = {"scalar.remembered", "scalar.typical_disagreement", "scalar.behavior_variance"}
    assert learner.stage() == "behavior"
    before = [each.clone() for each in learner.actor.usual.parameters()]
    assert moved(learner, 3, 2) == {"model.actor", *usual}
    imitated = [each.clone() for each in learner.actor.usual.parameters()]
    assert not any(map(torch.equal, before, imitated))
    assert learner.stage() == "policy"
    assert moved(learner, 5, 2) == {"model.actor"}
    assert all(map(torch.equal, imitated, learner.actor.usual.parameters()))


def moved(learner: LION, first: int, updates: int) -> set[str]:
    before = {name: tensor.detach().clone() for name, tensor in learner.tensors().items()}
    run(learner, updates, first)
    return {
        ".".join(name.split(".")[:2])
        for name, tensor in learner.tensors().items()
        if not name.startswith("optimizer") and not torch.equal(before[name], tensor)
    }


def test_rates_fall_in_every_stage() -> None:
    learner = build(learning_rate=0.1, policy_updates=4)
    learner.look_at_data(batch())
    rates = []
    for step in range(10):
        run(learner, 1, step)
        rates.append(float(learner.optimizers["actor"].learning_rate))
    falling = [1 - 0.95 * share for share in (0, 1 / 3, 2 / 3, 0, 1 / 2, 0, 1 / 4, 1 / 2, 3 / 4, 1)]
    assert rates == pytest.approx([0.1 * each for each in falling], rel=1e-5)


@pytest.mark.parametrize("updates", [2, 4, 6])
def test_resumes_exactly_in_every_stage(updates: int) -> None:
    whole, resumed = build(penalty={"heat": 3.0}), build(seed=5, penalty={"heat": 3.0})
    for learner in (whole, resumed):
        learner.look_at_data(batch())
    run(whole, updates)
    resumed.load_state_dict(whole.state_dict())
    for learner in (whole, resumed):
        run(learner, STAGES - updates, first=updates)
    assert all(torch.equal(tensor, resumed.tensors()[name]) for name, tensor in whole.tensors().items())


def test_stacked_equals_single() -> None:
    def looked(seed: int) -> LION:
        learner = build(seed, actor_learning_rate=1e-4, action_noise=0.1, penalty={"heat": 3.0})
        learner.look_at_data(batch())
        return learner

    checks.check_stacked_equals_single(looked, updates=STAGES, seeds=(0, 1), batch=batch)


@pytest.mark.slow
@pytest.mark.parametrize(
    "keywords",
    [{"penalty": {"heat": 3.0}}, {"action_noise": 0.2, "reduction": "minimum", "probabilistic": True}],
)
def test_compiled_equals_eager(keywords: dict[str, Any]) -> None:
    of_model = {name: keywords[name] for name in ("probabilistic", "penalty") if name in keywords}
    own = {name: value for name, value in keywords.items() if name not in of_model}

    def looked(seed: int) -> LION:
        learner = LION(checks.model(MLPLIONModel, seed, members=2, **of_model), seed=seed, **{**SHORT, **own})
        learner.look_at_data(batch())
        return learner

    backend = checks.WHOLE if "reduction" in keywords else checks.GRAPHS
    checks.check_compiled_equals_eager(
        looked, updates=STAGES, batch=batch, eager_stages=["policy"], backend=backend
    )


# ---- what is imagined


class Exact(DynamicsEnsemble):
    """The plant of problem F, with a reward that is shifted by `level`."""

    level = 0.0
    weight = 0.0
    """of the cost a^2"""

    def penalty(self, obs: Tensor, actions: Tensor, next_obs: Tensor) -> Tensor:
        taken = self.weight * actions.square().squeeze(-1)
        return taken.expand(*taken.shape[:-2], self.members, taken.shape[-1])

    def forward(self, obs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        reward = self.level - (obs.square() + 0.1 * actions.square())
        change = torch.cat([0.5 * actions - 0.5 * obs, reward], dim=-1)
        shape = (*change.shape[:-3], self.members, *change.shape[-2:])
        return ((change - self.change_center) / self.change_spread).expand(shape), torch.zeros(shape)


def plant_rows(level: float = 0.0, count: int = 400) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(3)
    state, action = (torch.rand(count, 1, generator=generator) - 0.5 for _ in range(2))
    return {
        "obs": state,
        "actions": action,
        "rewards": level - (state.square() + 0.1 * action.square()).squeeze(-1),
        "next_obs": 0.5 * state + 0.5 * action,
        "dones": torch.zeros(count),
        "episodes": torch.arange(count).float() // 20,
    }


AT_THE_ENDS = {"pull": 0.0, "dial_shape": 0.02}
"""Without a pull, what is best at small dials is no small change of what is usual: they are not drawn."""


def searched(
    updates: int,
    *,
    level: float = 0.0,
    rows: dict[str, Tensor] | None = None,
    penalty: dict[str, float] | None = None,
    **keywords: Any,
) -> LION:
    """A policy found in the plant itself."""
    generator = torch.Generator().manual_seed(0)
    members = keywords.pop("members", 1)
    penalty = penalty or {}
    model = MLPLIONModel(1, 1, hidden_sizes=(16,), members=members, penalty=penalty, generator=generator)
    stages = {"model_updates": 1, "behavior_updates": 30, "policy_updates": updates}
    chosen = {"gamma": GAMMA, "horizon": 8, "rollouts": 32, "pessimism": 0.0, "model_noise": False}
    learner = LION(model, seed=0, **{**chosen, **stages, "learning_rate": 0.01, **keywords})
    data = rows or plant_rows(level)
    learner.look_at_data(data)
    exact = Exact(1, 1, members, penalised=bool(penalty))
    exact.set_scales(data, margin=0.1)
    exact.level, exact.weight = level, sum(penalty.values())
    draws = torch.Generator().manual_seed(1)
    for step in range(31 + updates):
        if step == 1:  # the stage that fits a model is over
            learner.kept_dynamics = exact
        drawn = torch.randint(len(data["dones"]), (32,), generator=draws)
        learner.update({name: values[drawn] for name, values in data.items()}, global_step=step)
    return learner


def gain(learner: LION, dial: float) -> float:
    """-a / s, over states of the log."""
    state = torch.linspace(-0.4, 0.4, 33).unsqueeze(-1)
    with torch.no_grad():
        action = learner.actor.mode(torch.cat([state, torch.full_like(state, dial)], dim=-1))
    return float(-(action * state).sum() / state.square().sum())


@pytest.mark.slow
def test_the_best_policy_of_a_known_plant() -> None:
    """The state falls to a sixth in every step: eight steps are as good as sixty."""
    learner = searched(400, **AT_THE_ENDS)
    assert gain(learner, 1.0) == pytest.approx(K, abs=0.02)


@pytest.mark.slow
def test_a_cost_is_paid_for_in_the_model() -> None:
    """With the cost a^2 at weight .4 the best policy is that of the reward -(s^2 + .5 a^2)."""
    value = 1.0
    for _ in range(200):
        best = 0.25 * GAMMA * value / (0.5 + 0.25 * GAMMA * value)
        value = 1.0 + 0.5 * best**2 + GAMMA * (0.5 - 0.5 * best) ** 2 * value
    rows = plant_rows()
    rows["penalties"] = 0.4 * rows["actions"].square().squeeze(-1)
    learner = searched(400, **AT_THE_ENDS, penalty={"effort": 0.4}, rows=rows)
    assert best < 0.4 < K - 0.2
    assert gain(learner, 1.0) == pytest.approx(best, abs=0.02)
    unpaid = searched(400, **AT_THE_ENDS, rows=rows)  # rewards are as they were logged: nothing is paid twice
    assert gain(unpaid, 1.0) == pytest.approx(K, abs=0.02)


def test_penalties_are_predicted_as_far_as_the_log_has_them() -> None:
    """Something is too hot above .1: after the fit about 5 are taken there, 0 below; more counts 5."""
    rows = plant_rows()
    rows["penalties"] = 5.0 * (rows["next_obs"].squeeze(-1) > 0.1).float()
    model = MLPLIONModel(
        1,
        1,
        hidden_sizes=(16, 16),
        members=2,
        penalty={"hot": 1.0},
        generator=torch.Generator().manual_seed(0),
    )
    learner = LION(model, seed=0, **{**SHORT, "model_updates": 400, "learning_rate": 3e-3})
    learner.look_at_data(rows)
    for step in range(400):
        learner.update(rows, global_step=step)
    dynamics = learner.kept_dynamics
    obs, action = torch.tensor([[0.4], [-0.4]]), torch.tensor([[0.3], [0.3]])
    with torch.no_grad():
        found = dynamics.penalty(obs, action, 0.5 * obs + 0.5 * action).mean(0)
        assert found.tolist() == pytest.approx([5.0, 0.0], abs=0.7)
        close(dynamics.possible_penalty(numbers(-3.0, 2.0, 9.0)), ((0.0, 2.0, 5.0),))
        dynamics.penalty_net.output.weight.zero_()
        dynamics.penalty_net.output.bias.fill_(1e3)
        step = learner.imagine(obs.unsqueeze(-3), obs[None, :, :0], torch.ones(2, 1), None, None)
    (taken,) = step.penalty
    close(taken.double(), [5.0 / float(dynamics.change_spread[0, 0, -1])] * 2)


def test_a_shift_of_the_rewards_changes_nothing() -> None:
    plain, shifted = searched(5), searched(5, level=30.0)
    assert gain(plain, 1.0) != pytest.approx(gain(searched(1), 1.0), abs=1e-4)
    assert gain(plain, 1.0) == pytest.approx(gain(shifted, 1.0), abs=1e-3)


@pytest.mark.slow
def test_at_dial_zero_it_does_as_was_done_and_above_it_does_better() -> None:
    """Operators play a = -.3 s and vary it by .2; the best gain is .707."""
    rows = plant_rows()
    varied = torch.randn(len(rows["obs"]), 1, generator=torch.Generator().manual_seed(5))
    action = (-0.3 * rows["obs"] + 0.2 * varied).clamp(-1, 1)
    rows |= {"actions": action, "next_obs": 0.5 * rows["obs"] + 0.5 * action}
    learner = searched(300, rows=rows)
    state = torch.linspace(-0.4, 0.4, 33).unsqueeze(-1)
    with torch.no_grad():
        behavior, policy = learner.actor.both(torch.cat([state, torch.zeros_like(state)], dim=-1))
    assert torch.equal(policy, behavior)
    gains = [gain(learner, dial) for dial in (0.0, 0.5, 1.0)]
    assert gains[0] == pytest.approx(0.3, abs=0.05)
    assert gains[0] + 0.03 < gains[1] < gains[2] - 0.03 < K


def unrolled(learner: LION, state: Tensor, steps: int) -> Tensor:
    total, weight = torch.zeros(len(state)), 1.0
    state, dial = state.unsqueeze(-3), torch.ones(len(state), 1)
    for _ in range(steps):
        step = learner.imagine(state, state[..., :0], dial, None, None)
        total, weight, state = total + weight * step.reward, weight * GAMMA, step.state
    return total


class Linear(torch.nn.Module):
    def both(self, asked: Tensor) -> tuple[Tensor, Tensor]:
        return asked[..., :1], -0.4 * asked[..., :1]


def test_the_unrolled_return_of_a_linear_policy_is_known() -> None:
    """s_t = (.5 - .5 k)^t s: the sum of γ^t (.3)^2t (1 + .1 k^2) s^2 over 12 steps, k = .4."""
    learner = searched(1)
    learner.actor = Linear()  # type: ignore[assignment]
    state, dynamics = torch.tensor([[0.8], [-0.5]]), learner.kept_dynamics
    known = sum((GAMMA * 0.09) ** t * 1.016 for t in range(12))
    with torch.no_grad():
        found = unrolled(learner, state, 12) * dynamics.change_spread[0, 0, -1]
        level = dynamics.change_center[0, 0, -1] * sum(GAMMA**t for t in range(12))
    close((found + level).double(), (-known * 0.64, -known * 0.25))


def test_members_are_followed_in_turn_or_the_worst_one() -> None:
    mean = torch.zeros(3, 5, 2)
    mean[1, :, -1] = -1.0
    mean[2, 2, -1] = -2.0
    in_turn = build().chosen(mean).squeeze(-1)
    assert in_turn.argmax(0).tolist() == [0, 1, 2, 0, 1]
    worst = build(reduction="minimum").chosen(mean).squeeze(-1)
    assert worst.argmax(0).tolist() == [1, 1, 2, 1, 1]
    assert (in_turn.sum(0) == 1).all() and (worst.sum(0) == 1).all()


def one_step(learner: LION) -> Imagined:
    state = batch()["obs"][:8].unsqueeze(-3)
    return learner.imagine(state, state[..., :0], torch.ones(8, 1), None, None)


def test_an_end_takes_away_what_comes_after_it() -> None:
    """Where the model says that every step ends it, nothing is left; it earns what ends do, level and all."""
    learner = in_stage("policy", model_noise=False)
    with torch.no_grad():
        dynamics = learner.kept_dynamics
        for network in (dynamics.end_net, dynamics.net):
            for parameter in network.parameters():
                parameter.zero_()
        step = one_step(learner)
        unit, level, last = (
            float(each)
            for each in (
                dynamics.change_spread[0, 0, -1],
                dynamics.change_center[0, 0, -1],
                dynamics.end_rewards[0, 0],
            )
        )
        close(step.survival.double(), [0.5] * 8)
        close(step.reward.double(), [(0.5 * level + 0.5 * last) / unit] * 8)
        dynamics.end_net.output.bias[..., 0] = 20.0
        step = one_step(learner)
    assert float(step.survival.max()) < 1e-6
    close(step.reward.double(), [last / unit] * 8)


def test_imagined_states_stay_near_the_log() -> None:
    learner = in_stage("policy", model_noise=False)
    with torch.no_grad():
        learner.kept_dynamics.net.output.bias.fill_(1e3)
        step = one_step(learner)
    seen = torch.cat([batch()["obs"], batch()["next_obs"]])
    highest = seen.amax(0)
    margin = 0.1 * (highest - torch.minimum(batch()["obs"].amin(0), batch()["next_obs"].amin(0)))
    torch.testing.assert_close(step.state[0, 0], highest + margin)


def test_the_policy_takes_the_dial() -> None:
    learner = build(dial=0.3)
    assert [(each.name, each.default) for each in learner.policy.inputs] == [("dial", 0.3)]
    assert learner.policy.predict(batch()["obs"].numpy(), dial=0.7).shape == (checks.BATCH, checks.ACTIONS)


def test_settings_that_make_no_sense_are_refused() -> None:
    run_config = LIONRunConfig
    with pytest.raises(ConfigError, match="learning_rate_schedule must be constant"):
        run_config.build({"learning_rate_schedule": "linear"})
    with pytest.raises(ConfigError, match=r"total_timesteps must be > 4000, .* got 4000"):
        TrainConfig(algo="lion", env_id="Pendulum-v1", total_timesteps=4000)
    with pytest.raises(ConfigError, match=r"online_timesteps must be 0 for lion, .* got 10"):
        TrainConfig(algo="lion", env_id="Pendulum-v1", total_timesteps=5000, online_timesteps=10)
