"""What the benchmarks of updates measure: every algorithm with its default settings, on random data."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import rl_training  # noqa: F401  (before torch, for RL_TRAINING_AMD_MKL=1 to have an effect)

# isort: split
import torch
from torch import Tensor

from rl_training.algorithms.learner import Learner
from rl_training.algorithms.stack import stack_learners
from rl_training.core.machine import keep_freed_memory
from rl_training.core.spaces import unit_spaces
from rl_training.experiment.registry import algorithm_names, get_algorithm_spec

OBS_DIM, ACTION_DIM = 17, 6
ALGORITHMS = algorithm_names()

Batch = dict[str, Tensor]


def prepare() -> None:
    """One thread, and freed memory kept as a run keeps it."""
    torch.set_num_threads(1)
    keep_freed_memory()


def make_learner(
    algo: str, width: int = 256, seed: int = 0, seeds: int = 1, settings: Mapping[str, Any] | None = None
) -> Learner:
    """A learner as a run builds it, with two hidden layers; a stack of them for several seeds."""
    recipe = get_algorithm_spec(algo).recipe
    config = recipe.settings.build({"hidden_sizes": [width, width], **(settings or {})})
    made = [
        recipe.build_learner(config, unit_spaces(OBS_DIM, ACTION_DIM), seed=seed + k) for k in range(seeds)
    ]
    return stack_learners(made) if seeds > 1 else made[0]


def make_batch(batch_size: int = 256, seed: int = 0, seeds: int = 1) -> Batch:
    """Transitions without structure, `[B, …]` or `[S, B, …]`, with every field that an algorithm needs."""
    generator = torch.Generator().manual_seed(seed)
    rows = (batch_size,) if seeds == 1 else (seeds, batch_size)
    return {
        "obs": torch.randn(*rows, OBS_DIM, generator=generator),
        "actions": torch.rand(*rows, ACTION_DIM, generator=generator) * 1.9 - 0.95,
        "rewards": torch.randn(*rows, generator=generator),
        "next_obs": torch.randn(*rows, OBS_DIM, generator=generator),
        "dones": (torch.rand(*rows, generator=generator) < 0.01).float(),
        "returns_to_go": torch.randn(*rows, generator=generator),
        "next_actions": torch.rand(*rows, ACTION_DIM, generator=generator) * 1.9 - 0.95,
    }


def updater(learner: Learner, batch: Batch) -> Callable[[int], None]:
    """A function that makes so many updates on one batch."""

    def run(count: int) -> None:
        for step in range(count):
            learner.update(batch, global_step=step)

    return run


def cpu_seconds(
    runs: Mapping[str, Callable[[int], None]], seconds: float, rounds: int = 5
) -> dict[str, float]:
    """Median CPU seconds of one update of each candidate.

    Candidates take turns, so that a slow moment of the machine hits all of them; each gets about `seconds`
    of CPU time in all.
    """
    counts = {}
    for name, run in runs.items():
        run(2)
        each = timed(run, 3) / 3
        counts[name] = max(1, int(seconds / rounds / each))
    spent: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            spent[name].append(timed(run, counts[name]) / counts[name])
    return {name: median(values) for name, values in spent.items()}


def timed(run: Callable[[int], None], count: int) -> float:
    """CPU seconds that a number of updates takes."""
    start = time.process_time()
    run(count)
    return time.process_time() - start


def resident_mebibytes() -> float:
    """Resident memory of this process (Linux)."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def markdown_table(header: list[str], rows: list[list[str]]) -> str:
    """A table as the documentation shows it."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
