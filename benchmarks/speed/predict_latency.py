"""Time of one action from one observation, on one thread, for every way to run a policy.

    python benchmarks/speed/predict_latency.py [--calls 3000] [--rounds 10]

Observations of 17 numbers, 6 actions, two hidden layers of 256. All candidates are called in turn in one
process, because absolute times on a shared machine say little. d3rlpy and Stable-Baselines3 take part where
they are installed; their `predict` is called as their documentation does.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"

import argparse
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rl_training import CQL, load_policy  # before torch, for RL_TRAINING_AMD_MKL=1 to have an effect

# isort: split
import gymnasium
import numpy as np
import torch

from rl_training.policies.export.torchscript import open_torchscript

OBS_DIM, ACTION_DIM, WIDTH = 17, 6, 256
ROWS = 300

Call = Callable[[], Any]


class Spaced(gymnasium.Env[Any, Any]):
    """An environment that is asked for its spaces only."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (OBS_DIM,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (ACTION_DIM,), np.float32)


def ours(obs: np.ndarray, folder: Path) -> dict[str, Call]:
    """One policy with SAC's network (CQL has the same and needs no environment), live and exported."""
    rng = np.random.default_rng(0)
    log = {
        "observations": rng.normal(size=(ROWS, OBS_DIM)),
        "actions": rng.uniform(-1.0, 1.0, (ROWS, ACTION_DIM)),
        "rewards": rng.normal(size=ROWS),
        "terminals": np.zeros(ROWS),
        "timeouts": np.arange(ROWS) == ROWS - 1,
    }
    agent = CQL(
        total_timesteps=1,
        output_dir=folder,
        hidden_sizes=[WIDTH, WIDTH],
        batch_size=8,
        compile=False,
        action_bounds="data",
    )
    agent.learn(dataset=log, quiet=True)
    light, onnx = (load_policy(agent.export(folder / f"policy.{kind}")) for kind in ("safetensors", "onnx"))
    script = open_torchscript(agent.export(folder / "policy.pt").read_bytes())
    policy = agent.policy
    return {
        "light loader (numpy)": lambda: light.predict(obs),
        "ONNX (onnxruntime)": lambda: onnx.predict(obs),
        "TorchScript": lambda: script(obs[None]),
        "live policy (torch)": lambda: policy.predict(obs),
    }


def peers(obs: np.ndarray) -> dict[str, Call]:
    """SAC of other libraries with the same network."""
    calls: dict[str, Call] = {}
    if find_spec("stable_baselines3"):
        import stable_baselines3

        theirs = stable_baselines3.SAC("MlpPolicy", Spaced(), buffer_size=1, device="cpu")
        calls[f"Stable-Baselines3 {stable_baselines3.__version__}"] = lambda: theirs.predict(
            obs, deterministic=True
        )
    if find_spec("d3rlpy"):
        import d3rlpy

        sac = d3rlpy.algos.SACConfig().create(device="cpu:0")
        sac.create_impl((OBS_DIM,), ACTION_DIM)
        calls[f"d3rlpy {d3rlpy.__version__}"] = lambda: sac.predict(obs[None])
    return calls


def measure(calls: dict[str, Call], count: int, rounds: int) -> dict[str, np.ndarray]:
    """Wall-clock microseconds of every call."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            for _ in range(count // rounds):
                start = time.perf_counter_ns()
                call()
                times[name].append((time.perf_counter_ns() - start) / 1000.0)
    return {name: np.array(values) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=3000)
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    torch.set_num_threads(1)
    obs = np.random.default_rng(0).normal(size=OBS_DIM).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        calls = {**ours(obs, Path(folder)), **peers(obs)}
        measure(calls, 20 * options.rounds, options.rounds)  # warm-up
        times = measure(calls, options.calls, options.rounds)
    print("| one observation, one thread | median µs | 95th percentile µs |")
    print("|---|---|---|")
    for name, values in sorted(times.items(), key=lambda entry: float(np.median(entry[1]))):
        print(f"| {name} | {np.median(values):.1f} | {np.percentile(values, 95):.1f} |")


if __name__ == "__main__":
    main()
