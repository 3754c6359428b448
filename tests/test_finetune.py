"""Offline, then online, in one run: phases, what they leave unchanged, and exact resume on every border."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rl_training.algorithms.recipe import get_recipe
from rl_training.core.algorithms import algorithm_names
from rl_training.core.checkpoints import load_checkpoint
from rl_training.core.errors import ConfigError, DataError
from rl_training.core.streams import RandomStream, torch_generator
from rl_training.core.train_config import TrainConfig
from rl_training.experiment.logging import read_metrics
from rl_training.experiment.workflows import resume_training
from rl_training.runtime.callbacks.base import Callback
from rl_training.runtime.offline_data import build_offline_dataset
from rl_training.runtime.run import Run
from support import assert_same_tree, tiny_config, train

OFFLINE = [name for name in algorithm_names() if not get_recipe(name).online]
TRAINING_STATE = ("counters", "learner", "streams", "collector", "exploration", "replay", "callbacks")


def phased(algo: str, output_dir: Path, **changes: Any) -> TrainConfig:
    """20 offline updates, then 6 steps of warm-up and 24 of learning, in episodes of 9 steps."""
    kwargs = {"warmup_steps_online": 6, "buffer_capacity": 40, **changes.pop("algo_kwargs", {})}
    given = {"total_timesteps": 20, "online_timesteps": 30, "env_kwargs": {"max_episode_steps": 9}, **changes}
    return tiny_config(algo, output_dir, algo_kwargs=kwargs, **given)


def state_of(path: Path | None) -> dict[str, Any]:
    assert path is not None
    return load_checkpoint(path)


def assert_same_training_state(left: Path | None, right: Path | None) -> None:
    states = [state_of(left), state_of(right)]
    for key in TRAINING_STATE:
        if key in states[0] or key in states[1]:
            assert_same_tree(states[0][key], states[1][key], key)


@pytest.mark.parametrize("algo", OFFLINE)
def test_without_online_steps_a_run_is_a_plain_loop_over_the_data(algo: str, tmp_path: Path) -> None:
    """The same numbers, bit for bit, as the few lines that an offline run has always been."""
    config = tiny_config(algo, tmp_path, online_timesteps=0)
    recipe, data = get_recipe(algo), build_offline_dataset(config)
    sizes = (data.spaces.obs_dim, data.spaces.action_dim)
    learner = recipe.build_learner(config.run_config(), *sizes, seed=config.seed)
    batches = RandomStream([torch_generator(config.seed, "batch")], "unit64")
    for step in range(40):
        rows = (batches.next(16) * len(data.dataset)).long()
        learner.update(data.dataset.gather(rows), global_step=step)
    trained = state_of(train(config).checkpoint_path)
    assert_same_tree(trained["learner"]["tensors"], learner.state_dict()["tensors"])
    assert trained["counters"]["env_steps"] == 0 and "replay" not in trained


@pytest.mark.parametrize("algo", OFFLINE)
def test_every_offline_algorithm_goes_online(algo: str, tmp_path: Path) -> None:
    result = train(phased(algo, tmp_path))
    counters = state_of(result.checkpoint_path)["counters"]
    assert (counters["global_step"], counters["env_steps"], counters["gradient_steps"]) == (50, 30, 20 + 24)
    assert (counters["phase"], counters["phase_step"]) == (2, 24)


class StopAt(Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, run: Run) -> None:
        if run.global_step == self.step:
            run.request_stop("enough for now")


STOPS = {"offline": 13, "border to warm-up": 20, "warm-up": 23, "border to online": 26, "online": 41}


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("algo", ["cal_ql", "td3_bc"])
def test_a_run_is_resumed_exactly_in_every_phase(algo: str, stop: str, tmp_path: Path) -> None:
    changes = {"num_envs": 1, "algo_kwargs": {"eval_interval": 5, "learning_rate_schedule": "cosine"}}
    whole = train(phased(algo, tmp_path / "whole", **changes))
    half = train(phased(algo, tmp_path / "half", **changes), callbacks=[StopAt(STOPS[stop])])
    assert half.metrics["global_step"] == STOPS[stop]
    resumed = resume_training(half.run_dir, quiet=True)
    assert_same_training_state(whole.checkpoint_path, resumed.checkpoint_path)
