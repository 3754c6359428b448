"""What an update of LION's search costs, against imagined steps, members, widths, trajectories; and memory.

python benchmarks/speed/imagined_updates.py
"""

from __future__ import annotations

import argparse
import resource
import time
from typing import Any

import rl_training  # isort: skip  # before torch, so that RL_TRAINING_AMD_MKL has an effect
import torch

from rl_training.algorithms import LION
from rl_training.models import MLPLIONModel

OBS, ACTIONS, ROWS = 6, 2, 256
USUAL = {"horizon": 60, "members": 5, "width": 64, "rollouts": 100}
VARIED = {
    "horizon": (15, 30, 60, 120),
    "members": (1, 3, 5, 10),
    "width": (64, 128, 256),
    "rollouts": (50, 200),
}


def cpu_seconds(updates: int, horizon: int, members: int, width: int, rollouts: int) -> float:
    """Processor time of an update of the third stage."""
    model = MLPLIONModel(OBS, ACTIONS, hidden_sizes=(width, width), members=members)
    stages: dict[str, Any] = {"model_updates": 1, "behavior_updates": 1}
    learner = LION(model, horizon=horizon, rollouts=rollouts, **stages)
    rows = {
        "obs": torch.randn(ROWS, OBS),
        "actions": torch.rand(ROWS, ACTIONS) * 2 - 1,
        "rewards": torch.randn(ROWS),
        "next_obs": torch.randn(ROWS, OBS),
        "dones": torch.zeros(ROWS),
        "episodes": (torch.arange(ROWS) // 32).float(),
    }
    learner.look_at_data(rows)
    for step in range(3):  # one of each stage
        learner.update(rows, global_step=step)
    began = time.process_time()
    for step in range(updates):
        learner.update(rows, global_step=step)
    return (time.process_time() - began) / updates


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--updates", type=int, default=10)
    parser.add_argument("--quick", action="store_true", help="the usual sizes alone")
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(f"rl_training {rl_training.__version__}, {OBS} columns, {ACTIONS} actions")
    print("| steps | members | width | trajectories | CPU ms per update | largest memory so far, MB |")
    print("|---|---|---|---|---|---|")
    varied = {} if given.quick else VARIED
    sizes = [USUAL, *({**USUAL, name: size} for name, several in varied.items() for size in several)]
    for each in sorted(sizes, key=lambda size: size["horizon"] * size["width"] * size["rollouts"]):
        spent = 1000 * cpu_seconds(given.updates, **each)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"| {' | '.join(map(str, each.values()))} | {spent:.0f} | {memory:.0f} |", flush=True)


if __name__ == "__main__":
    main()
