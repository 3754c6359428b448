"""Run a fine-tuning script of a CORL checkout, as it is, on an HDF5 file and a Gymnasium environment.

    python benchmarks/scores/finetune_corl.py CHECKOUT SCRIPT DATA OFFLINE ONLINE EVAL_INTERVAL SEED RESULT

`finetune_scores.py --corl` calls this for every script and seed. The scripts import gym, d4rl, pyrallis,
wandb and tqdm; here they find small stand-ins under these names: the environment of the file in the old
interface, all rows of the file, a plain function, and a log that keeps evaluations and collected episodes.
"""

from __future__ import annotations

import runpy
import sys
import time
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium
import h5py
import numpy as np
import torch
from finetune_scores import write_numbers

SETTINGS: dict[str, dict[str, Any]] = {
    "iql": {"normalize_reward": True},
    "awac": {"awac_lambda": 1 / 3, "deterministic_torch": False},
    "cql": {"q_n_hidden_layers": 3},
    "cal_ql": {
        **{"q_n_hidden_layers": 3, "policy_lr": 1e-4, "cql_max_target_backup": True},
        **{"cql_alpha": 5.0, "cql_alpha_online": 5.0},
    },
}
"""What our configs say otherwise than the scripts' defaults."""


class OldEnv:
    """A Gymnasium environment as gym had it: `seed`, one value from `reset`, four from `step`."""

    def __init__(self, env_id: str) -> None:
        self.env = gymnasium.make(env_id)
        self.action_space, self.observation_space = self.env.action_space, self.env.observation_space
        assert self.env.spec is not None
        self._max_episode_steps = self.env.spec.max_episode_steps
        self.next_seed: int | None = None

    def seed(self, seed: int) -> None:
        self.next_seed = seed

    def reset(self) -> Any:
        obs, _ = self.env.reset(seed=self.next_seed)
        self.next_seed = None
        return obs

    def step(self, action: Any) -> tuple[Any, float, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, float(reward), terminated or truncated, info

    def get_normalized_score(self, value: float) -> float:
        """The scripts log a hundred times this: with it they log returns."""
        return value / 100.0


class TransformObservation:
    """gym's wrapper of that name."""

    def __init__(self, env: OldEnv, change: Callable[[Any], Any]) -> None:
        self.env, self.change = env, change

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def reset(self) -> Any:
        return self.change(self.env.reset())

    def step(self, action: Any) -> tuple[Any, float, bool, dict[str, Any]]:
        obs, *rest = self.env.step(action)
        return (self.change(obs), *rest)


class Log:
    """The rows of a run, from what a script gives to wandb; AWAC counts its steps from 0."""

    def __init__(self, first: int) -> None:
        self.rows: list[dict[str, Any]] = []
        self.offset = 1 - first

    def log(self, values: dict[str, Any], step: int) -> None:
        at = {"step": step + self.offset}
        if "train/episode_return" in values:
            value = float(values["train/episode_return"])
            self.rows.append({"kind": "collect", **at, "rollout_episodes": 1, "rollout_return_mean": value})
        if "eval/d4rl_normalized_score" in values:
            self.rows.append(
                {"kind": "eval", **at, "eval_return_mean": float(values["eval/d4rl_normalized_score"])}
            )


def stand_in(name: str, **contents: Any) -> None:
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)  # torch asks whether tqdm can be found
    module.__dict__.update(contents)
    sys.modules[name] = module


def rows_of(data: Path) -> dict[str, Any]:
    """All rows, as d4rl names them; the file holds the true successor of each, so none is left out."""
    names = ("observations", "actions", "rewards", "next_observations", "terminals")
    with h5py.File(data) as file:
        return {name: np.asarray(file[name]) for name in names}


def prepare(data: Path, log: Log) -> None:
    with h5py.File(data) as file:
        env_id = str(file.attrs["env_id"])
    wrappers = ModuleType("gym.wrappers")
    wrappers.__dict__["TransformObservation"] = TransformObservation
    stand_in("gym", make=lambda _: OldEnv(env_id), Env=OldEnv, wrappers=wrappers)
    stand_in("d4rl", qlearning_dataset=lambda _: rows_of(data))
    stand_in("pyrallis", wrap=lambda: lambda function: function)
    run = ModuleType("run")
    run.__dict__["save"] = lambda: None
    stand_in("wandb", init=lambda **_: None, run=run, log=log.log, finish=lambda: None)
    stand_in("tqdm", trange=lambda steps, **_: range(steps))


def main() -> None:
    checkout, name, data, offline, online, interval, seed, result = sys.argv[1:]
    torch.set_num_threads(1)
    log, awac = Log(first=0 if name == "awac" else 1), name == "awac"
    prepare(Path(data), log)
    script = runpy.run_path(str(Path(checkout, "algorithms", "finetune", f"{name}.py")))
    config = script["TrainConfig"](
        **{"env_name" if awac else "env": Path(data).stem, "device": "cpu", "seed": int(seed)},
        **{"eval_frequency" if awac else "eval_freq": int(interval)},
        **{"n_test_episodes" if awac else "n_episodes": 10, "buffer_size": 200_000},
        **{"offline_iterations": int(offline), "online_iterations": int(online)},
        **SETTINGS[name],
    )
    begun = time.process_time()
    script["train"](config)
    write_numbers(Path(result), log.rows, int(offline), time.process_time() - begun)


if __name__ == "__main__":
    main()
