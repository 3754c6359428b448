"""What compiling costs and what it gains, per algorithm.

    python benchmarks/speed/compile_time.py [--algo sac iql] [--width 256] [--batch-size 256] [--seconds 5]

Compile time is that of the first update of each stage, on one core: first with an empty cache of generated
code (a temporary directory), then in a new process that finds the code of the first ("cached"). CPU time
includes the C++ compiler. Eager and compiled updates are then timed in turn, in CPU time; the break-even is
compile time divided by the gain per update. Before that, 20 updates of both are compared: the largest
relative difference over weights, optimiser state and metrics, how many numbers differ by more than 0.001, and
as a control, the largest difference between eager learners whose first weights differ by one rounding (a unit
that rounding puts on the other side of a ReLU shows in both).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import rl_training  # noqa: F401  (before torch, for RL_TRAINING_AMD_MKL=1 to have an effect)

# isort: split
import torch
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

from rl_training.algorithms.learner import Learner

COMPARED_UPDATES = 20
TOLERANCE = 1e-3


def all_cpu() -> float:
    """CPU seconds of this process and of the compilers that it has called."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def compile_stages(learner: Learner, batches: list[Batch]) -> dict[str, float]:
    """Seconds of those updates that are the first of their stage; there must be no other graphs."""
    seen: set[str] = set()
    total = {"wall": 0.0, "cpu": 0.0}
    for step, batch in enumerate(batches):
        wall, cpu, stage = time.perf_counter(), all_cpu(), learner.stage()
        learner.update(batch, global_step=step)
        if stage not in seen:
            total["wall"] += time.perf_counter() - wall
            total["cpu"] += all_cpu() - cpu
            seen.add(stage)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert graphs == len(seen), f"{graphs} graphs for {len(seen)} stages"
    return {**total, "stages": len(seen)}


def differences(eager: Learner, other: Learner) -> torch.Tensor:
    """Of every number, relative to its size; numbers well below 0.01 count as 0.01."""
    theirs = {**other.tensors(), **other.last_metrics}
    return torch.cat(
        [
            ((value - theirs[name]).abs() / (1e-2 + value.abs())).detach().flatten()
            for name, value in {**eager.tensors(), **eager.last_metrics}.items()
        ]
    )


def after(learner: Learner, batches: list[Batch]) -> Learner:
    """The learner, one update per batch later."""
    for step, batch in enumerate(batches):
        learner.update(batch, global_step=step)
    return learner


def nudged(learner: Learner, seed: int) -> Learner:
    """Weights off by about one rounding: what this changes is no fault of compiled code."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in learner.model.parameters():
            weight.mul_(1 + 1e-7 * torch.randn(weight.shape, generator=generator))
    return learner


def measure(algo: str, backend: str, width: int, batch_size: int, seconds: float) -> dict[str, Any]:
    """One process's part: compile, and where `seconds` are given, compare and time."""
    prepare()
    batches = [make_batch(batch_size, seed) for seed in range(COMPARED_UPDATES)]
    compiled = make_learner(algo, width)
    compiled.compile(backend)
    found: dict[str, Any] = {"compile": compile_stages(compiled, batches)}
    if seconds:
        eager = after(make_learner(algo, width), batches)
        off = differences(eager, compiled)
        found |= {"difference": off.max().item(), "beyond": int((off > TOLERANCE).sum())}
        controls = [after(nudged(make_learner(algo, width), seed), batches) for seed in range(3)]
        found["control"] = max(differences(eager, control).max().item() for control in controls)
        runs = {"eager": updater(eager, batches[0]), "compiled": updater(compiled, batches[0])}
        found["update"] = cpu_seconds(runs, seconds)
    return found


def cold_and_cached(algo: str, options: argparse.Namespace) -> dict[str, Any]:
    """Both processes of one algorithm, and what follows from them."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": folder, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        found = []
        for seconds in (0.0, options.seconds):
            case = [algo, options.backend, str(options.width), str(options.batch_size), str(seconds)]
            done = subprocess.run(
                [sys.executable, __file__, "--case", *case], env=environment, capture_output=True, text=True
            )
            if done.returncode:
                raise SystemExit(done.stderr)
            found.append(json.loads(done.stdout.splitlines()[-1]))
    cold, cached = found
    gain = cached["update"]["eager"] - cached["update"]["compiled"]
    result = {**cached, "cold": cold["compile"], "cached": cached["compile"]}
    del result["compile"]
    for name in ("cold", "cached"):
        result[name]["break_even"] = result[name]["cpu"] / gain if gain > 0 else None
    return result


def row(algo: str, found: dict[str, Any]) -> list[str]:
    cold, cached, update = found["cold"], found["cached"], found["update"]
    even = [f"{e:,.0f}" if (e := each["break_even"]) else "never" for each in (cold, cached)]
    return [
        algo,
        str(cold["stages"]),
        f"{cold['cpu']:.1f} ({cold['wall']:.1f})",
        f"{cached['cpu']:.1f} ({cached['wall']:.1f})",
        f"{1e3 * update['eager']:.2f}",
        f"{1e3 * update['compiled']:.2f}",
        f"{update['eager'] / update['compiled']:.2f}",
        *even,
        f"{found['difference']:.1e} ({found['beyond']})",
        f"{found['control']:.1e}",
    ]


HEADER = [
    "",
    "graphs",
    "cold s: CPU (wall)",
    "cached s: CPU (wall)",
    "eager ms",
    "compiled ms",
    "ratio",
    "even after, cold",
    "even after, cached",
    "difference (numbers beyond 0.001)",
    "of nudged weights",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--algo", nargs="+", choices=ALGORITHMS, default=list(ALGORITHMS))
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=5.0, help="CPU time for each timing")
    parser.add_argument("--json", type=Path, help="results, added to those that the file has already")
    parser.add_argument("--backend", default="inductor", help="of torch.compile; aot_eager traces alone")
    parser.add_argument("--case", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        algo, backend, width, batch_size, seconds = options.case
        print(json.dumps(measure(algo, backend, int(width), int(batch_size), float(seconds))))
        return
    done = json.loads(options.json.read_text()) if options.json and options.json.exists() else {}
    for algo in options.algo:
        if algo not in done:
            done[algo] = cold_and_cached(algo, options)
            print(algo, json.dumps(done[algo]), file=sys.stderr, flush=True)
        if options.json:
            options.json.write_text(json.dumps(done, indent=2))
    print(markdown_table(HEADER, [row(algo, done[algo]) for algo in options.algo]))


if __name__ == "__main__":
    main()
