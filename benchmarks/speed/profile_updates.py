"""Where the time of one update goes, per algorithm, eager and compiled.

    python benchmarks/speed/profile_updates.py [--algo sac iql] [--mode eager compiled] [--plot profile.png]

How: the CPU time of an update is measured without a profiler. Under torch.profiler, the self time of each
operation counts for its category by the operation's name. Both are lower deciles over the updates, because
the profiler reads the wall clock and other processes interrupt. Generated kernels are profiled too
(`cpp.enable_kernel_profile`); one that fuses the optimiser with the end of a gradient counts as optimiser.
Drawing noise and sampling a batch (from 100,000 rows) are timed by themselves. What no operation accounts
for is the host: Python, autograd's bookkeeping, dispatch, views, allocation, launching kernels.
"Guards" are compiled code's checks that it still fits. Measure on a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import rl_training  # noqa: F401  (before torch, for RL_TRAINING_AMD_MKL=1 to have an effect)

# isort: split
import numpy as np
import torch
import torch._inductor.config
from cost_growth import dataset_of
from subjects import (
    ALGORITHMS,
    Batch,
    cpu_seconds,
    make_batch,
    make_learner,
    markdown_table,
    prepare,
    updater,
)
from torch.profiler import ProfilerActivity, profile, record_function

from rl_training.algorithms.learner import Learner
from rl_training.core.streams import RandomStream, torch_generator
from rl_training.runtime.loop import Phase, Trainer
from rl_training.runtime.replay import UniformRows

MODES = ("eager", "compiled")
UPDATES = 40  # twice the longest delay of an actor update
ATTEMPTS = 3
MARK = "one update, stage "

PRODUCTS = {"mm", "addmm", "bmm", "baddbmm"}
GUARDS = "TorchDynamo Cache Lookup"
OPTIMISER = {"_fused_adam_", "_foreach_lerp_", "lerp_"}
NOISE = {"normal_", "uniform_", "randn", "rand"}
BOOKKEEPING = """
view reshape _unsafe_view _reshape_alias t transpose permute expand slice select narrow unsqueeze squeeze
as_strided alias detach detach_ resolve_conj empty empty_strided empty_like resize_ zeros zeros_like ones_like
unbind split chunk linear matmul to _to_copy contiguous lift_fresh item _local_scalar_dense
"""
HOST = set(BOOKKEEPING.split())
CATEGORIES = (
    "matrix products",
    "pointwise, reductions",
    "optimiser, targets",
    "noise",
    "sampling",
    "guards",
    "host",
)


def category(name: str) -> str | None:
    """Of an operation that computes; None for what counts as the host's work or is timed elsewhere."""
    plain = name.removeprefix("aten::").removeprefix("aoti_torch_cpu_").removesuffix("_out")
    if plain in PRODUCTS:
        return "matrix products"
    if name == GUARDS:
        return "guards"
    if plain in OPTIMISER or ("cpp_fused" in name and ("addcmul" in name or "lerp" in name)):
        return "optimiser, targets"
    computes = name.startswith(("aten::", "aoti_torch_cpu_")) and plain not in HOST | NOISE
    if computes or "cpp_fused" in name:
        return "pointwise, reductions"
    return None


def usual(values: list[float]) -> float:
    """The sum of so many like durations without interruptions."""
    return float(np.quantile(values, 0.1)) * len(values)


def update_time(learner: Learner, batch: Batch) -> float:
    """CPU microseconds of an update, averaged over the stages as they come."""
    spent: dict[str, list[float]] = defaultdict(list)
    for step in range(2 * UPDATES):
        stage, start = learner.stage(), time.process_time()
        learner.update(batch, global_step=step)
        spent[stage].append(time.process_time() - start)
    return 1e6 * sum(usual(values) for values in spent.values()) / (2 * UPDATES)


def touch_spare_memory() -> None:
    """The profiler's records split the memory that updates reuse; new pages would count as operations."""
    blocks = [bytearray(b"1") * (100 << 20) for _ in range(8)]
    del blocks


def operation_times(learner: Learner, batch: Batch) -> Counter[tuple[str, str]]:
    """(category, operation) -> microseconds per update, averaged over the stages as they come."""
    touch_spare_memory()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for step in range(UPDATES):
            with record_function(MARK + learner.stage()):
                learner.update(batch, global_step=step)
    events = sorted(profiler.events(), key=lambda event: event.time_range.start)
    marks = [event for event in events if event.name.startswith(MARK)]
    starts = [mark.time_range.start for mark in marks]
    durations: dict[tuple[str, str, int], list[float]] = defaultdict(list)
    occurrence: Counter[tuple[int, str]] = Counter()
    for event in events:
        index = bisect_right(starts, event.time_range.start) - 1
        if index >= 0 and category(event.name) and event.time_range.start <= marks[index].time_range.end:
            nth = occurrence[index, event.name]
            occurrence[index, event.name] += 1
            durations[marks[index].name, event.name, nth].append(event.self_cpu_time_total)
    times: Counter[tuple[str, str]] = Counter()
    for (_, name, _), values in durations.items():
        times[str(category(name)), name] += usual(values) / UPDATES
    return times


