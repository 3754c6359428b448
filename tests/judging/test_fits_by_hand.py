"""What is read off fitted networks, computed a second time by hand; what every network may have seen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from judging_problems import GaussianProportional, Proportional, actions_of, feedback_log, lqr_log, small
from rl_training.algorithms.dynamics import resample_weights
from rl_training.core.spaces import Spaces
from rl_training.data import TransitionDataset
from rl_training.judging import fqe, importance
from rl_training.judging.estimators import importance_estimates, weighted_doubly_robust
from rl_training.judging.fit import FITS_DEPEND_ON, FitCache
from rl_training.judging.fqe import FQE, FittedValues, fit_values, new_learner
from rl_training.judging.importance import RESAMPLES, ImportanceSampling, fit_density
from rl_training.judging.log import JudgedLog
from rl_training.judging.model import fit_dynamics
from rl_training.judging.policies import JudgedPolicy

POLICIES = (Proportional(0.7), Proportional(-0.4))


def silent(name: str, done: int, updates: int) -> None:
    pass


# ---- resamples and kept fits


def test_every_network_has_a_resample_of_its_own() -> None:
    weights = resample_weights(5, 40, seed=0)
    assert len({tuple(each.tolist()) for each in weights}) == 5
    assert (resample_weights(5, 40, seed=1) != weights).any()


OTHER_SETTINGS: dict[str, Any] = {
    "gamma": 0.5,
    "discount_by_time": True,
    "seed": 7,
    "action_draws": 2,
    "members": 3,
    "hidden_sizes": (8,),
    "batch_size": 7,
    "learning_rate": 0.5,
    "tau": 0.5,
    "updates": 7,
    "compile": True,
    "model_members": 3,
    "model_hidden_sizes": (8,),
    "model_updates": 7,
}


def test_a_kept_fit_belongs_to_its_settings_log_and_policies() -> None:
    """Each alone makes it another; what is applied afterwards does not."""
    arrays = [np.arange(6.0).reshape(3, 2), np.ones(3)]
    assert OTHER_SETTINGS.keys() == FITS_DEPEND_ON

    def key(columns: list[np.ndarray] = arrays, **changes: Any) -> str:
        return FitCache.of(Path("fits"), small(**changes), columns).key

    keys = {key(**{name: value}) for name, value in OTHER_SETTINGS.items()}
    keys |= {key([arrays[0], arrays[1] * 2]), key([arrays[0].reshape(2, 3), arrays[1]])}
    assert len(keys) == len(OTHER_SETTINGS) + 2 and key() not in keys
    assert key(confidence=0.5, min_episodes=99) == key()


# ---- fitted values


@pytest.fixture
def ending() -> TransitionDataset:
    """Twelve episodes of five rows; every third one terminates, the others are cut off."""
    data = feedback_log(episodes=12, length=5)
    ends = data.truncations != 0
    terminated = ends & (torch.arange(len(data)) // 5 % 3 == 0)
    return TransitionDataset(
        data.obs,
        data.actions,
        data.rewards,
        data.next_obs,
        terminated.float(),
        truncations=ends & ~terminated,
    )


class Unfitted:
    """What is read off networks that have not learned, and these networks."""

    def __init__(self, data: TransitionDataset, monkeypatch: pytest.MonkeyPatch) -> None:
        self.config = small(members=3, hidden_sizes=(8,), updates=40)
        self.log = JudgedLog.from_dataset(data, self.config.gamma)

        def no_fit(learner: FQE, rows: Any, *, updates: int, observe: Any, **others: Any) -> None:
            self.learner, self.batch = learner, rows.gather(torch.arange(rows.count))
            observe(0)
            observe(updates)

        monkeypatch.setattr(fqe, "fit", no_fit)
        actions = [actions_of(each, data) for each in POLICIES]
        self.found = fit_values(self.log, actions, self.config, silent)
        # By hand: Q of each policy's own actions, in states by rows.
        scale = self.log.action_scale
        self.here = [scale.apply(each.here[:, 0]) for each in actions]
        self.there = [scale.apply(each.there[:, 0]) for each in actions]
        self.seen = self.learner.scalars["resamples"][0].numpy()

    @torch.no_grad()
    def q(self, index: int, obs: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """`[members, rows]` of one policy's networks, in the user's units."""
        stacked = [torch.from_numpy(each).expand(3, *each.shape) for each in (obs, actions)]
        return self.log.reward_scale.values(self.learner.critic(*stacked)[index].numpy())

    def unseen_mean(self, values: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Over the members whose resample does not hold the row's episode."""
        unseen = self.seen[:, self.log.numbers[rows]] == 0
        with np.errstate(invalid="ignore"):
            return (values * unseen).sum(0) / unseen.sum(0)


