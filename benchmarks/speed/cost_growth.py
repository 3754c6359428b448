"""How the cost of an update grows: with the ensemble, the batch, the width, stacked seeds, the dataset.

    python benchmarks/speed/cost_growth.py --json growth.json --plot docs/performance_growth.png

Updates per CPU second on one thread, eager and compiled in turn. Results are kept in the JSON file as
they come: an interrupted benchmark goes on with what is missing, and `--panel` and `--mode` measure a part.
The plot shows whatever the file has.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import rl_training  # noqa: F401  (before torch, for RL_TRAINING_AMD_MKL=1 to have an effect)

# isort: split
import torch
from subjects import ACTION_DIM, OBS_DIM, cpu_seconds, make_batch, make_learner, prepare, updater

from rl_training.algorithms.learner import Learner
from rl_training.core.streams import RandomStream, torch_generator
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.runtime.loop import Phase, Trainer
from rl_training.runtime.replay import UniformRows

MODES = ("eager", "compiled")
Run = Callable[[int], None]


def with_ensemble(count: int) -> tuple[Learner, Run]:
    learner = make_learner("redq", settings={"num_critics": count})
    return learner, updater(learner, make_batch())


def with_batch(size: int) -> tuple[Learner, Run]:
    learner = make_learner("iql")
    return learner, updater(learner, make_batch(size))


def with_width(width: int) -> tuple[Learner, Run]:
    learner = make_learner("iql", width)
    return learner, updater(learner, make_batch())


def with_seeds(seeds: int) -> tuple[Learner, Run]:
    learner = make_learner("iql", 64, seeds=seeds)
    return learner, updater(learner, make_batch(64, seeds=seeds))


def with_rows(rows: int) -> tuple[Learner, Run]:
    """Batches are drawn from a dataset by the training loop's own sampling."""
    learner = make_learner("iql")
    batches = RandomStream([torch_generator(0, "batch")], "unit64")
    loop = Trainer(learner, [], [], batch_size=256, batches=batches)
    phase = Phase("offline", 1, UniformRows(dataset_of(rows)))

    def run(count: int) -> None:
        for step in range(count):
            learner.update(loop.sample(phase), global_step=step)

    return learner, run


@lru_cache(maxsize=1)
def dataset_of(rows: int) -> TransitionDataset:
    """Random transitions in memory, kept for the other mode."""
    generator = torch.Generator().manual_seed(0)
    shapes = {"obs": (rows, OBS_DIM), "actions": (rows, ACTION_DIM), "next_obs": (rows, OBS_DIM)}
    columns = {name: torch.rand(shape, generator=generator) for name, shape in shapes.items()}
    return TransitionDataset(**columns, rewards=torch.rand(rows), dones=torch.zeros(rows))


@dataclass(frozen=True)
class Panel:
    title: str
    axis: str
    values: tuple[int, ...]
    build: Callable[[int], tuple[Learner, Run]]


PANELS = {
    "ensemble": Panel("REDQ, 256 × 256, batch 256", "critics", (2, 3, 5, 10, 20), with_ensemble),
    "batch": Panel("IQL, 256 × 256", "batch size", (32, 64, 128, 256, 512, 1024, 2048), with_batch),
    "width": Panel("IQL, batch 256", "units per hidden layer", (32, 64, 128, 256, 512), with_width),
    "seeds": Panel("IQL, 64 × 64, batch 64", "stacked seeds", (1, 2, 4, 8, 16), with_seeds),
    "rows": Panel(
        "IQL with sampling, 256 × 256, batch 256",
        "rows of the dataset",
        (10_000, 100_000, 1_000_000, 10_000_000),
        with_rows,
    ),
}


def measure(panel: Panel, value: int, modes: list[str], seconds: float) -> dict[str, float]:
    """Updates per CPU second of one point; of all seeds together where they are stacked."""
    torch._dynamo.reset()
    runs = {}
    for mode in modes:
        learner, runs[mode] = panel.build(value)
        if mode == "compiled":
            learner.compile()
            runs[mode](20)  # reaches every stage
    factor = value if panel.axis == "stacked seeds" else 1
    return {mode: factor / each for mode, each in cpu_seconds(runs, seconds).items()}


def plot(found: dict[str, dict[str, dict[str, float]]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 3, figsize=(12, 7), layout="constrained")
    for (name, panel), axis in zip(PANELS.items(), axes.flat, strict=False):
        points = {int(value): rates for value, rates in found.get(name, {}).items()}
        for mode, marker in zip(MODES, "os", strict=True):
            line = sorted((value, rates[mode]) for value, rates in points.items() if mode in rates)
            if line:
                axis.plot(*zip(*line, strict=True), marker=marker, label=mode)
        style(axis, panel)
    for axis in list(axes.flat)[len(PANELS) :]:
        axis.set_visible(False)
    figure.savefig(path, dpi=110)


def style(axis: Any, panel: Panel) -> None:
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xticks(panel.values, [short(value) for value in panel.values])
    axis.minorticks_off()
    low, high = axis.get_ylim()
    low, high = min(low, high / 4), max(high, low * 4)  # a flat line should look flat
    ticks = [t for e in range(7) for t in (10**e, 2 * 10**e, 3 * 10**e, 5 * 10**e) if low <= t <= high]
    axis.set_ylim(low, high)
    axis.set_yticks(ticks, [f"{tick:,}" for tick in ticks])
    axis.set_xlabel(panel.axis)
    axis.set_ylabel("seeds × updates / CPU s" if panel.axis == "stacked seeds" else "updates / CPU s")
    axis.set_title(panel.title, fontsize=11)
    axis.grid(alpha=0.3)
    if axis.lines:
        axis.legend()


def short(value: int) -> str:
    if value < 10_000:
        return str(value)
    return f"{value // 1_000_000}M" if value >= 1_000_000 else f"{value // 1000}k"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--panel", nargs="+", choices=PANELS, default=list(PANELS))
    parser.add_argument("--mode", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--at-most", type=int, help="leave out points beyond this value")
    parser.add_argument("--seconds", type=float, default=5.0, help="CPU time for each point and mode")
    parser.add_argument("--json", type=Path, default=Path("cost_growth.json"))
    parser.add_argument("--plot", type=Path, default=Path("cost_growth.png"))
    options = parser.parse_args()
    prepare()
    found = json.loads(options.json.read_text()) if options.json.exists() else {}
    for name in options.panel:
        points = found.setdefault(name, {})
        for value in PANELS[name].values:
            rates = points.setdefault(str(value), {})
            missing = [mode for mode in options.mode if mode not in rates]
            if not missing or (options.at_most and value > options.at_most):
                continue
            rates |= measure(PANELS[name], value, missing, options.seconds)
            options.json.write_text(json.dumps(found, indent=2))
            print(name, value, {mode: round(rate, 1) for mode, rate in rates.items()}, file=sys.stderr)
    plot(found, options.plot)


if __name__ == "__main__":
    main()
