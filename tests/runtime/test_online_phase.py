"""Going online: phases, and batches of data and collected rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import rl_training
from helpers import tiny_config, train
from rl_training.algorithms.learner import Learner
from rl_training.algorithms.recipe import get_recipe
from rl_training.algorithms.td3 import PulledTD3
from rl_training.core.checkpoints import load_checkpoint
from rl_training.core.errors import ConfigError
from rl_training.core.registry import algorithm_names
from rl_training.core.spaces import Spaces
from rl_training.core.transforms import ObservationNormalizer, RewardTransform
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.runs.resume import resume_training
from rl_training.runtime.callbacks import Callback, Run
from rl_training.runtime.collect import Steps
from rl_training.runtime.replay import EpisodeRows, StepRows, Units
from rl_training.runtime.sources import MixedRows

LOGGED_REWARD = 1000.0
"""No step of Pendulum is worth that: it tells logged rows from collected ones."""


def log(rows: int = 60) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    states = rng.normal(size=(rows + 1, 3)).astype(np.float32)
    return {
        "obs": states[:-1],
        "actions": rng.uniform(-2, 2, size=(rows, 1)).astype(np.float32),
        "rewards": np.full(rows, LOGGED_REWARD, dtype=np.float32),
        "next_obs": states[1:],
        "dones": np.zeros(rows, dtype=np.float32),
        "truncations": (np.arange(rows) % 10 == 9).astype(np.float32),
    }


class Stop(Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, run: Run) -> None:
        if run.global_step == self.step:
            run.request_stop("here")


Watched = list[tuple[int, float]]


def watched_updates(monkeypatch: pytest.MonkeyPatch) -> Watched:
    """Grows by every update: the logged rows of its batch, and the pull towards the data (1 without one)."""
    found: Watched = []
    update = Learner.update

    def noted(self: Learner, batch: Any, **given: Any) -> Any:
        pull = float(self.pull) if isinstance(self, PulledTD3) else 1.0
        found.append((int((batch["rewards"] == LOGGED_REWARD).sum()), pull))
        return update(self, batch, **given)

    monkeypatch.setattr(Learner, "update", noted)
    return found


@pytest.mark.parametrize("stop", [None, 33])
def test_shares_and_pull_of_a_run_follow_their_lines(
    stop: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """20 offline updates, 6 steps of warm-up without any, then 14 steps with two updates each."""
    found = watched_updates(monkeypatch)
    settings = {"warmup_steps_online": 6, "offline_share": [0.9, 0.1, 8], "gradient_updates_per_step": 2}
    config = tiny_config("td3_bc", tmp_path, total_timesteps=20, online_timesteps=20, algo_kwargs=settings)
    data = rl_training.TransitionDataset.from_dict(log())
    result = train(config, dataset=data, callbacks=[] if stop is None else [Stop(stop)])
    if stop is not None:
        resume_training(result.run_dir, dataset=data, quiet=True)
    # 16 times 0.8, 0.7, … 0.1, then 0.1: to the nearest row.
    shares = [13, 11, 10, 8, 6, 5, 3, 2, 2, 2, 2, 2, 2, 2]
    online = [(rows, pytest.approx(1 - step / 14)) for step, rows in enumerate(shares, start=1)]
    assert found == [(16, 1.0)] * 20 + [each for each in online for _ in range(2)]


ONLINE = [get_recipe(name) for name in algorithm_names() if get_recipe(name).online]


@pytest.mark.parametrize("algo", [each.name for each in ONLINE if "numbers" in each.learner.takes_actions])
def test_online_algorithms_take_data_beside_what_they_collect(
    algo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = watched_updates(monkeypatch)
    settings = {"learning_starts": 10, "offline_share": 0.25, "gradient_updates_per_step": 1}
    config = tiny_config(algo, tmp_path, total_timesteps=14, algo_kwargs=settings)
    train(config, dataset=rl_training.TransitionDataset.from_dict(log()))
    assert found == [(4, 1.0)] * 4  # a quarter of 16 rows in each of the four updates


def test_an_agent_goes_online_in_an_environment_that_it_is_given(tmp_path: Path) -> None:
    """Learned from arrays alone, with no environment known; then an environment of one's own."""
    settings: dict[str, Any] = {"hidden_sizes": [16, 16], "batch_size": 16, "output_dir": str(tmp_path)}
    agent = rl_training.IQL(total_timesteps=20, action_low=[-2.0], action_high=[2.0], **settings)
    agent.learn(log(), quiet=True)
    with pytest.raises(ConfigError, match="env_id must be given to fine-tune"):
        agent.finetune(timesteps=10, dataset=log(), quiet=True)
    with pytest.raises(ConfigError, match="dataset must be given: this run learned from a dataset"):
        agent.finetune(gym.make("Pendulum-v1"), timesteps=10, quiet=True)
    env = gym.make("Pendulum-v1", max_episode_steps=7)
    result = agent.finetune(env=env, timesteps=10, dataset=log(), quiet=True, eval_episodes=2)
    assert (result.metrics["env_steps"], result.metrics["gradient_steps"]) == (10, 30)
    assert result.metrics["online_return_before"] < 0 and result.metrics["eval_episodes"] == 2
    assert load_checkpoint(result.run_dir)["replay"]["rewards"].max() <= 0.0
    assert agent.predict(np.zeros(3, dtype=np.float32)).shape == (1,)