def side_costs(learner: Learner, batch_size: int) -> dict[str, float]:
    """Microseconds of an update's noise and of its batch."""
    shapes = learner.noise_shapes(batch_size)
    sizes: dict[str, int] = {}
    for kind, shape in shapes.values():
        sizes[kind] = sizes.get(kind, 0) + math.prod(shape)
    batches = RandomStream([torch_generator(0, "batch")], "unit64")
    loop = Trainer(learner, [], [], batch_size=batch_size, batches=batches)
    phase = Phase("offline", 1, UniformRows(dataset_of(100_000)))

    def noise(count: int) -> None:
        for _ in range(count):
            for kind, size in sizes.items():
                learner.streams[kind].next(size)

    def sampling(count: int) -> None:
        for _ in range(count):
            loop.sample(phase)

    times = cpu_seconds({"noise": noise, "sampling": sampling}, seconds=0.3)
    return {name: 1e6 * value for name, value in times.items()}


def measure(algo: str, mode: str, width: int, batch_size: int) -> dict[str, Any]:
    """Microseconds per category and update, and the longest operations."""
    torch._dynamo.reset()
    learner, batch = make_learner(algo, width), make_batch(batch_size)
    if mode == "compiled":
        torch._inductor.config.cpp.enable_kernel_profile = True
        learner.compile()
    updater(learner, batch)(UPDATES)
    for _ in range(ATTEMPTS):
        total = update_time(learner, batch)
        operations = operation_times(learner, batch)
        parts = dict.fromkeys(CATEGORIES, 0.0) | side_costs(learner, batch_size)
        for (kind, _), value in operations.items():
            parts[kind] += value
        parts["host"] = total - (sum(parts.values()) - parts["sampling"])
        if parts["host"] >= 0:
            longest = [(name, round(value, 1)) for (_, name), value in operations.most_common(12)]
            return {"update_us": total, "parts_us": parts, "longest_us": longest}
    raise SystemExit(f"{algo}, {mode}: interrupted too often to tell where the time went")


def report(found: dict[str, dict[str, Any]], mode: str) -> str:
    """Shares of the time of an update, sampling included."""
    rows = []
    for algo, modes in found.items():
        if mode in modes:
            parts = modes[mode]["parts_us"]
            total = sum(parts.values())
            shares = [f"{100 * parts[name] / total:.0f} %" for name in CATEGORIES]
            rows.append([algo, f"{total / 1000:.2f}", *shares])
    return markdown_table([mode, "ms", *CATEGORIES], rows)


def plot(found: dict[str, dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    bars = [(algo, mode) for algo, modes in found.items() for mode in MODES if mode in modes]
    labels = [f"{algo}\n{mode}" for algo, mode in bars]
    figure, axis = pyplot.subplots(figsize=(12, 5), layout="constrained")
    bottoms = [0.0] * len(bars)
    for name, colour in zip(CATEGORIES, colours(), strict=False):
        heights = [share(found[algo][mode]["parts_us"], name) for algo, mode in bars]
        axis.bar(range(len(bars)), heights, bottom=bottoms, label=name, color=colour, width=0.8)
        bottoms = [low + high for low, high in zip(bottoms, heights, strict=True)]
    axis.set_xticks(range(len(bars)), labels, fontsize=7)
    axis.set_ylabel("share of an update's CPU time, %")
    axis.set_ylim(0, 100)
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=len(CATEGORIES), frameon=False)
    figure.savefig(path, dpi=110)


def share(parts: dict[str, float], name: str) -> float:
    return 100 * parts[name] / sum(parts.values())


def colours() -> Iterable[str]:
    return ("#4477aa", "#66ccee", "#228833", "#ccbb44", "#aa3377", "#ee6677", "#bbbbbb")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--algo", nargs="+", choices=ALGORITHMS, default=list(ALGORITHMS))
    parser.add_argument("--mode", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--json", type=Path, help="results, added to those that the file has already")
    parser.add_argument("--plot", type=Path, help="stacked bars")
    options = parser.parse_args()
    prepare()
    found = json.loads(options.json.read_text()) if options.json and options.json.exists() else {}
    for algo in options.algo:
        for mode in options.mode:
            if mode not in found.setdefault(algo, {}):
                found[algo][mode] = measure(algo, mode, options.width, options.batch_size)
                print(algo, mode, json.dumps(found[algo][mode]), file=sys.stderr, flush=True)
            if options.json:
                options.json.write_text(json.dumps(found, indent=2))
    for mode in options.mode:
        print(report(found, mode), end="\n\n")
    if options.plot:
        plot(found, options.plot)


if __name__ == "__main__":
    main()
