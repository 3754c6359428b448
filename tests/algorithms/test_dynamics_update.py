"""The model of the plant: its numbers, which weights are kept, what is reported, resume and stacks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import learner_checks as checks
from learner_checks import close
from rl_training.algorithms.dynamics import (
    UPDATES_PER_CHECK,
    ColumnErrors,
    Dynamics,
    column_errors,
    prediction_errors,
    resample_weights,
    surprise,
    surprise_of_ends,
)
from rl_training.algorithms.stack import stack_learners, unstack_learners
from rl_training.data import TransitionDataset
from rl_training.models.dynamics import DynamicsEnsemble, DynamicsModel
from rl_training.models.networks import NetworkPlan

EPISODES, LENGTH = 6, 20


def lqr_rows(seed: int = 0, *, terminate: bool = False) -> dict[str, Tensor]:
    """Episodes of s' = .5 s + .5 a, r = -(s^2 + .1 a^2) from uniform actions, and a column that stands."""
    draws, rows = np.random.default_rng(seed), []
    for episode in range(EPISODES):
        state = draws.uniform(-1, 1)
        for step in range(LENGTH):
            action = draws.uniform(-1, 1)
            following = 0.5 * state + 0.5 * action
            done = terminate and step + 1 == LENGTH
            rows.append((state, action, -(state**2 + 0.1 * action**2), following, done, episode))
            state = following
    table = torch.tensor(np.array(rows, dtype=np.float32))
    still = torch.full((len(table), 1), 7.0)
    return {
        "obs": torch.cat([table[:, :1], still], dim=1),
        "actions": table[:, 1:2],
        "rewards": table[:, 2],
        "next_obs": torch.cat([table[:, 3:4], still], dim=1),
        "dones": table[:, 4],
        "episodes": table[:, 5],
    }


def build(seed: int = 0, members: int = 3, **keywords: Any) -> Dynamics:
    generator = torch.Generator().manual_seed(seed)
    sizes = {"hidden_sizes": (16, 16), "members": members, **keywords}
    model = DynamicsModel(2, 1, generator=generator, **sizes)
    return Dynamics(model, seed=seed, learning_rate=3e-3)


def fitted(updates: int, **keywords: Any) -> Dynamics:
    learner, rows = build(**keywords), lqr_rows()
    learner.look_at_data(rows)
    train(learner, rows, updates)
    return learner


def train(learner: Dynamics, rows: dict[str, Tensor], updates: int, first: int = 0) -> None:
    for update in range(first, first + updates):
        drawn = torch.randint(len(rows["rewards"]), (32,), generator=torch.Generator().manual_seed(update))
        learner.update({name: values[drawn] for name, values in rows.items()}, global_step=update)


def ends_of(rows: dict[str, Tensor]) -> Tensor:
    return torch.arange(len(rows["rewards"])) % LENGTH == LENGTH - 1


