"""Logs whose steps take different times: gamma to the power of a duration in every estimate."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers import train
from judging_problems import Proportional, corridor_log, lqr_log, small
from rl_training.config.run import TrainConfig
from rl_training.core.errors import DataError
from rl_training.core.spaces import Spaces
from rl_training.data import TransitionDataset
from rl_training.data.splits import logged_episodes
from rl_training.judging import judge
from rl_training.judging.checks import TrainedCritic, held_out_returns
from rl_training.judging.fqe import FittedValues, fit_values
from rl_training.judging.importance import ImportanceSampling
from rl_training.judging.log import JudgedLog
from rl_training.judging.model import rollout_steps
from rl_training.judging.policies import JudgedPolicy, PolicyActions
from rl_training.models.models import MLPTD3Model
from rl_training.policies.policy import Policy
from rl_training.report.judge_page import subtitle
from rl_training.runs.judge import judge as judge_runs
from rl_training.runtime.offline_data import load_parts

QUICK: dict[str, Any] = {
    "gamma": 0.9,
    "hidden_sizes": (8, 8),
    "members": 2,
    "updates": 20,
    "model_updates": 20,
    "model_members": 2,
    "model_hidden_sizes": (8, 8),
    "density_updates": 10,
    "rollout_starts": 5,
}


def timed(data: TransitionDataset, durations: np.ndarray) -> TransitionDataset:
    columns = {name: data.store.whole(name) for name in data.fields}
    return TransitionDataset.from_dict(
        {**columns, "durations": torch.from_numpy(durations.astype(np.float32))}
    )


def short_log(*, cut: bool = False) -> JudgedLog:
    """gamma .9 per unit, durations .5, 2, 1, rewards 1, 2, 3: returns 5.202667, 4.43, 3."""
    column, ends = np.zeros((3, 1), np.float32), np.array([False, False, True])
    discounts = 0.9 ** np.array([0.5, 2.0, 1.0])
    rewards = np.array([1, 2, 3], np.float32)
    return JudgedLog(column, column, column, rewards, ends & (not cut), ends, 0.9, discounts)


def test_returns_follow_the_durations() -> None:
    log, known = short_log(), [5.202667, 4.43, 3.0]
    np.testing.assert_allclose(held_out_returns(log, np.zeros(3)), known, rtol=1e-6)
    assert log.mean_return == pytest.approx(5.202667, rel=1e-6)
    assert log.discounted == pytest.approx([1.0, 0.9**0.5, 0.9**2.5])
    # Cut off at a state worth 10: 1 + .9^.5 (2 + .9^2 10), the last row being replaced by its value.
    found = held_out_returns(short_log(cut=True), np.array([0.0, 0.0, 10.0]))
    np.testing.assert_allclose(found, [1 + 0.9**0.5 * 10.1, 10.1, 10.0], rtol=1e-6)


class Standard:
    """N(0, 1) whatever is seen: the behaviour itself, below."""

    spaces = Spaces(1, (-1.0,), (1.0,))
    has_distribution = True
    metadata: Any = {"actor": {"kind": "unbounded"}}  # noqa: RUF012

    def predict(self, obs: np.ndarray) -> np.ndarray:
        return np.zeros((len(obs), 1), np.float32)

    def distribution(self, obs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.zeros((len(obs), 1)), np.zeros((len(obs), 1))


@pytest.mark.parametrize(
    ("values", "final", "robust"),
    [
        ((0.0, 0.0, 0.0), 0.0, 5.202667),  # without values it is the weighted sum
        ((5.202667, 4.43, 3.0), 0.0, 5.202667),  # right values need no correction
        ((0.0, 0.0, 0.0), 10.0, 5.202667 + 10 * 0.9**3.5),  # what follows the cut counts .9^(.5 + 2 + 1)
    ],
)
def test_weighing_the_behaviour_by_itself_gives_its_return(
    values: tuple[float, ...], final: float, robust: float
) -> None:
    log, subject = short_log(cut=final > 0.0), JudgedPolicy("p", Standard(), 1)
    density = subject.log_density(log.obs, log.actions)
    each = np.array([values, values])
    fitted = FittedValues(each, [], each, each, each, np.array([[final]]), 1, 3.0)
    weighing = ImportanceSampling(log, Standard.spaces, log.actions, density, np.ones(1), "fitted", small())
    found, _ = weighing.estimates(subject, log.actions, fitted, 0)
    for name in ("is", "wis", "pdis", "wpdis"):
        assert found[name].value == pytest.approx(5.202667, rel=1e-6), name
    assert found["wdr"].value == pytest.approx(robust, rel=1e-6)


@pytest.mark.slow
def test_fitted_values_are_those_of_a_table() -> None:
    """gamma .8, steps from cells 0, 1, 2 take 1, .5 and 2: what follows counts .8, .894427, .64.

    Always left: V0 = -.1 / (1 - .8), V1 = -.1 + .894427 V0, V2 = .9 + .64 V1. Always right: V2 = .9 and
    the end, V1 = -.1 + .894427 V2, V0 = -.1 + .8 V1.
    """
    plain = corridor_log()
    cells = plain.obs.numpy()[:, 0]
    data = timed(plain, np.array([1.0, 0.5, 2.0])[cells.astype(int)])
    log = JudgedLog.from_dataset(data, 0.8, by_time=True)
    known = {-1.0: (-0.5, -0.547214, 0.549783), 1.0: (0.463987, 0.704984, 0.9)}
    policies = [PolicyActions(*(np.full((len(data), 1, 1), way, np.float32),) * 2) for way in known]
    config = small(gamma=0.8, updates=1200, learning_rate=3e-3, members=4)
    found = fit_values(log, policies, config, lambda name, done, updates: None)
    for values, expected in zip(found.own, known.values(), strict=False):
        means = [np.nanmean(values[cells == cell]) for cell in range(3)]
        assert means == pytest.approx(expected, abs=0.05)


def test_the_model_and_the_horizon_use_the_mean_discount() -> None:
    """Half of the steps take .5, half 2: a step keeps (.9^.5 + .9^2) / 2 = .879342 of what follows."""
    data = timed(lqr_log(episodes=4, length=10), np.tile([0.5, 2.0], 20))
    log = JudgedLog.from_dataset(data, 0.9, by_time=True)
    assert log.step_discount == pytest.approx(0.879342, abs=1e-6)
    assert log.horizon == pytest.approx(1 / 0.120658, rel=1e-5)
    assert rollout_steps(log) == 42  # ln .005 / ln .879342 = 41.2


def test_a_constant_reward_is_worth_its_sum_whatever_the_steps_take() -> None:
    """Each reward 2, all values 2 / (1 - mean discount): nothing is left for the networks to learn."""
    column, ends = np.zeros((8, 1), np.float32), np.arange(8) % 4 == 3
    discounts = 0.9 ** np.tile([0.5, 2.0], 4)
    log = JudgedLog(column, column, column, np.full(8, 2, np.float32), ends & False, ends, 0.9, discounts)
    assert log.reward_scale.level == pytest.approx(2 / 0.120658, rel=1e-5)
    assert float(log.columns["rewards"].double().mean()) == pytest.approx(0.0, abs=1e-6)


def test_a_judgement_feels_the_setting_and_says_so() -> None:
    data = timed(lqr_log(episodes=25, length=8), np.tile([0.5, 2.0], 100))
    plain, by_time = (judge(Proportional(0.3), data, discount_by_time=t, **QUICK) for t in (False, True))
    assert by_time.data["step_discount"] == pytest.approx(0.879342, abs=1e-6)
    assert by_time.per_step(1.0) == pytest.approx(0.120658, abs=1e-6)
    assert plain.per_step(1.0) == pytest.approx(0.1)
    own = by_time.policies[0].estimates
    assert set(own) == set(plain.policies[0].estimates)
    assert all(own[name].value != plain.policies[0].estimates[name].value for name in own)
    assert "mean over logged steps" in own["model"].note
    assert "discount 0.9 per median step of time, " in subtitle(by_time)
    assert "discount 0.9, " in subtitle(plain)


def test_a_kept_fit_is_that_of_its_times(tmp_path: Path) -> None:
    """The same rows by time, by other times, and by step are three judgements."""
    stages: list[tuple[str, int]] = []
    quick = {**QUICK, "importance": False, "model_rollouts": False}
    for pattern, by_time, done in (
        ([0.5, 2.0], True, 0),
        ([0.5, 2.0], True, 20),
        ([1.0, 2.0], True, 0),
        ([1.0, 2.0], False, 0),
    ):
        stages.clear()
        judge(
            Proportional(0.3),
            timed(lqr_log(episodes=25, length=8), np.tile(pattern, 100)),
            discount_by_time=by_time,
            checkpoints=tmp_path,
            on_progress=lambda name, done, updates: stages.append((name, done)),
            **quick,
        )
        assert stages[0] == ("values", done)


def test_without_times_it_says_what_is_missing() -> None:
    with pytest.raises(DataError, match="discount_by_time needs the time of steps"):
        judge(Proportional(0.3), lqr_log(episodes=25), discount_by_time=True, **QUICK)


@pytest.mark.parametrize("pattern", [[1.0, -1.0], [0.0, 0.0]])
def test_durations_that_are_none_are_refused(pattern: list[float]) -> None:
    data = timed(lqr_log(episodes=2, length=8), np.tile(pattern, 8))
    with pytest.raises(DataError, match="durations must be >= 0 and not all 0"):
        JudgedLog.from_dataset(data, 0.9, by_time=True)


def test_values_are_bounded_by_the_episode_of_the_shortest_steps() -> None:
    """Steps of .5 in one episode and of 2 in the other: 1 / (1 - .9^.5) = 19.486833 of its steps count."""
    data = timed(lqr_log(episodes=2, length=8), np.repeat([0.5, 2.0], 8))
    log = JudgedLog.from_dataset(data, 0.9, by_time=True)
    rewards = data.rewards.numpy()
    wanted = (19.486833 * rewards.min(), 19.486833 * rewards.max())
    assert log.value_range == pytest.approx(wanted, rel=1e-5)


def test_a_critic_is_compared_only_where_it_counts_the_future_alike() -> None:
    model = MLPTD3Model(1, 1, hidden_sizes=(4, 4))
    policy = Policy(model.actor, Spaces(1, (-1.0,), (1.0,)))
    by_step, by_time = (TrainedCritic(model, policy, 0.9, 1.0, by_time) for by_time in (False, True))
    assert by_time.discounts_like(short_log()) and not by_step.discounts_like(short_log())
    plain = JudgedLog.from_dataset(lqr_log(episodes=3), 0.9)
    assert by_step.discounts_like(plain) and not by_time.discounts_like(plain)


def run_config(folder: Path, *, by_time: bool) -> TrainConfig:
    """A short run on a file with durations of .5 and 2."""
    data = timed(lqr_log(episodes=30, length=8), np.tile([0.5, 2.0], 120))
    names = {"observations": "obs", "next_observations": "next_obs", "terminals": "dones"}
    names |= {"timeouts": "truncations"} | {name: name for name in ("actions", "rewards", "durations")}
    np.savez(folder / "log.npz", **{key: data.store.whole(name).numpy() for key, name in names.items()})
    settings = {"hidden_sizes": [8], "batch_size": 16, "compile": False, "discount_by_time": by_time}
    settings |= {"judge_at_end": True, "judge_updates": 20, "judge_gamma": 0.9}
    settings |= {"action_low": [-1.0], "action_high": [1.0], "dataset_kind": "auto"}
    settings |= {"dataset_path": str(folder / "log.npz")}
    total: dict[str, Any] = {"algo": "td3_bc", "seed": 3, "total_timesteps": 2, "eval_episodes": 0}
    return TrainConfig(**total, output_dir=str(folder / str(by_time)), algo_kwargs=settings)


def test_a_run_trained_by_time_judges_itself_by_time(tmp_path: Path) -> None:
    told = {}
    for by_time in (False, True):
        result = train(run_config(tmp_path, by_time=by_time))
        told[by_time] = json.loads((result.run_dir / "judgement.json").read_text())
    assert told[True]["settings"]["discount_by_time"] is True
    assert told[True]["data"]["step_discount"] == pytest.approx(0.879342, abs=1e-6)
    assert "step_discount" not in told[False]["data"]
    assert told[True]["behaviour"]["value"] != told[False]["behaviour"]["value"]
    # The run is asked, unless it is told otherwise.
    command = [result.run_dir], str(tmp_path / "log.npz")
    assert judge_runs(*command, **QUICK).settings["discount_by_time"] is True
    by_step = judge_runs(*command, discount_by_time=False, **QUICK)
    assert by_step.settings["discount_by_time"] is False


def test_parts_that_count_time_differently_are_not_judged_together(tmp_path: Path) -> None:
    config = run_config(tmp_path, by_time=True)
    (part,) = load_parts(config)
    with pytest.raises(DataError, match="discount_by_time must be the same in all of dataset_parts"):
        logged_episodes([part, part], config.run_config(), [True, False])
    assert logged_episodes([part, part], config.run_config(), [True, True]).by_time