@pytest.fixture
def unfitted(ending: TransitionDataset, monkeypatch: pytest.MonkeyPatch) -> Unfitted:
    return Unfitted(ending, monkeypatch)


def test_first_values_are_means_over_each_members_own_episodes(unfitted: Unfitted) -> None:
    log, first = unfitted.log, unfitted.log.starts
    obs = log.columns["obs"].numpy()
    for index in range(2):
        q = unfitted.q(index, obs[first], unfitted.here[index][first])
        expected = [np.average(each, weights=counts) for each, counts in zip(q, unfitted.seen, strict=True)]
        np.testing.assert_allclose(unfitted.found.values[index], expected, rtol=1e-5)
    assert np.ptp(unfitted.found.values[0]) > 0.0


def test_held_out_values_are_those_of_members_that_have_not_seen_the_episode(unfitted: Unfitted) -> None:
    log, rows = unfitted.log, np.arange(len(unfitted.log))
    obs = log.columns["obs"].numpy()
    for index in range(2):
        own = unfitted.unseen_mean(unfitted.q(index, obs, unfitted.here[index]), rows)
        np.testing.assert_allclose(unfitted.found.own[index], own, rtol=1e-5)
        logged = unfitted.unseen_mean(unfitted.q(index, obs, log.columns["actions"].numpy()), rows)
        np.testing.assert_allclose(unfitted.found.logged[index], logged, rtol=1e-5)
    assert 0 < np.isnan(unfitted.found.own[0]).sum() < len(rows)


def test_what_follows_an_episode_is_the_value_of_the_state_after_it(unfitted: Unfitted) -> None:
    log, last = unfitted.log, np.flatnonzero(unfitted.log.ends)
    after = log.columns["next_obs"].numpy()[last]
    for index in range(2):
        expected = unfitted.unseen_mean(unfitted.q(index, after, unfitted.there[index][last]), last)
        expected[log.dones[last]] = 0.0
        np.testing.assert_allclose(unfitted.found.final[index], expected, rtol=1e-4, atol=1e-6)


def test_residuals_count_unseen_rows_whose_successor_is_known(unfitted: Unfitted) -> None:
    log, rewards = unfitted.log, unfitted.log.rewards.astype(np.float64)
    obs, after = (log.columns[name].numpy() for name in ("obs", "next_obs"))
    following = (*unfitted.there, log.action_scale.apply(log.next_actions))
    known = log.ends & ~log.dones
    for index, own in enumerate(following):
        target = rewards + log.gamma * np.where(log.dones, 0.0, unfitted.q(index, after, own))
        target = np.clip(target, *log.value_range)
        errors = target - unfitted.q(index, obs, log.columns["actions"].numpy())
        counted = (unfitted.seen[:, log.numbers] == 0) & ((index < 2) | ~known)
        expected = (errors * counted).sum(1) / counted.sum(1)
        np.testing.assert_allclose(unfitted.found.residuals[index], expected, rtol=1e-4, atol=1e-5)


def test_only_the_behaviour_has_rows_without_a_successor(unfitted: Unfitted) -> None:
    """The action logged after a cut-off end is that of another episode."""
    usable, log = unfitted.batch["usable"].numpy(), unfitted.log
    assert (usable[:2] == 1.0).all()
    np.testing.assert_array_equal(usable[2] == 0.0, log.ends & ~log.dones)