class Exact(DynamicsEnsemble):
    """The plant itself, in the form of an ensemble."""

    def forward(self, obs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        state = obs[..., :1]
        still, reward = torch.zeros_like(state), -(state.square() + 0.1 * actions.square())
        change = torch.cat([0.5 * actions - 0.5 * state, still, reward], dim=-1).expand(self.members, -1, -1)
        return (change - self.change_center) / self.change_spread, torch.zeros_like(change)


def test_units_are_those_of_the_log() -> None:
    dynamics = DynamicsEnsemble(2, 1, 1)
    columns = {
        "obs": torch.tensor([[0.0, 7.0], [2.0, 7.0]]),
        "actions": torch.tensor([[1.0], [1.0]]),
        "next_obs": torch.tensor([[2.0, 7.0], [6.0, 7.0]]),
        "rewards": torch.tensor([10.0, 30.0]),
        "dones": torch.tensor([0.0, 0.0]),
    }
    dynamics.set_scales(columns, margin=0.1)
    change = dynamics.change_of(columns["obs"], columns["next_obs"], columns["rewards"])
    close(change[0].double(), ((-1.0, 0.0, -1.0), (1.0, 0.0, 1.0)))
    following, reward = dynamics.following(columns["obs"], change)
    close(following[0].double(), columns["next_obs"])
    close(reward[0].double(), columns["rewards"])
    # the successors reach 6, a tenth of the range 0 … 6 beyond it is allowed; a column that stands stays
    close(
        dynamics.within_range(torch.tensor([[[9.0, 9.0], [-9.0, 3.0]]]))[0].double(),
        ((6.6, 7.0), (-0.6, 7.0)),
    )
    assert not dynamics.has_ends.any()


def test_a_clock_is_measured_by_its_step_and_not_by_rounding() -> None:
    draws = torch.Generator().manual_seed(0)
    obs = torch.stack([torch.arange(100) * 0.25, torch.ones(100), torch.zeros(100)], dim=-1)
    noise = torch.randn(100, generator=draws)
    change = torch.stack([torch.full((100,), 0.25), torch.zeros(100), 1.0 + 0.01 * noise], dim=-1)
    rows = {"obs": obs, "actions": torch.zeros(100, 1), "rewards": noise, "next_obs": obs + change}
    rows["dones"] = torch.zeros(100)
    for scaled in (True, False):
        dynamics = DynamicsEnsemble(3, 1, 1)
        dynamics.set_scales(rows, scaled=scaled)
        found = dynamics.change_spread.flatten().tolist()
        assert found[0] == pytest.approx(0.25) and found[1] == pytest.approx(1e-6)
        assert found[2] == pytest.approx(0.01 * float(noise.std(correction=0)), rel=1e-2)


def test_surprise_is_the_negative_log_density() -> None:
    """Standard normal numbers: states 1 and 0 off, 2 * .918939 + .5; two and a reward, all right, 2.756816.

    What a step earned that ended an episode is told with the end: log 2 for even odds, and half of 1 squared.
    """
    dynamics = DynamicsEnsemble(2, 1, 1, NetworkPlan(hidden_sizes=(), part="critic"), probabilistic=False)
    for parameter in dynamics.parameters():
        torch.nn.init.zeros_(parameter)
    batch = {
        "obs": torch.zeros(2, 2),
        "actions": torch.zeros(2, 1),
        "next_obs": torch.tensor([[1.0, 0.0], [0.0, 0.0]]),
        "rewards": torch.tensor([-1.0, 0.0]),
        "dones": torch.tensor([1.0, 0.0]),
    }
    close(surprise(dynamics, batch).double(), ((2.337877, 2.756816),))
    close(surprise_of_ends(dynamics, batch).double(), ((1.193147, 0.693147),))


def test_what_an_end_costs_does_not_drown_what_steps_earn() -> None:
    """Rewards of 0 and 2 a step, and ends that earn -50 and -30: units and expectations by hand."""
    dynamics = DynamicsEnsemble(1, 1, 1, NetworkPlan(hidden_sizes=(), part="critic"), probabilistic=False)
    for parameter in dynamics.parameters():
        torch.nn.init.zeros_(parameter)
    rows = {
        "obs": torch.zeros(6, 1),
        "actions": torch.zeros(6, 1),
        "next_obs": torch.zeros(6, 1),
        "rewards": torch.tensor([0.0, 2.0, 0.0, 2.0, -50.0, -30.0]),
        "dones": torch.tensor([0.0, 0.0, 0.0, 0.0, 1.0, 1.0]),
    }
    dynamics.set_scales(rows)
    assert (dynamics.change_center[..., -1].item(), dynamics.change_spread[..., -1].item()) == (1.0, 1.0)
    assert dynamics.end_rewards.flatten().tolist() == [-40.0, 10.0, -50.0, -30.0]
    zero = torch.zeros(1, 1, 1)
    ended, expected = dynamics.ended(zero, zero, zero, torch.tensor([[2.0]]))
    assert ended.item() == 0.5 and expected.item() == 0.5 * 2.0 + 0.5 * -40.0
    with torch.no_grad():
        dynamics.end_net.output.bias.copy_(
            torch.tensor([20.0, 7.0]).reshape(dynamics.end_net.output.bias.shape)
        )
    ended, expected = dynamics.ended(zero, zero, zero, torch.tensor([[2.0]]))
    assert ended.item() == pytest.approx(1.0) and expected.item() == pytest.approx(-30.0), (
        "as the log at most"
    )
    # where every row ends, there is no other unit
    dynamics.set_scales({name: values[4:] for name, values in rows.items()})
    assert dynamics.change_spread[..., -1].item() == 10.0


def test_what_ends_earn_is_learned_from_them_alone() -> None:
    learner, rows = build(), lqr_rows(terminate=True)
    rows["rewards"] = torch.where(rows["dones"] > 0, -100.0 + 10.0 * rows["obs"][:, 0], rows["rewards"])
    learner.look_at_data(rows)
    train(learner, rows, 800)
    last, going_on = (
        {name: values[rows["dones"] == done] for name, values in rows.items()} for done in (1, 0)
    )
    asked = (last[name].unsqueeze(0) for name in ("obs", "actions", "next_obs"))
    _, earned = learner.dynamics.ends(*asked)
    spread = last["rewards"].std()
    assert (earned.mean(0) - last["rewards"]).square().mean().sqrt() < 0.5 * spread and spread > 2.0
    own = learner.kept_dynamics(going_on["obs"], going_on["actions"])[0]
    _, told = learner.kept_dynamics.following(going_on["obs"], own)
    assert (told.mean(0) - going_on["rewards"]).square().mean().sqrt() < 0.1


def test_resamples_hold_as_many_episodes_as_there_are() -> None:
    weights = resample_weights(4, 9, seed=1)
    assert weights.sum(-1).tolist() == [9.0] * 4
    assert not torch.equal(weights[0], weights[1])


def test_members_learn_from_their_own_episodes_alone() -> None:
    """An episode that a member has not drawn does not move it, one that it has drawn does."""
    learner, rows = build(), lqr_rows()
    learner.look_at_data(rows)
    weights = learner.scalars["resamples"]
    member, episode = (int(each[0]) for each in torch.nonzero(weights[:, :EPISODES] == 0, as_tuple=True))
    chosen = rows["episodes"] == episode
    before = learner.dynamics.net.output.weight.detach().clone()
    learner.update({name: values[chosen] for name, values in rows.items()}, global_step=0)
    moved = (learner.dynamics.net.output.weight - before).abs().amax((-1, -2))
    decay = 3e-3  # Adam turns the weight decay alone into a step of the learning rate
    assert moved[member] <= decay * 1.01
    errors = learner.optimizers["model"].first_moments[0].abs().amax((-1, -2))
    others = weights[:, episode] > 0
    assert (errors[others] > 100 * errors[member]).all()


def test_the_plant_is_learned_and_a_still_column_stays() -> None:
    learner, rows = fitted(600), lqr_rows(seed=5)
    one = prediction_errors(learner.kept_dynamics, rows, ends_of(rows))
    assert one.predicted[0] < 0.1 * one.unchanged[0]
    assert one.predicted[1] < 1e-5
    ahead = prediction_errors(learner.kept_dynamics, rows, ends_of(rows), steps=5)
    assert ahead.predicted[0] < 0.4 * ahead.unchanged[0]


def test_errors_of_the_plant_itself_are_zero_and_those_of_standing_still_are_known() -> None:
    rows, exact = lqr_rows(), Exact(2, 1, 2)
    exact.set_scales(rows)
    for steps in (1, 4):
        found = prediction_errors(exact, rows, ends_of(rows), steps)
        assert found.predicted.amax() < 1e-5
        starts = [row for row in range(EPISODES * LENGTH) if row % LENGTH <= LENGTH - steps]
        moved = torch.stack([rows["next_obs"][row + steps - 1, 0] - rows["obs"][row, 0] for row in starts])
        assert found.unchanged[0].item() == pytest.approx(moved.square().mean().sqrt().item(), rel=1e-5)


def test_only_who_has_not_seen_an_episode_answers() -> None:
    """Two members, the plant itself and one that says nothing changes, whose error is what changes."""
    rows, ends = lqr_rows(), ends_of(lqr_rows())

    class Half(Exact):
        def forward(self, obs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
            right, log_std = super().forward(obs, actions)
            still = -self.change_center / self.change_spread
            return torch.cat([right[:1], still.expand(1, *right.shape[1:])]), log_std

    dynamics = Half(2, 1, 2)
    dynamics.set_scales(rows)
    knows = torch.zeros(2, len(ends), dtype=torch.bool)
    knows[0, :LENGTH] = True
    assert prediction_errors(dynamics, rows, ends, unseen=knows).predicted[:2].amax() < 1e-6
    first = {name: values[:LENGTH] for name, values in rows.items()}
    alone = prediction_errors(dynamics, first, ends[:LENGTH], unseen=knows.flip(0)[:, :LENGTH])
    assert alone.predicted[0].item() == pytest.approx(alone.unchanged[0].item(), rel=1e-5)
    both = prediction_errors(dynamics, first, ends[:LENGTH])
    assert both.predicted[0].item() == pytest.approx(0.5 * both.unchanged[0].item(), rel=1e-5)


def test_errors_are_told_column_by_column_in_their_units() -> None:
    rows, exact = lqr_rows(), Exact(2, 1, 2)
    exact.set_scales(rows)
    units, names = torch.tensor([10.0, 1.0, 2.0]), ("level", "still", "reward")
    found = column_errors(exact, rows, ends_of(rows), names, units)
    plain = prediction_errors(exact, rows, ends_of(rows), 10)
    assert [each.column for each in found] == list(names) and found[0].steps == (1, 10)
    assert found[0].unchanged[1] == pytest.approx(10.0 * plain.unchanged[0].item())
    assert found[2].unchanged[1] == pytest.approx(2.0 * plain.unchanged[2].item())
    assert found[0].left < 1e-4 and found[1].left == 0.0
    assert ColumnErrors("level", (1, 10), (1.0, 3.0), (2.0, 4.0)).left == 0.75
    # further than the longest episode goes is not asked, what nobody may answer is not told
    assert column_errors(exact, rows, ends_of(rows), names, units, steps=(LENGTH, LENGTH + 1))[0].steps == (
        20,
    )
    nobody = torch.zeros(2, len(rows["rewards"]), dtype=torch.bool)
    assert column_errors(exact, rows, ends_of(rows), names, units, unseen=nobody) == ()


def test_the_weights_that_predict_the_unseen_best_are_kept() -> None:
    """Two checks: a better one is kept, and after it was spoiled the kept one stays."""
    learner, rows = build(), lqr_rows()
    learner.look_at_data(rows)
    train(learner, rows, 2 * UPDATES_PER_CHECK)
    kept = [p.clone() for p in learner.kept_dynamics.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(kept, learner.dynamics.parameters(), strict=True))
    best = learner.scalars["best_error"].clone()
    with torch.no_grad():
        learner.dynamics.net.output.weight.add_(3.0)
    learner.set_learning_rate_scale(1e-6)
    train(learner, rows, UPDATES_PER_CHECK, first=2 * UPDATES_PER_CHECK)
    assert all(torch.equal(a, b) for a, b in zip(kept, learner.kept_dynamics.parameters(), strict=True))
    assert torch.equal(best, learner.scalars["best_error"])


def test_without_a_spread_the_error_alone_counts() -> None:
    learner = fitted(400, probabilistic=False)
    rows = lqr_rows(seed=5)
    _, log_std = learner.dynamics(rows["obs"], rows["actions"])
    assert not log_std.any()
    one = prediction_errors(learner.dynamics, rows, ends_of(rows))
    assert (one.predicted[[0, 2]] < 0.25 * one.unchanged[[0, 2]]).all()


def test_rows_say_which_episode_they_are_of() -> None:
    rows = lqr_rows(terminate=True)
    data = TransitionDataset(*(rows[name] for name in ("obs", "actions", "rewards", "next_obs", "dones")))
    assert torch.equal(data.with_episodes().gather(torch.arange(len(data)))["episodes"], rows["episodes"])


def test_ends_are_learned_where_there_are_any() -> None:
    learner, rows = build(), lqr_rows(terminate=True)
    learner.look_at_data(rows)
    before = learner.dynamics.end_net.output.bias.detach().clone()
    train(learner, rows, 1)
    assert learner.has_ends and not torch.equal(before, learner.dynamics.end_net.output.bias)
    none = build()
    none.look_at_data(lqr_rows())
    train(none, lqr_rows(), 1)
    assert not none.has_ends and torch.equal(before, none.dynamics.end_net.output.bias)


def test_a_saved_fit_goes_on_exactly() -> None:
    whole, rows = fitted(UPDATES_PER_CHECK + 20), lqr_rows()
    half = fitted(UPDATES_PER_CHECK - 10)
    resumed = build(seed=9)
    resumed.load_state_dict(half.state_dict())
    train(resumed, rows, 30, first=UPDATES_PER_CHECK - 10)
    for name, tensor in whole.tensors().items():
        assert torch.equal(tensor, resumed.tensors()[name]), name


def test_a_stack_of_fits_is_each_of_them() -> None:
    rows, alone = lqr_rows(), [build(seed) for seed in (0, 1)]
    for learner in alone:
        learner.look_at_data(rows)
    stacked = stack_learners(alone)
    for update in range(UPDATES_PER_CHECK + 1):
        drawn = torch.randint(len(rows["rewards"]), (2, 16), generator=torch.Generator().manual_seed(update))
        stacked.update({name: values[drawn] for name, values in rows.items()}, global_step=update)
        for index, learner in enumerate(alone):
            learner.update({name: values[drawn[index]] for name, values in rows.items()}, global_step=update)
    for learner, member in zip(alone, unstack_learners(stacked), strict=True):
        for name, tensor in learner.tensors().items():
            assert torch.allclose(tensor, member.tensors()[name], atol=1e-3), name


@pytest.mark.slow
def test_compiled_equals_eager() -> None:
    def looked(seed: int) -> Dynamics:
        learner = build(seed)
        learner.look_at_data(lqr_rows(terminate=True))
        return learner

    def drawn(seed: int) -> dict[str, Tensor]:
        rows = torch.randint(EPISODES * LENGTH, (16,), generator=torch.Generator().manual_seed(seed))
        return {name: values[rows] for name, values in lqr_rows(terminate=True).items()}

    checks.check_compiled_equals_eager(looked, updates=UPDATES_PER_CHECK, batch=drawn)
