"""The online phase of whole runs: what batches are made of over time, and the way there from Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import rl_training
from helpers import tiny_config, train
from rl_training.algorithms.learner import Learner
from rl_training.algorithms.recipe import get_recipe
from rl_training.algorithms.td3 import PulledTD3
from rl_training.core.checkpoints import load_checkpoint
from rl_training.core.errors import ConfigError
from rl_training.core.registry import algorithm_names
from rl_training.runs.resume import resume_training
from rl_training.runtime.callbacks import Callback, Run

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
