"""What `RL_TRAINING_AMD_MKL=1` gains on this processor: products and compiled updates with and without it.

    python benchmarks/speed/amd_path.py [--algo sac iql] [--starts 2] [--seconds 3]

Processes with and without the variable take turns; a number is the median over starts, in CPU time of one
thread, two hidden layers of 256, batch 256.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from statistics import median

from rl_training.core.machine import VARIABLE

# isort: split
import torch
from subjects import (
    ALGORITHMS,
    cpu_seconds,
    make_batch,
    make_learner,
    markdown_table,
    prepare,
    updater,
)

PRODUCTS = {"256 × 256 × 256": (256, 256, 256), "7680 × 256 × 256": (7680, 256, 256)}


def product(rows: int, inner: int, columns: int) -> Callable[[int], None]:
    left, right, result = torch.randn(rows, inner), torch.randn(inner, columns), torch.empty(rows, columns)

    def run(count: int) -> None:
        for _ in range(count):
            torch.mm(left, right, out=result)

    return run


def compiled_update(algo: str) -> Callable[[int], None]:
    """Of one algorithm, every stage of it compiled."""
    learner = make_learner(algo)
    learner.compile()
    run = updater(learner, make_batch())
    run(45)  # REDQ's actor has its first turn after 20
    return run


def measured(names: list[str], seconds: float) -> dict[str, float]:
    """CPU seconds of each product and update, in this process."""
    prepare()
    found: dict[str, float] = {}
    for name in names:
        run = product(*PRODUCTS[name]) if name in PRODUCTS else compiled_update(name)
        found |= cpu_seconds({name: run}, seconds)
    return found


def asked(names: list[str], variable: str, seconds: float) -> dict[str, float]:
    """The same in a process of its own, with the variable or without."""
    done = subprocess.run(
        [sys.executable, __file__, "--case", str(seconds), *names],
        env=os.environ | {VARIABLE: variable, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    sys.stderr.write(done.stderr)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def row(name: str, spent: dict[str, list[dict[str, float]]]) -> list[str]:
    usual, other = (median(each[name] for each in starts) for starts in spent.values())
    return [name, *(f"{1e3 * value:.3g} ms" for value in (usual, other)), f"{usual / other:.2f}"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--algo", nargs="+", choices=ALGORITHMS, default=list(ALGORITHMS))
    parser.add_argument("--starts", type=int, default=2, help="processes of each kind")
    parser.add_argument("--seconds", type=float, default=3.0, help="CPU time of each timing")
    parser.add_argument("--case", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        seconds, *names = options.case
        print(json.dumps(measured(names, float(seconds))))
        return
    names, spent = [*PRODUCTS, *options.algo], {"0": [], "1": []}
    for _ in range(options.starts):
        for variable, starts in spent.items():
            starts.append(asked(names, variable, options.seconds))
    rows = [row(name, spent) for name in names]
    print(markdown_table(["", "as usual", "with the variable", "ratio"], rows))


if __name__ == "__main__":
    main()
