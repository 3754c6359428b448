"""Resident memory of a process over many updates, eager and compiled.

    python benchmarks/speed/memory_growth.py [--algo sac iql] [--updates 100000] [--width 64]

Each case runs in a process of its own. The first tenth of the updates is warm-up; growth is what the rest
adds. Needs Linux.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from subjects import ALGORITHMS, make_batch, make_learner, markdown_table, prepare, resident_mebibytes

SAMPLES = 10


def samples(algo: str, mode: str, updates: int, width: int, batch_size: int) -> list[float]:
    """Resident MiB after each tenth of the updates."""
    prepare()
    learner = make_learner(algo, width)
    if mode == "compiled":
        learner.compile()
    batches = [make_batch(batch_size, seed) for seed in range(16)]
    resident = []
    for step in range(updates):
        result = learner.update(batches[step % len(batches)], global_step=step)
        if step % 1000 == 0:
            dict(result.metrics)  # as a logging step does
        if (step + 1) % (updates // SAMPLES) == 0:
            resident.append(resident_mebibytes())
    return resident


def in_own_process(algo: str, mode: str, options: argparse.Namespace) -> list[float]:
    sizes = [str(size) for size in (options.updates, options.width, options.batch_size)]
    done = subprocess.run(
        [sys.executable, __file__, "--case", algo, mode, *sizes], capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    values: list[float] = json.loads(done.stdout.splitlines()[-1])
    return values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--algo", nargs="+", choices=ALGORITHMS, default=["sac", "iql"])
    parser.add_argument("--mode", nargs="+", choices=["eager", "compiled"], default=["eager", "compiled"])
    parser.add_argument("--updates", type=int, default=100_000)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--json", type=Path, help="also write the samples to this file")
    parser.add_argument("--case", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        algo, mode, *sizes = options.case
        print(json.dumps(samples(algo, mode, *map(int, sizes))))
        return
    cases = [(algo, mode) for algo in options.algo for mode in options.mode]
    found = {case: in_own_process(*case, options) for case in cases}
    rows = [
        [algo, mode, f"{values[0]:.1f}", f"{values[-1]:.1f}", f"{values[-1] - values[0]:+.2f}"]
        for (algo, mode), values in found.items()
    ]
    tenth = options.updates // SAMPLES
    header = ["", "", f"MiB after {tenth:,} updates", f"after {options.updates:,}", "growth"]
    print(markdown_table(header, rows))
    if options.json:
        named = {f"{algo} {mode}": values for (algo, mode), values in found.items()}
        options.json.write_text(json.dumps({"updates": options.updates, "resident_mib": named}, indent=2))


if __name__ == "__main__":
    main()
