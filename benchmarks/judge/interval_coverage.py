"""How often the 95 % bootstrap interval of a mean holds the true mean, on synthetic runs.

    python benchmarks/judge/interval_coverage.py

A correct interval covers in 95 % of repetitions, here give or take 0.7 % (1,000 repetitions). Fewer runs show
what an interval from few seeds is worth. Exit code 1 if 50 normal samples are not covered in 93-97 %.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np

from rl_training.report.statistics import estimate

TRUE_MEAN = 2.0
DRAWS = {
    "normal": lambda generator, count: generator.normal(TRUE_MEAN, 3.0, count),
    "uniform": lambda generator, count: generator.uniform(TRUE_MEAN - 1, TRUE_MEAN + 1, count),
    "exponential": lambda generator, count: generator.exponential(TRUE_MEAN, count),
}


def coverage(kind: str, tasks: int, runs: int, repetitions: int) -> float:
    """Share of repetitions whose interval holds the true mean; each task has its own level."""
    generator = np.random.default_rng([tasks, runs])
    levels = np.arange(tasks) * 10.0
    hits = 0
    for repetition in range(repetitions):
        strata = [level + DRAWS[kind](generator, runs) for level in levels]
        result = estimate(strata, seed=repetition, repetitions=2000)
        hits += result.low <= TRUE_MEAN + levels.mean() <= result.high
    return hits / repetitions


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repetitions", type=int, default=1000)
    repetitions = parser.parse_args().repetitions
    print(f"{'distribution':14}{'tasks':>6}{'runs per task':>15}{'covered':>9}")
    for kind, tasks, runs in [
        ("normal", 1, 50),
        ("uniform", 1, 50),
        ("exponential", 1, 50),
        ("normal", 5, 10),
        ("normal", 1, 10),
        ("normal", 1, 5),
        ("normal", 1, 3),
    ]:
        covered = coverage(kind, tasks, runs, repetitions)
        print(f"{kind:14}{tasks:6}{runs:15}{covered:9.1%}")
        if (kind, tasks, runs) == ("normal", 1, 50):
            required = 0.93 <= covered <= 0.97
    return 0 if required else 1


if __name__ == "__main__":
    sys.exit(main())