# ---- batches from data and collected rows: composition, units, returns-to-go; on small numbers written out


SPACES = Spaces(1, (-2.0,), (2.0,))
CPU = torch.device("cpu")
IDENTITY = Units(RewardTransform())


def logged(rows: int = 40, **extra: Any) -> TransitionDataset:
    """Observations 1000, 1001 … tell logged rows from collected ones."""
    numbers = torch.arange(rows, dtype=torch.float32)
    column = (1000 + numbers).reshape(-1, 1)
    return TransitionDataset(column, 0 * column, numbers, column, 0 * numbers, **extra)


def step(number: float, *, reward: float = 0.0, ended: bool = False, cut: bool = False) -> Steps:
    obs = np.array([[number]], dtype=np.float32)
    flags = np.array([ended]), np.array([cut])
    return Steps(obs, obs * 0, np.array([reward], dtype=np.float32), obs + 1, *flags, [])


def filled(rows: int = 30, seeds: int = 1) -> StepRows:
    store = StepRows(100, SPACES, seeds, CPU)
    for number in range(rows):
        given = [IDENTITY.columns(step(number + 100 * seed)) for seed in range(seeds)]
        store.add(given, [np.array([False])] * seeds)
    return store


def unit(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def from_data(batch: dict[str, torch.Tensor]) -> list[int] | int:
    return (batch["obs"][..., 0] >= 1000).sum(-1).tolist()


@pytest.mark.parametrize(
    ("share", "counts"),
    [
        (0.5, [5, 5, 5, 5, 5, 5]),
        (0.25, [3, 3, 3, 3, 3, 3]),  # 2.5 of 10 rows: halves upwards
        (0.0, [0, 0, 0, 0, 0, 0]),
        (1.0, [10, 10, 10, 10, 10, 10]),
        ((1.0, 0.0, 4), [10, 8, 5, 3, 0, 0]),  # 1, 0.75, 0.5, 0.25, 0, and 0 from there on
        ((0.2, 0.8, 2), [2, 5, 8, 8, 8, 8]),
    ],
)
def test_a_batch_holds_the_share_that_the_schedule_says(share: Any, counts: list[int]) -> None:
    single = MixedRows(logged(), filled(), share)
    assert [from_data(single.draw(unit(10), at)) for at in range(6)] == counts
    stacked = MixedRows(logged(), filled(seeds=2), share)
    assert [from_data(stacked.draw(unit(2, 10), at)) for at in range(6)] == [[n, n] for n in counts]


def test_rows_of_both_parts_are_drawn_uniformly_and_keep_their_fields_together() -> None:
    batch = MixedRows(logged(4), filled(2), 0.5).draw(unit(4000), 0)
    seen = {float(value): int((batch["obs"] == value).sum()) for value in batch["obs"].unique()}
    assert sorted(seen) == [0.0, 1.0, 1000.0, 1001.0, 1002.0, 1003.0]
    assert all(abs(seen[number] - 1000) < 100 for number in (0.0, 1.0))
    assert all(abs(seen[number] - 500) < 80 for number in (1000.0, 1001.0, 1002.0, 1003.0))
    data = batch["obs"][:, 0] >= 1000
    assert torch.equal(batch["rewards"][data], batch["obs"][data, 0] - 1000)
    assert torch.equal(batch["next_obs"][~data], batch["obs"][~data] + 1)


def test_append_draws_from_data_and_collected_rows_as_one_set() -> None:
    places = torch.tensor([0.0, 3.0, 4.0, 5.0], dtype=torch.float64) / 6 + 1e-6
    batch = MixedRows(logged(4), filled(2), None).draw(places, 0)
    assert batch["obs"][:, 0].tolist() == [1000.0, 1003.0, 0.0, 1.0]
    assert batch["rewards"].tolist() == [0.0, 3.0, 0.0, 0.0]
    stacked = MixedRows(logged(4), filled(2, seeds=2), None).draw(torch.stack([places, places]), 0)
    assert stacked["obs"][..., 0].tolist() == [[1000.0, 1003.0, 0.0, 1.0], [1000.0, 1003.0, 100.0, 101.0]]


def test_until_something_is_collected_all_rows_are_logged_ones() -> None:
    empty = StepRows(10, SPACES, 1, CPU)
    for share in (0.5, 0.0, None):
        assert from_data(MixedRows(logged(), empty, share).draw(unit(8), 0)) == 8
    assert len(empty) == 0


def test_only_fields_that_both_parts_have_are_in_a_batch() -> None:
    numbers = torch.arange(40.0)
    data = logged(truncations=0 * numbers, returns_to_go=numbers)
    assert set(MixedRows(data, filled(), 0.5).draw(unit(6), 0)) == {
        *("obs", "actions", "rewards", "next_obs", "dones")
    }


def test_n_step_data_is_not_mixed_with_single_steps() -> None:
    data = logged().with_columns({"discounts": torch.full((40,), 0.9)})
    with pytest.raises(ConfigError, match="n_step must be 1"):
        MixedRows(data, filled(), 0.5)


def test_collected_rows_are_in_the_units_of_the_data() -> None:
    normalizer = ObservationNormalizer(torch.tensor([3.0]), torch.tensor([1.999]))
    units = Units(RewardTransform(0.5, -1.0, (-2.0, 1.0)), (normalizer,), 0.9)
    rows = units.columns(
        Steps(
            np.array([[5.0]], np.float32),
            np.array([[-1.0]], np.float32),
            np.array([10.0], np.float32),
            np.array([[1.0]], np.float32),
            np.array([True]),
            np.array([False]),
            [],
        )
    )
    assert rows["obs"].tolist() == [[1.0]] and rows["next_obs"].tolist() == [[-1.0]]
    assert rows["actions"].tolist() == [[pytest.approx(-0.9)]]
    assert rows["rewards"].tolist() == [1.0] and rows["dones"].tolist() == [1.0]


def slow_returns(rewards: list[float], gamma: float, failure: float | None) -> list[float]:
    if failure is not None and all(reward == failure for reward in rewards):
        return [failure / (1 - gamma)] * len(rewards)
    return [
        sum(gamma ** (later - now) * rewards[later] for later in range(now, len(rewards)))
        for now in range(len(rewards))
    ]


@pytest.mark.parametrize("failure", [None, -1.0])
def test_returns_to_go_of_collected_episodes_equal_a_slow_reference(failure: float | None) -> None:
    """Two environments, episodes of unequal length, some cut off and some of failures alone."""
    rng = np.random.default_rng(0)
    store = EpisodeRows(500, SPACES, 1, 2, CPU, gamma=0.9, failure_reward=failure)
    expected: dict[float, float] = {}
    open_rows: list[list[tuple[float, float]]] = [[], []]
    fails = [False, False]
    for time in range(120):
        rewards = [-1.0 if fails[env] else float(rng.integers(-1, 3)) for env in range(2)]
        ends = rng.random(2) < 0.2
        cut = rng.random(2) < 0.5
        numbers = np.array([[time], [1000 + time]], dtype=np.float32)
        both = Steps(
            *(numbers, numbers * 0, np.array(rewards, np.float32), numbers + 1),
            *(ends & ~cut, ends & cut, []),
        )
        store.add([IDENTITY.columns(both)], [both.terminated | both.truncated])
        for env in range(2):
            open_rows[env].append((float(numbers[env, 0]), rewards[env]))
            if ends[env]:
                episode = open_rows[env]
                values = slow_returns([reward for _, reward in episode], 0.9, failure)
                expected |= {number: value for (number, _), value in zip(episode, values, strict=True)}
                open_rows[env], fails[env] = [], bool(rng.random() < 0.4)
    state = store.state_dict(None)
    found = dict(zip(state["obs"][:, 0].tolist(), state["returns_to_go"].tolist(), strict=True))
    assert found.keys() == expected.keys() and len(found) == len(store) > 200
    assert [found[number] for number in expected] == pytest.approx(list(expected.values()), abs=1e-5)
    if failure is not None:
        assert min(found.values()) == pytest.approx(-10.0)
    unfinished = sum(len(rows) for rows in open_rows)
    assert unfinished > 0 and sum(len(rows["obs"]) for rows in state["open"].values()) == unfinished


def test_an_unfinished_episode_survives_a_restore() -> None:
    def store() -> EpisodeRows:
        return EpisodeRows(50, SPACES, 1, 1, CPU, gamma=0.5, failure_reward=None)

    def feed(rows: EpisodeRows, *rewards: float, ended: bool) -> None:
        for index, reward in enumerate(rewards):
            over = ended and index == len(rewards) - 1
            rows.add([IDENTITY.columns(step(index, reward=reward))], [np.array([over])])

    first = store()
    feed(first, 1.0, 2.0, ended=True)
    feed(first, 4.0, 8.0, ended=False)
    assert len(first) == 2
    second = store()
    second.load_state_dict(first.state_dict(None))
    for rows in (first, second):
        feed(rows, 16.0, ended=True)
        assert rows.state_dict(None)["returns_to_go"].tolist() == [2.0, 2.0, 12.0, 16.0, 16.0]


def test_a_seed_without_a_finished_episode_learns_from_data_while_another_has_one() -> None:
    store = EpisodeRows(50, SPACES, 2, 1, CPU, gamma=0.9, failure_reward=None)
    columns = [IDENTITY.columns(step(1.0)), IDENTITY.columns(step(2.0))]
    store.add(columns, [np.array([True]), np.array([False])])
    data = logged(returns_to_go=torch.arange(40.0))
    assert from_data(MixedRows(data, store, 0.5).draw(unit(2, 8), 0)) == [4, 8]
