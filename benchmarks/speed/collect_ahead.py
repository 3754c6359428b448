"""What `collect_ahead` gains: a step of SAC, one update each, with and without it.

    python benchmarks/speed/collect_ahead.py [--width 256] [--rounds 3] [--env Pendulum-v1 …]

`Waits(milliseconds)-v0` is a pendulum whose step keeps a processor busy for so long, as a simulation of a
plant does. Both ways take turns. Wall time is that of the fastest tenth of stretches of 10 steps, as other
programs interrupt; what it shows needs two cores.
"""

from __future__ import annotations

import argparse
import re
import time
from functools import partial
from typing import Any

import rl_training  # noqa: F401  (before torch, for RL_TRAINING_AMD_MKL=1 to have an effect)

# isort: split
import gymnasium as gym
import numpy as np
import torch
from subjects import markdown_table, prepare

from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runtime.callbacks import Callback

ENVIRONMENTS = ("Pendulum-v1", "HalfCheetah-v5", "Waits(1)-v0", "Waits(4)-v0")
STRETCH, LEARNING_STARTS, WARM_UP = 10, 20, 60


class Busy(gym.Wrapper[Any, Any, Any, Any]):
    """A step that computes for so many seconds of processor time."""

    def __init__(self, env: gym.Env[Any, Any], seconds: float) -> None:
        super().__init__(env)
        self.seconds = seconds

    def step(self, action: Any) -> Any:
        end = time.thread_time() + self.seconds
        while time.thread_time() < end:
            pass
        return self.env.step(action)


def busy_pendulum(seconds: float) -> Busy:
    return Busy(gym.make("Pendulum-v1"), seconds)


class Watch(Callback):
    """Wall time of every stretch of steps after the first ones, which compile."""

    def __init__(self) -> None:
        self.steps, self.marks, self.cpu = 0, list[float](), 0.0

    def on_step_end(self, run: Any) -> None:
        self.steps += 1
        if self.steps == WARM_UP:
            self.cpu = time.process_time()
        if self.steps >= WARM_UP and not (self.steps - WARM_UP) % STRETCH:
            self.marks.append(time.perf_counter())

    @property
    def milliseconds(self) -> list[float]:
        return [1000 * float(value) / STRETCH for value in np.diff(self.marks)]


def one_run(env_id: str, width: int, ahead: bool, steps: int, mode: str) -> list[float]:
    settings = {
        "hidden_sizes": [width, width],
        "learning_starts": LEARNING_STARTS,
        "buffer_capacity": 10_000,
        "compile": mode == "compiled",
        "collect_ahead": ahead,
    }
    config = TrainConfig.build(
        {
            "algo": "sac",
            "env_id": env_id,
            "total_timesteps": WARM_UP + steps,
            "eval_episodes": 0,
            "checkpoint_interval": 0,
            "device": "cpu",
            "algo_kwargs": settings,
        }
    )
    watch, wait = Watch(), re.match(r"Waits\((.*)\)", env_id)
    env: Any = env_id if wait is None else partial(busy_pendulum, float(wait[1]) / 1000)
    get_algorithm_spec("sac").train_fn(config, env=env, callbacks=[watch], quiet=True)
    return watch.milliseconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--env", nargs="+", default=list(ENVIRONMENTS))
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--mode", choices=("eager", "compiled"), default="compiled")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    prepare()
    rows = []
    for env_id in options.env:
        found: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(options.rounds):
            for ahead, values in found.items():
                values += one_run(env_id, options.width, ahead, options.steps, options.mode)
                torch._dynamo.reset()
        best = {ahead: float(np.quantile(values, 0.1)) for ahead, values in found.items()}
        row = [env_id, f"{best[False]:.2f}", f"{best[True]:.2f}", f"{best[False] / best[True]:.2f}"]
        rows.append(row)
        print(*row, flush=True)
    print(markdown_table(["environment", "ms a step", "ahead", "times as fast"], rows))


if __name__ == "__main__":
    main()
