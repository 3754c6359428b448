"""Small runs of every algorithm, for tests that hold for all of them."""

from __future__ import annotations

import io
import re
import runpy
import sys
from collections.abc import Iterable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

import gymnasium as gym
import numpy as np
import pytest
import torch

from rl_training.algorithms.recipe import get_recipe
from rl_training.core.spaces import Choice, Spaces, unit_spaces
from rl_training.experiment.config import TrainConfig
from rl_training.runs.train import train as run_training
from rl_training.runtime.callbacks import TrainResult

ROOT = Path(__file__).parents[2]

TINY_NETWORK = {"hidden_sizes": [16, 16], "batch_size": 16}
TINY_KWARGS: dict[str, dict[str, Any]] = {
    "online": {"learning_starts": 20, "buffer_capacity": 200, "gradient_updates_per_step": 1},
    "offline": {"dataset_kind": "random", "dataset_size": 220, "dataset_seed": 3},
}
"""Settings that make a run of each kind last a second or two."""

TINY_STAGES: dict[str, dict[str, Any]] = {
    "lion": {"model_updates": 8, "behavior_updates": 4, "policy_updates": 20, "horizon": 3, "rollouts": 8},
    "caps": {"costs": {"bad": "reward < -5"}, "limits": {"bad": 0.1}},
    "mopo": {"model_updates": 8, "model_hidden_sizes": [8]},
    "mobile": {"model_updates": 8, "model_hidden_sizes": [8], "penalty_samples": 2},
}
"""Of algorithms that learn one thing after another: all of it within such a run."""

BARE_STATE: dict[str, Any] = {
    **{"algo": "x", "algo_class": "X", "dataset": None, "reference": None, "versions": {}, "results": {}},
    "config": {"env_id": None, "env_kwargs": {}, "seed": 0},
    "counters": {"global_step": 0, "gradient_steps": 0},
}
"""What an export reads of a checkpoint, of a run that did nothing."""


class PendulumOfLevels(gym.ActionWrapper[Any, Any, Any]):
    """Pendulum that takes one of three torques, for algorithms that take choices."""

    def __init__(self, **keywords: Any) -> None:
        super().__init__(gym.make("Pendulum-v1", **keywords))
        self.action_space = gym.spaces.Discrete(3)

    def action(self, action: Any) -> Any:
        return np.array([2.0 * (int(action) - 1)], dtype=np.float32)


LEVELS = "PendulumOfLevels-v0"
gym.register(LEVELS, entry_point=PendulumOfLevels)


def home_of(algo: str) -> str:
    """The environment that a small run of an algorithm is made in."""
    return "Pendulum-v1" if "numbers" in get_recipe(algo).learner.takes_actions else LEVELS


def task_of(algo: str) -> str:
    """The packaged task of an algorithm."""
    return "pendulum" if "numbers" in get_recipe(algo).learner.takes_actions else "cartpole"


def plain_spaces(algo: str, obs_dim: int, columns: int) -> Spaces:
    """Spaces of as many actions as an algorithm takes: numbers in [-1, 1], or choices among three."""
    if "numbers" in get_recipe(algo).learner.takes_actions:
        return unit_spaces(obs_dim, columns)
    return Spaces.of(obs_dim, [Choice((0.0, 1.0, 2.0))] * columns)


def tiny_config(algo: str, output_dir: Path, **changes: Any) -> TrainConfig:
    """A run of a few dozen steps; `algo_kwargs` among the changes are merged, the rest replaces."""
    kwargs = {
        **TINY_NETWORK,
        **TINY_KWARGS["online" if get_recipe(algo).online else "offline"],
        **TINY_STAGES.get(algo, {}),
        "eval_interval": 0,
        "compile": False,
    }
    values: dict[str, Any] = {
        "algo": algo,
        "env_id": home_of(algo),
        "seed": 7,
        "total_timesteps": 40,
        "output_dir": str(output_dir),
        "eval_episodes": 1,
        "log_interval": 10,
        "checkpoint_interval": 0,
        **changes,
    }
    values["algo_kwargs"] = {**kwargs, **changes.get("algo_kwargs", {})}
    return TrainConfig(**values)


def slow_but_two(algorithms: Iterable[str], fast: Sequence[str] = ("iql", "sac")) -> list[Any]:
    """Every algorithm as a parameter; `make test-fast` takes one that learns offline and one online."""
    return [pytest.param(each, marks=() if each in fast else pytest.mark.slow) for each in algorithms]


def train(config: TrainConfig, **options: Any) -> TrainResult:
    result: TrainResult = run_training(config, quiet=True, **options)
    return result


def assert_smoke(algo: str, output_dir: Path) -> None:
    """A run trains, evaluates, and leaves a checkpoint and its files."""
    result = train(tiny_config(algo, output_dir), run_suffix="smoke")
    assert result.checkpoint_path is not None and result.checkpoint_path.is_file()
    assert result.metrics["global_step"] == 40
    assert result.metrics["gradient_steps"] > 0
    assert -2000.0 < result.metrics["eval_return_mean"] < 0.0
    for name in ("config.yaml", "metrics.jsonl", "summary.json", "learning_curve.png"):
        assert (result.run_dir / name).stat().st_size > 0, name


def assert_example_runs(algo: str, output_dir: Path) -> None:
    """The reference script of an algorithm runs with the options that a user would give it.

    In this process: importing torch anew for each would take longer than all of its steps.
    """
    script = ROOT / "examples" / f"{algo}_{task_of(algo)}_reference.py"
    words = ["--total-timesteps", "128", "--eval-episodes", "1", "--output-dir", str(output_dir)]
    for name, value in TINY_STAGES.get(algo, {}).items():
        words += ["--set", f"{name}={value}"]
    shown = io.StringIO()
    argv, path = [str(script), *words], [str(script.parent), *sys.path]
    with patch.multiple(sys, argv=argv, path=path), redirect_stdout(shown):
        runpy.run_path(str(script), run_name="__main__")
    assert re.search(r"return -?\d", shown.getvalue())
    assert len(list(output_dir.glob("*/checkpoints/step_128.safetensors"))) == 1


def assert_same_tree(left: Any, right: Any, where: str = "") -> None:
    """Two nested states are equal, tensors bit for bit."""
    if isinstance(left, dict):
        assert left.keys() == right.keys(), where
        for key in left:
            assert_same_tree(left[key], right[key], f"{where}/{key}")
    elif isinstance(left, torch.Tensor):
        assert left.dtype == right.dtype and torch.equal(left, right), where
    elif isinstance(left, np.ndarray):
        np.testing.assert_array_equal(left, right, err_msg=where)
    else:
        assert left == right, where