def weights_after(learner: FQE, batch: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    learner.update(batch, global_step=0)
    return [each.detach().clone() for each in learner.critic.parameters()]


def test_unusable_rows_and_unseen_episodes_teach_nothing(ending: TransitionDataset) -> None:
    log = JudgedLog.from_dataset(ending, 0.9)
    config = small(members=2, hidden_sizes=(4,))
    seen = resample_weights(2, log.episodes, seed=0).numpy()
    (episode,) = [each for each in range(log.episodes) if (seen[:, each] > 0).tolist() == [False, True]][:1]
    rows = torch.from_numpy(np.flatnonzero(log.numbers == episode))
    batch = {name: values[rows] for name, values in log.columns.items()}
    batch |= {"next_actions": batch["actions"], "usable": torch.ones(len(rows))}
    learner = new_learner(log, config)
    before = [each.detach().clone() for each in learner.critic.parameters()]
    after = weights_after(learner, batch)
    for old, new in zip(before, after, strict=True):
        assert (old[0] == new[0]).all()  # the first member's resample does not hold this episode
    assert any((old[1] != new[1]).any() for old, new in zip(before, after, strict=True))
    blank = weights_after(new_learner(log, config), {**batch, "usable": torch.zeros(len(rows))})
    assert all((old == new).all() for old, new in zip(before, blank, strict=True))


def test_targets_stay_between_what_rewards_can_add_up_to(ending: TransitionDataset) -> None:
    log = JudgedLog.from_dataset(ending, 0.9)
    learner = new_learner(log, small(members=2, hidden_sizes=(4,)))
    batch = {name: values[:4] for name, values in log.columns.items()}
    batch |= {"next_actions": batch["actions"], "usable": torch.ones(4)}
    highest, lowest = learner.config.highest, learner.config.lowest
    assert lowest < highest
    for reward, bound in ((1e6, highest), (-1e6, lowest)):
        found = learner.value_target({**batch, "rewards": torch.full((4,), reward)})
        np.testing.assert_allclose(found.numpy(), bound, rtol=1e-6)


def history_of(*means: float, updates: int = 300, progress: float = 3.0) -> FittedValues:
    """Values of one policy that stood at these means at equal distances along training."""
    steps = np.linspace(0, updates, len(means)).astype(int).tolist()
    each = [np.array([[mean - 0.5, mean + 0.5]]) for mean in means]
    nothing = np.zeros((1, 1))
    history = list(zip(steps, each, strict=True))
    return FittedValues(
        each[-1], history, np.array([[0.3, 0.1]]), nothing, nothing, nothing, updates, progress
    )


def test_drift_is_the_change_of_the_last_third() -> None:
    assert history_of(0.0, 5.0, 8.0, 9.0).drift(0) == pytest.approx(1.0)
    assert history_of(0.0, 5.0, 8.0, 2.0).drift(0) == pytest.approx(-6.0)


def test_the_level_error_is_the_residual_over_the_horizon_or_what_drift_leaves() -> None:
    still = history_of(9.0, 9.0, 9.0, 9.0)
    assert still.level_error(0, horizon=10.0) == pytest.approx(2.0)  # mean residual 0.2, ten steps
    moving = history_of(0.0, 0.0, 0.0, 6.0)  # exp(-1) of it is left after a third of the way
    assert moving.level_error(0, horizon=10.0) == pytest.approx(6.0 * np.exp(-1) / (1 - np.exp(-1)))
    small_residual = replace(moving, residuals=np.zeros((1, 2)))
    assert small_residual.level_error(0, horizon=10.0) == moving.level_error(0, horizon=10.0)


# ---- the model of the dynamics


def test_a_dynamics_network_learns_from_its_own_episodes(ending: TransitionDataset) -> None:
    """Whatever happened in an episode that its resample does not hold."""
    log = JudgedLog.from_dataset(ending, 0.9)
    config = small(model_members=2, model_updates=1, model_hidden_sizes=(4,))

    def weights(change: float) -> tuple[np.ndarray, list[np.ndarray]]:
        learner = fit_dynamics(log, config, silent)
        seen = learner.row_weights(torch.arange(log.episodes)).numpy()
        unseen = [each for each in range(log.episodes) if (seen[:, each] > 0).tolist() == [False, True]]
        rows = torch.from_numpy(np.flatnonzero(log.numbers == unseen[0]))
        batch = {name: values[rows] for name, values in log.columns.items()}
        learner.update({**batch, "rewards": batch["rewards"] + change}, global_step=0)
        return seen, [each.detach().numpy().copy() for each in learner.model.parameters()]

    seen, plain = weights(0.0)
    assert (seen[0] != seen[1]).any()
    _, changed = weights(3.0)
    assert all((one[0] == other[0]).all() for one, other in zip(plain, changed, strict=True))
    assert any((one[1] != other[1]).any() for one, other in zip(plain, changed, strict=True))


# ---- weights


def weighing(episodes: int, gamma: float = 0.9, **changes: Any) -> tuple[ImportanceSampling, FittedValues]:
    """Two-row episodes whose actions were drawn from N(0.1, 0.5), known as logged, and values by hand."""
    draws = np.random.default_rng(3)
    rows = 2 * episodes
    obs = np.ones((rows, 1), np.float32)
    actions = (0.1 + 0.5 * draws.normal(size=(rows, 1))).astype(np.float32)
    rewards = (actions[:, 0] + draws.normal(size=rows)).astype(np.float32)
    ends = np.arange(rows) % 2 == 1
    log = JudgedLog(obs, actions, obs, rewards, ends & (np.arange(rows) % 4 == 1), ends, gamma)
    density = -0.5 * ((actions[:, 0] - 0.1) / 0.5) ** 2 - np.log(0.5) - 0.5 * np.log(2 * np.pi)
    config = small(log_ratio_range=(-20.0, 20.0), **changes)
    spaces = Spaces(1, (-1.0,), (1.0,))
    weigh = ImportanceSampling(log, spaces, actions, density, np.array([0.5]), "as logged", config)
    q, v = draws.normal(size=(2, 2, rows))
    final = draws.normal(size=(1, episodes))
    values = FittedValues(np.zeros((2, 2)), [], np.zeros((2, 2)), q, v, final, 1, 3.0)
    return weigh, values


class Shifted(GaussianProportional):
    """N(0.3, 0.4) everywhere."""

    spaces = Spaces(1, (-1.0,), (1.0,))

    def __init__(self) -> None:
        pass

    def predict(self, obs: np.ndarray) -> np.ndarray:
        return np.full((len(obs), 1), 0.3, np.float32)

    def distribution(self, obs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.full((len(obs), 1), 0.3), np.full((len(obs), 1), np.log(0.4))


def test_weights_are_the_policys_density_over_the_logs() -> None:
    weigh, values = weighing(episodes=12)
    log, actions = weigh.log, weigh.unit_actions[:, 0].astype(np.float64)
    own = -0.5 * ((actions - 0.3) / 0.4) ** 2 - np.log(0.4) - 0.5 * np.log(2 * np.pi)
    ratios = log.per_episode(own - weigh.log_density)
    rewards = log.per_episode(log.rewards)
    found, _ = weigh.estimates(JudgedPolicy("p", Shifted(), 1), log.actions, values, 0)
    expected = importance_estimates(rewards, ratios, gamma=0.9)
    for name in ("is", "wis", "pdis", "wpdis"):
        assert found[name].value == pytest.approx(expected[name], rel=1e-4), name
    final = np.where(log.dones[log.ends], 0.0, values.final[0])
    split = [log.per_episode(each) for each in (values.logged[0], values.own[0])]
    robust = weighted_doubly_robust(rewards, ratios, *split, gamma=0.9, final_values=final)
    assert found["wdr"].value == pytest.approx(robust, rel=1e-4)


def test_bounds_of_weighted_sums_are_as_wide_as_episodes_differ() -> None:
    """With equal densities all weights are 1: the mean return, give or take 1.645 standard errors."""
    weigh, values = weighing(episodes=400)
    same = replace(
        weigh, log_density=JudgedPolicy("p", Shifted(), 1).log_density(weigh.log.obs, weigh.unit_actions)
    )
    found, _ = same.estimates(JudgedPolicy("p", Shifted(), 1), weigh.log.actions, values, 0)
    returns = np.array([each @ [1.0, 0.9] for each in weigh.log.per_episode(weigh.log.rewards)])
    reach = 1.645 * returns.std() / np.sqrt(400)
    for name in ("is", "wis", "pdis", "wpdis"):
        each = found[name]
        assert each.value == pytest.approx(returns.mean(), rel=1e-4)
        assert (each.high - each.value) == pytest.approx(reach, rel=0.3)
        assert (each.value - each.low) == pytest.approx(reach, rel=0.3)
    assert RESAMPLES >= 200


def test_a_density_learns_from_four_fifths_and_keeps_what_explains_the_rest_best(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = feedback_log(episodes=20, length=5)
    log = JudgedLog.from_dataset(data, 0.9)
    found: dict[str, Any] = {}

    def fake(learner: Any, rows: Any, *, observe: Any, **others: Any) -> None:
        found["rows"], found["count"] = rows.gather(torch.arange(rows.count)), rows.count
        log_prob = learner.net.log_prob

        def asked(obs: torch.Tensor, actions: torch.Tensor) -> Any:
            found.setdefault("measured on", obs)
            return log_prob(obs, actions)

        learner.net.log_prob = asked
        observe(0)
        found["best"] = {name: value.clone() for name, value in learner.model.state_dict().items()}
        with torch.no_grad():
            for value in learner.model.parameters():
                value -= 50.0  # sure of the lower bound; in place, as an optimiser changes them
        observe(1)
        found["learner"] = learner

    monkeypatch.setattr(importance, "fit", fake)
    fit_density(log, log.actions, small(hidden_sizes=(4,)), silent)
    episodes = set(found["rows"]["episodes"].tolist())
    assert (len(episodes), found["count"]) == (16, 80)
    fitted, measured = (set(each.flatten().tolist()) for each in (found["rows"]["obs"], found["measured on"]))
    assert len(measured) == 20 and not fitted & measured
    for name, value in found["learner"].model.state_dict().items():
        assert torch.equal(value, found["best"][name]), name


def test_the_bandwidth_is_what_the_density_leaves_unexplained() -> None:
    log = JudgedLog.from_dataset(lqr_log(episodes=40, length=20), 0.9)
    config = small(density_updates=300, hidden_sizes=(8,), learning_rate=2e-2, batch_size=64)
    density, bandwidth = fit_density(log, log.actions, config, silent)
    assert bandwidth == pytest.approx([1 / np.sqrt(3)], rel=0.1)  # uniform on [-1, 1]
    assert density.shape == (800,) and density.mean() == pytest.approx(-0.87, abs=0.2)
